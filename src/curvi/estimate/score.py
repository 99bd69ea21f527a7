"""Score estimators of the gradient and Hessian of the ELBO, from log-density values without derivatives of the model.

With s = grad ln q, D = hess ln q (block diagonal), M = s s' + D, F = E[s s'] and r = ln p - ln q:

    paper form      grad L = E[s ln p] + grad H(q)       hess L = E[M ln p] + hess H(q)
    anchored form   grad L = E[s r]                      hess L = E[M r] - F

(paper, equations 4 and 10).
Both are exact. The anchored form subtracts a leave-one-out baseline; its noise vanishes where q equals the posterior
(r is then constant). Additive constants in ln p do not matter, while they dominate the noise of the paper's form.
"""

from typing import Generic

import equinox as eqx
import jax
import jax.numpy as jnp

from curvi.curvature import BlockDiagonal, BlockLowRank
from curvi.estimate.control_variates import ControlVariate
from curvi.estimate.draws import Draws, Independent
from curvi.estimate.local import Counts, Estimated, GroupNoise, LocalModel, num_groups, variance_of_mean
from curvi.estimate.made_score import MOST_AT_ONCE, made, made_estimate
from curvi.family import Family
from curvi.family.base import DrawT
from curvi.model.over_draws import over_draws
from curvi.model.target import AbstractTarget
from curvi.record.plain import register

_BATCHES = 8  # minibatches per estimate: enough for batch noise to enter a standard error


class Sample(eqx.Module, Generic[DrawT]):
    """Draws with the log density of the model (with Jacobians) and of q at each."""

    x: DrawT  # one row per draw
    log_p: jax.Array
    log_q: jax.Array
    unit: int = eqx.field(static=True)  # consecutive draws that depend on one another
    batches: int = eqx.field(static=True)  # number of equal parts of the draws, each with its own minibatch

    @property
    def size(self) -> int:
        return self.log_p.shape[0]


