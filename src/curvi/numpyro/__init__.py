"""Fits as guides of NumPyro: `Predictive(model, guide=curvi.numpyro.AutoGuide(fit), num_samples=1000)`."""

from curvi.adapters.numpyro.guide import AutoGuide as AutoGuide
