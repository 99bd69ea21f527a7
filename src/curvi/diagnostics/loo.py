"""Leave-one-out predictive density from draws of q, with the correction for q.

Draws of q stand for the posterior without observation i with weights p(theta) / (q(theta) p(y_i | theta)), smoothed as
a whole (Magnusson, Andersen, Jonasson and Vehtari 2019). The first ratio corrects for q, where its k-hat allows that:
else it is left out, as if q were the posterior.
"""

import dataclasses
import math
import textwrap
from typing import TYPE_CHECKING

import jax
import numpy as np
from scipy.special import logsumexp

from curvi.estimate.psis import MAX_KHAT, smooth_weights

if TYPE_CHECKING:
    from curvi.results import Fit

_DRAWS, _FEWEST = 4000, 100
_WIDTH = 110


@dataclasses.dataclass(frozen=True)
class Loo:
    """The expected log predictive density of observations that are left out one by one.

    Attributes
    ----------
    elpd, se
        The sum over all observations, and its standard error from how they differ.
    p_loo
        The effective number of parameters: the log density with each observation, less that without.
    pointwise, pareto_k
        For each observed site: the density of each observation, and the tail shape of its weights. Above `good_k`
        the density is not reliable.
    corrected
        Whether the draws of q were weighted towards the posterior.
    khat
        The tail shape of the ratios p / q alone.
    num_draws, good_k
        Draws of q, and the tail shape up to which that many give stable weights.
    """

    elpd: float
    se: float
    p_loo: float
    pointwise: dict[str, np.ndarray]
    pareto_k: dict[str, np.ndarray]
    corrected: bool
    khat: float
    num_draws: int
    good_k: float

    @property
    def num_bad(self) -> int:
        """Observations whose density is not reliable."""
        return int(sum(np.sum(~(k <= self.good_k)) for k in self.pareto_k.values()))

    def to_arviz(self):
        """The same as `arviz.loo` returns it with `pointwise=True`, for `arviz.compare`; needs ArviZ 0.x."""
        try:
            import xarray
            from arviz.stats.stats_utils import ELPDData
        except ImportError as error:
            raise ImportError(f'Loo.to_arviz needs ArviZ 0.x ({error}): pip install "arviz<1"') from error
        density = xarray.DataArray(_joined(self.pointwise), dims="observation", name="loo_i")
        shapes = xarray.DataArray(_joined(self.pareto_k), dims="observation", name="pareto_shape")
        values = {
            "elpd_loo": self.elpd,
            "se": self.se,
            "p_loo": self.p_loo,
            "n_samples": self.num_draws,
            "n_data_points": density.size,
            "warning": self.num_bad > 0,
            "loo_i": density,
            "pareto_k": shapes,
            "scale": "log",
            "good_k": self.good_k,
        }
        return ELPDData(data=list(values.values()), index=list(values))

    def __str__(self) -> str:
        number = len(_joined(self.pointwise))
        how = "corrected for q by p / q" if self.corrected else "not corrected: as if q were the posterior"
        bad = f"; {self.num_bad:,} of {number:,} observations have k above {self.good_k:.2f}" if self.num_bad else ""
        text = (
            f"elpd {self.elpd:.2f} ± {self.se:.2f}, {self.p_loo:.2f} effective parameters, {number:,} observations, "
            f"{self.num_draws:,} draws of q, {how} (k-hat {self.khat:.2f}){bad}"
        )
        return textwrap.fill(text, _WIDTH, subsequent_indent="  ")


def loo(fit: "Fit", *, key=None, num_draws: int = _DRAWS, correct: bool | None = None) -> Loo:
    """Leave-one-out cross-validation of a fit, from one set of draws of its q.

    Parameters
    ----------
    fit
        A fit of a model that knows its observations: from `from_numpyro` or `from_pymc`.
    key
        A random key for the draws; a fixed one by default.
    num_draws
        Draws of q, at least 100.
    correct
        Whether draws are weighted by p / q; by default where the k-hat of these ratios is at most 0.7.

    Raises ValueError where the target has no observations.
    """
    if not hasattr(fit, "draws_and_densities"):
        raise ValueError(f"loo takes a fit, as curvi.fit returns it; got {type(fit).__name__}")
    if not isinstance(num_draws, int) or isinstance(num_draws, bool) or num_draws < _FEWEST:
        raise ValueError(f"num_draws must be a whole number of at least {_FEWEST}; got {num_draws!r}")
    key_draw, key_predict = jax.random.split(jax.random.key(0) if key is None else key)
    draws, log_p, log_q = fit.draws_and_densities(key_draw, num_draws, "q")
    terms = fit.predict(key_predict, draws).get("log_likelihood", {})
    if not terms:
        raise ValueError("the model of this fit has no observations, so that none can be left out")
    ratios = np.asarray(log_p, np.float64) - np.asarray(log_q, np.float64)
    khat = smooth_weights(ratios).khat
    corrected = khat <= MAX_KHAT if correct is None else bool(correct)
    base = ratios - float(np.asarray(logsumexp(ratios))) if corrected else np.full(num_draws, -math.log(num_draws))
    pointwise, shapes, inside = {}, {}, 0.0
    for name, values in terms.items():
        flat = np.asarray(values, np.float64).reshape(num_draws, -1)
        found = [_left_out(column, base) for column in flat.T]
        pointwise[name] = np.array([density for density, _ in found]).reshape(values.shape[1:])
        shapes[name] = np.array([shape for _, shape in found]).reshape(values.shape[1:])
        inside += float(np.sum(np.asarray(logsumexp(flat + base[:, None], axis=0))))
    each = _joined(pointwise)
    elpd, se = float(each.sum()), float((len(each) * each.var()) ** 0.5)
    good = min(1 - 1 / math.log10(num_draws), MAX_KHAT)
    return Loo(elpd, se, inside - elpd, pointwise, shapes, corrected, khat, num_draws, good)


def _left_out(terms: np.ndarray, base: np.ndarray) -> tuple[float, float]:
    """The log predictive density of one observation by draws that never saw it, and the tail shape of its weights."""
    weights = smooth_weights(base - terms)
    return float(np.asarray(logsumexp(weights.log_weights + terms))), weights.khat


def _joined(values: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ravel(value) for value in values.values()])