def draw_sample(target: AbstractTarget, q: Family, key, num_draws: int, draws: Draws) -> Sample:
    """`num_draws` draws of q and their log densities; a minibatched target gives each eighth of them its own batch."""
    draws.check(q, num_draws)
    key_draw, key_batch = jax.random.split(key)
    x = draws.sample(q, key_draw, num_draws)
    unit = draws.unit(q, num_draws)
    batches = num_groups(num_draws // unit) if target.minibatched else 1

    def log_density(part, key):
        density = target.batch(key)

        return over_draws(target, num_draws)(lambda draw: q.log_joint(density, draw))(part)

    if batches == 1:
        log_p = log_density(x, key_batch)
    else:
        parts = jax.tree.map(lambda leaf: leaf.reshape(batches, -1, *leaf.shape[1:]), x)
        log_p = jax.lax.map(lambda args: log_density(*args), (parts, jax.random.split(key_batch, batches))).reshape(-1)
    return Sample(x, log_p, jax.vmap(q.log_prob)(x), unit, batches)


def left_out_weights(r, unit: int, num_parts: int):
    """Weights (r_i - b_i) / S, b_i the mean of r over all other units of the same part (one minibatch, or one half of
    the draws).

    For independent draws this is (r_i - mean r) / (S - 1): the estimators become sample covariances, unbiased.
    """
    parts = r.reshape(num_parts, -1, unit)
    total = parts.sum((1, 2), keepdims=True)
    others = total - parts.sum(2, keepdims=True)
    baseline = others / (parts.shape[1] * unit - unit)
    return ((parts - baseline) / r.size).reshape(-1)


def weighted_hessian(q: Family[DrawT], x: DrawT, weights) -> BlockDiagonal:
    """sum_i w_i D_i, block diagonal."""
    blocks = jax.vmap(q.hessian)(x).blocks
    return BlockDiagonal(tuple(jnp.tensordot(weights, b, axes=1) for b in blocks))


def _group_means(terms, groups: int):
    return terms.reshape(groups, -1, *terms.shape[1:]).mean(1)


@register
class PaperScore(eqx.Module):
    """The paper's estimator: weights ln p, entropy in closed form (equations 5 and 13, with the missing 1/T).

    Parameters
    ----------
    num_draws
        Draws for the Hessian, the paper's S.
    num_gradient_draws
        Draws for the gradient, the paper's T; None shares the Hessian's draws.
    draws
        How to draw; independent by default.
    control
        Control variate of the gradient, None for the plain mean.
    """

    num_draws: int = eqx.field(static=True)
    num_gradient_draws: int | None = eqx.field(static=True, default=None)
    draws: Draws = Independent()
    control: ControlVariate | None = None

    def __check_init__(self):
        _check_both(self, 1)

    def __call__(self, target: AbstractTarget, q: Family, key) -> Estimated:
        sample, gradient_sample, counts = _two_samples(self, target, q, key)
        scores = jax.vmap(q.score)(sample.x)
        weights = sample.log_p / sample.size
        curvature = BlockLowRank(weighted_hessian(q, sample.x, weights).add(q.entropy_hessian()), scores, weights)

        gradient_scores = scores if gradient_sample is sample else jax.vmap(q.score)(gradient_sample.x)
        groups = num_groups(gradient_sample.size // gradient_sample.unit)
        terms = gradient_sample.log_p[:, None] * gradient_scores
        if self.control is not None:
            terms = self.control.reduce(terms, gradient_scores, gradient_sample.unit)
        group_grads = _group_means(terms, groups) + q.entropy_gradient()
        value = gradient_sample.log_p.mean() + q.entropy()
        value_se = jnp.sqrt(variance_of_mean(_group_means(gradient_sample.log_p, groups)))
        ratios = gradient_sample.log_p - gradient_sample.log_q
        noise = GroupNoise(group_grads)
        return LocalModel(value, value_se, group_grads.mean(0), curvature, q.fisher(), noise, ratios, counts)


@register
class AnchoredScore(eqx.Module):
    """The anchored estimator: weights ln p - ln q with a leave-one-out baseline, Hessian anchored at -F.

    Parameters
    ----------
    num_draws, num_gradient_draws, draws, control
        As for `PaperScore`; at least two independent units of draws are needed for the baseline.
    at_once
        Draws that are made at a time where all are too large to store; a fit takes fewer where memory asks for it.
    """

    num_draws: int = eqx.field(static=True)
    num_gradient_draws: int | None = eqx.field(static=True, default=None)
    draws: Draws = Independent()
    control: ControlVariate | None = None
    at_once: int = eqx.field(static=True, default=MOST_AT_ONCE)

    def __check_init__(self):
        _check_both(self, 2)

    def __call__(self, target: AbstractTarget, q: Family, key) -> Estimated:
        plain = isinstance(self.draws, Independent) and self.control is None and self.num_gradient_draws is None
        if plain and made(target, q, self.num_draws):
            return made_estimate(target, q, jax.random.split(key)[0], self.num_draws, self.at_once)
        sample, gradient_sample, counts = _two_samples(self, target, q, key)
        fisher = q.fisher()
        scores = jax.vmap(q.score)(sample.x)
        weights = left_out_weights(sample.log_p - sample.log_q, sample.unit, _num_parts(sample))
        halves = _half_curvatures(q, fisher, sample, scores, weights)
        diagonal = weighted_hessian(q, sample.x, weights).add(fisher.scale(-1.0))
        curvature = BlockLowRank(diagonal, scores, weights)

        ratios = gradient_sample.log_p - gradient_sample.log_q
        if gradient_sample is not sample:
            scores = jax.vmap(q.score)(gradient_sample.x)
        if gradient_sample is not sample or self.control is not None:
            # A control variate takes its coefficients from the other half of the draws: no baseline mixes the halves.
            parts = _num_parts(gradient_sample, halves=self.control is not None)
            weights = left_out_weights(ratios, gradient_sample.unit, parts)
        groups = num_groups(gradient_sample.size // gradient_sample.unit)
        terms = gradient_sample.size * weights[:, None] * scores
        if self.control is not None:
            terms = self.control.reduce(terms, scores, gradient_sample.unit)
        group_grads = _group_means(terms, groups)
        value_se = jnp.sqrt(variance_of_mean(_group_means(ratios, groups)))
        return LocalModel(
            ratios.mean(),
            value_se,
            group_grads.mean(0),
            curvature,
            fisher,
            GroupNoise(group_grads),
            ratios,
            counts,
            halves,
        )


def _num_parts(sample: Sample, halves: bool = False) -> int:
    """Number of parts of the draws within which a baseline is taken: the minibatches, or fewer if these hold a single
    unit each.

    A baseline from another minibatch is also unbiased, but noisier. With `halves`, no part crosses the middle.
    """
    num_units, least = sample.size // sample.unit, 4 if halves else 2
    if num_units < least or (halves and num_units % 2):
        raise ValueError(
            f"{sample.size} draws in independent units of {sample.unit} are {num_units} unit(s); "
            "a leave-one-out baseline needs "
            + ("an even number, at least 4, where a control variate halves the draws" if halves else "at least 2")
        )
    if num_units >= 2 * sample.batches and not (halves and sample.batches % 2):
        return sample.batches
    return 2 if halves else 1


def _half_curvatures(q, fisher, sample: Sample, scores, weights):
    """Two nearly independent estimates of the Hessian, one from each half of the draws; None with a single unit
    per half.
    """
    num_units = sample.size // sample.unit
    if num_units < 4:
        return None
    cut = sample.unit * (num_units // 2)

    def half(part, share):
        w = weights[part] * (sample.size / share)
        x = jax.tree.map(lambda leaf: leaf[part], sample.x)
        return BlockLowRank(weighted_hessian(q, x, w).add(fisher.scale(-1.0)), scores[part], w)

    return half(slice(0, cut), cut), half(slice(cut, None), sample.size - cut)


def _two_samples(estimator, target, q, key):
    """The Hessian's sample and the gradient's (the same object where they share their draws), and their cost."""
    key_hessian, key_gradient = jax.random.split(key)
    sample = draw_sample(target, q, key_hessian, estimator.num_draws, estimator.draws)
    if estimator.num_gradient_draws is None:
        return sample, sample, Counts(log_density=sample.size)
    gradient_sample = draw_sample(target, q, key_gradient, estimator.num_gradient_draws, estimator.draws)
    return sample, gradient_sample, Counts(log_density=sample.size + gradient_sample.size)


def _check_both(estimator: PaperScore | AnchoredScore, least: int) -> None:
    check_num_draws(estimator.num_draws, least, "num_draws")
    if estimator.num_gradient_draws is not None:
        check_num_draws(estimator.num_gradient_draws, least, "num_gradient_draws")


def check_num_draws(number, least: int, name: str) -> None:
    if not isinstance(number, int) or number < least:
        raise ValueError(f"{name} must be an integer of at least {least}; got {number!r}")
