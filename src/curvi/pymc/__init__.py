"""Fits of PyMC models in one call: `idata = curvi.pymc.fit(model)`."""

from curvi.adapters.pymc.entry import fit as fit
