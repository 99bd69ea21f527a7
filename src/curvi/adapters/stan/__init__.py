"""Targets from Stan programs."""

from curvi.adapters.stan.program import from_stan as from_stan
