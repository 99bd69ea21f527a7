"""Draws for importance weights: half of them from q, half from q with wider noise.

Where q is somewhat too narrow, draws of q alone hardly reach what it leaves out, and weights p / q grow without bound
there. A mixture m that contains q keeps them below twice those of q (a defensive mixture: Hesterberg 1995), and its
wider part reaches further. With noise e behind a draw of q and phi the standard normal density,

    m = q(x) sum_k a_k s_k^-n phi(e / s_k) / phi(e),

so that nothing but the noise is needed. Draws that are no function of normal noise (discrete latents) stay those of q.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from curvi.estimate.sampling import ratios_of_keys
from curvi.family import Family
from curvi.model.target import AbstractTarget

# Shares and widths of the mixture. A width s multiplies weights within q by up to s^n in n dimensions, whose cost the
# first share bounds; the widths reach sds that are a tenth and a quarter too small.
SHARES, WIDTHS = (0.5, 0.25, 0.25), (1.0, 1.1, 1.25)
_AT_ONCE = 4096  # draws per call, so that looks of different sizes share one program


class WidenedDraws(eqx.Module):
    """Draws of the mixture around q, with what `curvi.estimate.sampling` needs of a family.

    A draw is that of q with ln (m / q) beside it. `widened=False` gives draws of q itself.
    """

    q: Family
    widened: bool = eqx.field(static=True)

    def __init__(self, q: Family, widened: bool = True):
        self.q, self.widened = q, widened and q.reparameterised

    @property
    def params(self):
        return self.q.params

    @property
    def noise_size(self) -> int:
        return self.q.noise_size

    def sample(self, key):
        """One draw."""
        if not self.widened:
            return self.q.sample(key), jnp.zeros((), self.params.dtype)
        key_noise, key_width = jax.random.split(key)
        log_shares, widths = (np.asarray(values, self.params.dtype) for values in (np.log(SHARES), WIDTHS))
        width = jax.random.choice(key_width, jnp.asarray(widths), p=jnp.asarray(np.exp(log_shares)))
        noise = width * jax.random.normal(key_noise, (self.noise_size,), self.params.dtype)
        excess = log_shares - self.noise_size * np.log(widths) + (1 - widths**-2.0) * jnp.sum(noise**2) / 2
        return self.q.from_normal(noise), jax.nn.logsumexp(excess)

    def to_model(self, x):
        """The latents on the model's supports, and the log Jacobian."""
        return self.q.to_model(x[0])

    def log_prob(self, x):
        """ln m in working coordinates."""
        return self.q.log_prob(x[0]) + x[1]

    def log_joint(self, density, x):
        """ln p in working coordinates."""
        return self.q.log_joint(density, x[0])


@eqx.filter_jit
def _log_own(drawn: WidenedDraws, keys):
    return -jax.vmap(lambda key: drawn.sample(key)[1])(keys)


def widened_ratios(target: AbstractTarget, drawn: WidenedDraws, keys) -> tuple[np.ndarray, np.ndarray]:
    """ln p - ln m and ln q - ln m at the draws of these keys."""
    ratios, own = [], []
    for at in range(0, len(keys), _AT_ONCE):
        part = keys[(at + np.arange(_AT_ONCE)) % len(keys)] if len(keys) > _AT_ONCE else keys[at : at + _AT_ONCE]
        here = min(_AT_ONCE, len(keys) - at)
        ratios.append(np.asarray(ratios_of_keys(target, drawn, part)[:here], np.float64))
        own.append(np.asarray(_log_own(drawn, part)[:here], np.float64))
    return np.concatenate(ratios), np.concatenate(own)
