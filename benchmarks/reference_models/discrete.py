"""Discrete latents: variable selection, a change point, a mixture, a network of causes."""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from numpyro.distributions import constraints

from curvi import factors
from curvi.family import MeanField
from curvi.model.target import Target

# Coal-mining disasters in Great Britain in the years 1851 to 1962: R. G. Jarrett, "A note on the intervals between
# coal-mining disasters", Biometrika 66 (1979), 191-193; by year as in Carlin, Gelfand and Smith (1992).
# fmt: off
COAL_MINING_DISASTERS = np.array([
    4, 5, 4, 1, 0, 4, 3, 4, 0, 6, 3, 3, 4, 0, 2, 6, 3, 3, 5, 4, 5, 3, 1, 4, 4, 1, 5, 5,
    3, 4, 2, 5, 2, 2, 3, 4, 2, 1, 3, 2, 2, 1, 1, 1, 1, 3, 0, 0, 1, 0, 1, 1, 0, 0, 3, 1,
    0, 3, 2, 2, 0, 1, 1, 1, 0, 1, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0, 1, 1, 0, 2, 3, 3, 1, 1,
    2, 1, 1, 1, 1, 2, 4, 2, 0, 0, 0, 1, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1,
])
# fmt: on


def spike_and_slab(inclusion=0.5, slab=1.0) -> Target:
    """Which of the ten features of scikit-learn's diabetes data matter: a bit each, coefficients integrated out.

    The outcome is standardised, its noise variance one half. Coefficients of included features are Normal(0, slab) on
    standardised features. The log density is ln p(outcome, bits): 1,024 states, so that everything can be enumerated.
    """
    try:
        from sklearn.datasets import load_diabetes
    except ImportError as error:
        raise ImportError(f"the diabetes data need scikit-learn ({error}): pip install scikit-learn") from error
    features, outcome = (np.asarray(part) for part in load_diabetes(return_X_y=True))
    return variable_selection(features, outcome, inclusion, slab)


def variable_selection(features, outcome, inclusion=0.5, slab=1.0, noise=0.5) -> Target:
    """A bit for each column of `features`: whether it takes part in the linear regression of `outcome`.

    Both are standardised; `noise` is a variance. The coefficients, Normal(0, slab), are integrated out.
    """
    features = (features - features.mean(0)) / features.std(0)
    outcome = (outcome - outcome.mean()) / outcome.std()
    gram, moments = features.T @ features / noise, features.T @ outcome / noise
    rows, size = features.shape
    constant = -0.5 * (outcome @ outcome / noise + rows * np.log(2 * np.pi * noise))

    def log_density(theta):
        bits = theta["included"].astype(gram.dtype)
        # Columns that are left out become those of the identity: the determinant does not change.
        inner = slab**2 * bits[:, None] * gram * bits[None, :] + jnp.eye(size)
        explained = slab**2 * (bits * moments) @ jnp.linalg.solve(inner, bits * moments)
        log_prior = jnp.sum(bits * np.log(inclusion) + (1 - bits) * np.log(1 - inclusion))
        return constant + log_prior + (explained - jnp.linalg.slogdet(inner)[1]) / 2

    start = np.zeros(size, int)
    return Target(log_density, {"included": start}, {"included": constraints.boolean}, order=0)


def change_point(counts=COAL_MINING_DISASTERS) -> tuple[Target, MeanField]:
    """The year in which a rate of events changed: a switch over the years, and a rate on either side of it.

    Both rates are Gamma(1, 1), the switch is uniform; counts before it have the first rate. The factors are two Gammas
    and a categorical.
    """
    counts = np.asarray(counts)
    years = len(counts)
    sums = np.concatenate([[0], np.cumsum(counts)])
    constant = -float(np.sum(gammaln(counts + 1.0))) - np.log(years - 1)

    def log_density(theta):
        early, late = theta["rate"]
        before, switch = jnp.asarray(sums)[theta["switch"]], theta["switch"]
        log_early = before * jnp.log(early) - (switch + 1) * early
        log_late = (sums[-1] - before) * jnp.log(late) - (years - switch + 1) * late
        return constant + log_early + log_late

    target = Target(
        log_density,
        {"switch": np.array(years // 2), "rate": np.ones(2)},
        {"switch": constraints.integer_interval(1, years - 1), "rate": constraints.positive},
        order=0,
    )
    return target, MeanField(target, {"rate": factors.Gamma()})


def finite_mixture(values=(-2.1, -1.3, -1.9, 0.4, 1.2, 2.2, 1.7, 2.9), num_parts=3, scale=2.0) -> Target:
    """Assignments of few values to normal components of unit variance, their means and proportions integrated out.

    Means are Normal(0, scale), proportions Dirichlet(1). The first value belongs to component 0, which breaks one of
    the symmetries; the log density is ln p(values, assignments), so that few values can be enumerated.
    """
    values = np.asarray(values, float)
    constant = -0.5 * float(values @ values + len(values) * np.log(2 * np.pi)) - float(gammaln(len(values) + num_parts))

    def log_density(theta):
        parts = jnp.concatenate([jnp.zeros(1, jnp.int32), theta["part"]])
        member = (parts[:, None] == jnp.arange(num_parts)).astype(values.dtype)
        counts, sums = member.sum(0), values @ member
        precision = counts + scale**-2
        log_means = 0.5 * sums**2 / precision - 0.5 * jnp.log(precision * scale**2)
        return constant + jnp.sum(log_means + gammaln(counts + 1.0))

    support = constraints.integer_interval(0, num_parts - 1)
    start = np.arange(1, len(values)) * num_parts // len(values)
    return Target(log_density, {"part": start}, {"part": support}, order=0)


def noisy_or(seed=0, num_causes=10, num_effects=12) -> Target:
    """Hidden causes of observed effects: an active cause fails to bring an effect about with a probability of its own.

    A synthetic network of the kind of QMR-DT (Shwe et al. 1991), with a leak of 0.05 and the effects drawn from it.
    """
    rng = np.random.default_rng(seed)
    linked = rng.random((num_causes, num_effects)) < 0.35
    weights = np.where(linked, rng.uniform(0.5, 3.0, linked.shape), 0.0)  # minus the log probability to fail
    prior = rng.uniform(0.1, 0.4, num_causes)
    active = rng.random(num_causes) < prior
    present = rng.random(num_effects) < 1 - 0.95 * np.exp(-np.matmul(active, weights))
    leak = -np.log(0.95)

    def log_density(theta):
        causes = theta["cause"].astype(weights.dtype)
        fails = leak + causes @ weights
        log_effects = jnp.sum(jnp.where(present, jnp.log(-jnp.expm1(-fails)), -fails))
        return log_effects + jnp.sum(causes * np.log(prior) + (1 - causes) * np.log1p(-prior))

    return Target(log_density, {"cause": np.zeros(num_causes, int)}, {"cause": constraints.boolean}, order=0)
