"""The default method: Newton on the ELBO of fixed draws, more of them as the noise of the answer demands.

The settings; `curvi.growing` runs it.
"""

import math
from typing import ClassVar

import equinox as eqx

from curvi.methods.base import AnyMethod

_LEAST_DRAWS = 64
_BUFFER_NUMBERS = 2**23


class GrowingDraws(AnyMethod):
    """Trust-region Newton with pathwise curvature on fixed draws, more of them as the noise of the answer demands.

    Hessian products are forward over reverse; for targets of order 1, differences of gradients on the same draws.
    Factors that are not reparameterised, those of discrete latents, keep their draws and change the weights of these:
    their part of the gradient is the score's (`curvi.estimate.hybrid`).

    Attributes
    ----------
    first_draws
        Draws of the first round.
    max_draws
        Most draws of a round; None takes what a noise buffer of about 64 MB holds, between 256 and 8,192.
    """

    first_draws: int = eqx.field(static=True, default=64)
    max_draws: int | None = eqx.field(static=True, default=None)
    needs_order: ClassVar[int] = 1
    needs_kl: ClassVar[bool] = True
    default_num_steps: ClassVar[int] = 1000

    def __check_init__(self):
        for name in ("first_draws", "max_draws"):
            number = getattr(self, name)
            if number is not None and (number < _LEAST_DRAWS or number & (number - 1)):
                raise ValueError(f"{name} must be a power of two, at least {_LEAST_DRAWS}; got {number}")

    def buffer_draws(self, dimension: int, wanted: int = 0) -> int:
        """Draws that the noise buffer holds: `wanted`, if that is more than usual and not too large."""
        if self.max_draws is not None:
            return self.max_draws
        usual = max(256, min(8192, 2 ** int(math.log2(_BUFFER_NUMBERS / dimension))))
        return wanted if usual < wanted <= _BUFFER_NUMBERS / dimension else usual
