"""Fresh copies of the Hessian by the estimator of a score method, as Scheme II draws them."""

import dataclasses

from curvi.curvature import Sampled
from curvi.estimate.draws import Independent
from curvi.estimate.score import AnchoredScore, PaperScore
from curvi.family import Family
from curvi.model.target import AbstractTarget


def fresh_hessians(
    estimator: PaperScore | AnchoredScore, target: AbstractTarget, q: Family, mean, num_draws: int
) -> Sampled:
    """`mean` with fresh unbiased copies of the Hessian, each from `num_draws` new draws (Scheme II, step 5)."""
    plain = {"num_gradient_draws": None, "draws": Independent(), "control": None}
    copy = dataclasses.replace(estimator, num_draws=num_draws, **plain)
    return Sampled(mean, lambda key: copy(target, q, key).curvature, num_draws)
