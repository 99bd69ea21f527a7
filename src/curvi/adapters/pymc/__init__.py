"""Targets from PyMC models."""

from curvi.adapters.pymc.model import from_pymc as from_pymc
