"""Markov chains by name. The libraries that run them stand in `curvi.adapters`, which puts them in here."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Chains(NamedTuple):
    """What a sampler returns; the first axes are chains and draws."""

    positions: np.ndarray  # (chains, draws, d)
    log_density: np.ndarray  # ln p there, in unconstrained coordinates
    diverging: np.ndarray  # whether the trajectory of the draw diverged
    num_leapfrogs: np.ndarray  # gradients of the draw
    acceptance_rate: np.ndarray
    num_adaptation_leapfrogs: int  # gradients of all chains before the first draw
    step_size: float


# (target, q, key, starts, inverse mass matrix, number of adaptation steps, number of draws) -> Chains
Kernel = Callable[..., Chains]
KERNELS: dict[str, Kernel] = {}
