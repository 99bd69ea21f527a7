"""Targets from the models of probabilistic programming languages."""

from curvi.adapters.numpyro import from_numpyro as from_numpyro
from curvi.adapters.pymc import from_pymc as from_pymc
from curvi.adapters.stan import from_stan as from_stan
