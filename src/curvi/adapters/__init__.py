"""Targets from the models of probabilistic programming languages, and samplers of other libraries."""

from curvi.adapters import blackjax as blackjax
from curvi.adapters.numpyro.model import from_numpyro as from_numpyro
from curvi.adapters.pymc.model import from_pymc as from_pymc
from curvi.adapters.stan.program import from_stan as from_stan
