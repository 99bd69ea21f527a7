"""Comparison of two fits: the difference of their ELBOs on paired draws."""

import dataclasses

import equinox as eqx
import jax
import numpy as np

from curvi.model.over_draws import over_draws
from curvi.model.target import AbstractTarget
from curvi.record.history import mean_and_error
from curvi.results import Fit

_DRAWS = 4096
_CHUNK = 256


@dataclasses.dataclass(frozen=True)
class Comparison:
    """ELBO of the first fit less that of the second, in nats.

    Attributes
    ----------
    difference, difference_se
        The mean over paired draws, and its standard error.
    elbos
        ELBOs of both fits on these draws.
    unpaired_se
        The standard error that independent draws would give.
    num_draws
        Pairs of draws.
    """

    difference: float
    difference_se: float
    elbos: tuple[float, float]
    unpaired_se: float
    num_draws: int

    @property
    def z(self) -> float:
        """The difference in standard errors; NaN where both are zero."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(np.float64(self.difference) / np.float64(self.difference_se))

    def __str__(self) -> str:
        if not np.isfinite(self.difference):
            verdict = "no comparison: a log density is not finite at some draws"
        elif abs(self.difference) <= 2 * self.difference_se:
            verdict = "no difference that these draws could tell"
        else:
            verdict = f"the {'first' if self.difference > 0 else 'second'} fit has the larger ELBO"
        return (
            f"ELBO difference {self.difference:.4f} ± {self.difference_se:.2g} nats (first less second): {verdict}\n"
            f"  ELBOs {self.elbos[0]:.4f} and {self.elbos[1]:.4f} on {self.num_draws:,} paired draws; "
            f"unpaired, the error would be {self.unpaired_se:.2g}"
        )


def compare(fit_a: Fit, fit_b: Fit, *, key=None, num_draws: int = _DRAWS) -> Comparison:
    """The ELBO of `fit_a` less that of `fit_b`, on paired draws.

    Both fits make their draws from the same uniform numbers, so that common noise cancels: for two fits of one model
    the error is far below that of either ELBO. ELBOs of different models of the same data may also be compared; each
    bounds the evidence of its model from below, but the gaps may differ.

    Parameters
    ----------
    fit_a, fit_b
        Two fits.
    key
        Determines the draws; a fixed key if None.
    num_draws
        Pairs of draws.
    """
    for fit in (fit_a, fit_b):
        if not isinstance(fit, Fit):
            raise ValueError(f"compare takes two fits; got {type(fit).__name__}")
    if num_draws < 2:
        raise ValueError(f"num_draws must be at least 2; got {num_draws}")
    chunks = -(-num_draws // _CHUNK)
    keys = jax.random.split(jax.random.key(0) if key is None else key, chunks)
    size = max(fit_a.q.noise_size, fit_b.q.noise_size)
    a, b = (
        np.asarray(_log_ratios(fit.target, fit.q, keys, size), dtype=np.float64)[:num_draws] for fit in (fit_a, fit_b)
    )
    with np.errstate(invalid="ignore"):
        difference, error = mean_and_error(a - b)
    (elbo_a, error_a), (elbo_b, error_b) = mean_and_error(a), mean_and_error(b)
    return Comparison(difference, error, (elbo_a, elbo_b), float(np.hypot(error_a, error_b)), num_draws)


@eqx.filter_jit
def _log_ratios(target: AbstractTarget, q, keys, size: int):
    """ln p - ln q at draws of q from uniform numbers, `_CHUNK` at a time; each q uses the first `q.noise_size`."""
    density = target.full()

    def one(u):
        x = q.from_uniform(u[: q.noise_size])
        return q.log_joint(density, x) - q.log_prob(x)

    def chunk(key):
        tiny = np.finfo(q.params.dtype).eps
        u = jax.random.uniform(key, (_CHUNK, size), q.params.dtype, minval=tiny / 2, maxval=1 - tiny)
        return over_draws(target, _CHUNK)(one)(u)

    return jax.lax.map(chunk, keys).reshape(-1)
