"""Models for which nothing but values of the log density is needed, with exact answers where these exist.

Each function returns a target (some also a family); nothing is fitted here.
"""

from reference_models.conjugate import beta_bernoulli as beta_bernoulli
from reference_models.conjugate import poisson_gamma as poisson_gamma
from reference_models.discrete import change_point as change_point
from reference_models.discrete import finite_mixture as finite_mixture
from reference_models.discrete import noisy_or as noisy_or
from reference_models.discrete import spike_and_slab as spike_and_slab
from reference_models.discrete import variable_selection as variable_selection
from reference_models.plates import mixture as mixture
from reference_models.plates import mixture_data as mixture_data
