"""From q to Markov chains: where NUTS starts, what it needs, and what its draws say of q."""

from curvi.mcmc.polish import polish as polish
from curvi.mcmc.polished import Polished as Polished
from curvi.mcmc.start import NutsStart as NutsStart
from curvi.mcmc.start import to_nuts as to_nuts
