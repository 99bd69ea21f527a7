"""Targets from Stan programs."""

from curvi.adapters.stan.build import from_stan_file as from_stan_file
from curvi.adapters.stan.program import from_stan as from_stan
