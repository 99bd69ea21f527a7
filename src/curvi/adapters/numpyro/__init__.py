"""Targets from NumPyro models."""

from curvi.adapters.numpyro import many as many
from curvi.adapters.numpyro import prior as prior
from curvi.adapters.numpyro.model import from_numpyro as from_numpyro
