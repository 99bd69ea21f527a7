"""Exact ELBOs, by enumeration of all states or in closed form: what a fit can be held against.

They are written down without curvi's factors and estimators.
"""

import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln
from scipy.optimize import minimize

from curvi.model import support as supports
from curvi.model.target import AbstractTarget
from reference_models.discrete import COAL_MINING_DISASTERS

_MOST_STATES = 2**16


def enumerate_states(target: AbstractTarget) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """All states of a target whose latents are bits or bounded integers, counted from 0; ln p of each; the number of
    values of each scalar latent.
    """
    sizes, lowest = [], []
    for latent in target.latents:
        ends = (0, 1) if supports.is_boolean(latent.support) else supports.integer_range(latent.support)
        if ends is None:
            raise ValueError(f"latent '{latent.name}' has support {supports.describe(latent.support)}: no enumeration")
        count = int(np.prod(latent.shape, dtype=int))
        sizes += [ends[1] - ends[0] + 1] * count
        lowest += [ends[0]] * count
    if (total := int(np.prod([float(n) for n in sizes]))) > _MOST_STATES:
        raise ValueError(f"{total} states are too many to enumerate; at most {_MOST_STATES}")
    states = np.array(list(itertools.product(*[range(n) for n in sizes])))
    density = target.full()

    def one(state):
        theta, start = {}, 0
        for latent in target.latents:
            count = int(np.prod(latent.shape, dtype=int))
            theta[latent.name] = state[start : start + count].reshape(latent.shape)
            start += count
        return density(theta)

    return states, np.asarray(jax.jit(jax.vmap(one))(jnp.asarray(states + lowest, jnp.int32))), sizes


def enumerated_elbo(target: AbstractTarget) -> Callable:
    """The exact ELBO as a function of the flat parameters: logits of each latent against its first value."""
    states, log_p, sizes = enumerate_states(target)

    def elbo(params):
        log_q, start = jnp.zeros(len(states)), 0
        for column, size in enumerate(sizes):
            logits = jnp.concatenate([jnp.zeros(1), params[start : start + size - 1]])
            log_q = log_q + jax.nn.log_softmax(logits)[states[:, column]]
            start += size - 1
        return jnp.sum(jnp.exp(log_q) * (log_p - log_q))

    return elbo


def change_point_elbo(counts=COAL_MINING_DISASTERS) -> Callable:
    """The exact ELBO of `change_point` in the flat parameters: logits of the switch, (log shape, log rate) of each
    Gamma.
    """
    counts = np.asarray(counts)
    years = len(counts)
    before = np.cumsum(counts)[:-1]
    switch = np.arange(1, years)
    constant = -float(np.sum(gammaln(counts + 1.0))) - np.log(years - 1)

    def elbo(params):
        log_p = jax.nn.log_softmax(jnp.concatenate([jnp.zeros(1), params[: years - 2]]))
        p = jnp.exp(log_p)
        shape, rate = jnp.exp(params[years - 2 :]).reshape(2, 2).T
        mean, mean_log = shape / rate, digamma(shape) - jnp.log(rate)
        events, exposure = p @ before, p @ switch
        log_joint = events * mean_log[0] - (exposure + 1) * mean[0]
        log_joint += (counts.sum() - events) * mean_log[1] - (years - exposure + 1) * mean[1]
        entropy = jnp.sum(shape - jnp.log(rate) + gammaln(shape) + (1 - shape) * digamma(shape))
        return constant + log_joint + entropy - p @ log_p

    return elbo


def basin(elbo: Callable, params) -> tuple[np.ndarray, float]:
    """The local maximum uphill of `params`, and its value.

    By a trust region on the exact Hessian: where some value of a latent has next to no probability the ELBO is all but
    flat, and a quasi-Newton method takes that for the top.
    """
    value, slope, bend = _derivatives(elbo)
    found = minimize(
        lambda p: -float(value(p)),
        np.asarray(params, float),
        jac=lambda p: -np.asarray(slope(p), float),
        hess=lambda p: -np.asarray(bend(p), float),
        method="trust-exact",
        options={"gtol": 1e-8, "maxiter": 2000, "max_trust_radius": 10.0},
    )
    return found.x, -float(found.fun)


@functools.lru_cache(maxsize=16)
def _derivatives(elbo: Callable) -> tuple[Callable, Callable, Callable]:
    return jax.jit(elbo), jax.jit(jax.grad(elbo)), jax.jit(jax.hessian(elbo))
