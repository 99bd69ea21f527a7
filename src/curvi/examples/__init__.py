"""Models for which nothing but values of the log density is needed, with exact answers where these exist.

Each function returns a target (some also a family); nothing is fitted here.
"""

from curvi.examples.conjugate import beta_bernoulli as beta_bernoulli
from curvi.examples.conjugate import poisson_gamma as poisson_gamma
from curvi.examples.discrete import change_point as change_point
from curvi.examples.discrete import finite_mixture as finite_mixture
from curvi.examples.discrete import noisy_or as noisy_or
from curvi.examples.discrete import spike_and_slab as spike_and_slab
from curvi.examples.discrete import variable_selection as variable_selection
from curvi.examples.plates import mixture as mixture
from curvi.examples.plates import mixture_data as mixture_data
from curvi.examples.simulator import epidemic as epidemic
