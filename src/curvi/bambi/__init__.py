"""Fits of Bambi models in one call: `idata = curvi.bambi.fit(model)`."""

from curvi.adapters.pymc.bambi import fit as fit
