"""NUTS by BlackJAX."""

from curvi.adapters.blackjax.nuts import sample_nuts
from curvi.mcmc.kernels import KERNELS

KERNELS["nuts"] = sample_nuts
