"""Models that no default of curvi was chosen on, each with its exact ELBO.

They were written down before anything was run on them, and stay as they are whatever comes out.
"""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln
from numpyro.distributions import constraints

import reference_models as examples
from curvi import MeanField, Target, factors
from reference_models.exact import enumerated_elbo

# Velocities of galaxies in thousands of km/s, each tenth of the 82 of K. Roeder, "Density estimation with confidence
# sets exemplified by superclusters and voids in the galaxies", JASA 85 (1990), 617-624.
GALAXIES = np.array([9.172, 18.552, 19.529, 19.989, 20.821, 22.185, 22.914, 24.129, 32.789])

# Failures of ten pumps of a power plant and thousands of hours of operation: D. P. Gaver and I. G. O'Muircheartaigh,
# "Robust empirical Bayes analyses of event rates", Technometrics 29 (1987), 1-15.
PUMP_FAILURES = np.array([5, 1, 5, 14, 3, 19, 1, 1, 4, 22])
PUMP_HOURS = np.array([94.320, 15.720, 62.880, 125.760, 5.240, 31.440, 1.048, 1.048, 2.096, 10.480])


def models() -> dict:
    """Target, start and exact ELBO by name."""
    found = {"Ising": ising(), "sigmoid network": sigmoid_network(), "wine": wine(), "galaxies": galaxies()}
    found = {name: (target, MeanField(target), enumerated_elbo(target)) for name, target in found.items()}
    return {**found, "pumps": (*pumps(), pumps_elbo)}


def ising(seed=0, size=10) -> Target:
    """Spins with normal couplings between all pairs (Sherrington and Kirkpatrick 1975) and normal fields."""
    rng = np.random.default_rng(seed)
    couplings = np.triu(rng.normal(size=(size, size)) / np.sqrt(size), 1)
    fields = rng.normal(size=size) / 2

    def log_density(theta):
        spins = 2.0 * theta["spin"] - 1
        return spins @ couplings @ spins + fields @ spins

    return Target(log_density, {"spin": np.zeros(size, int)}, {"spin": constraints.boolean}, order=0)


def sigmoid_network(seed=0, num_hidden=10, num_seen=20) -> Target:
    """Hidden bits of a sigmoid belief network (Neal 1992) with normal weights, given one draw of its visible bits."""
    rng = np.random.default_rng(seed)
    weights, bias = rng.normal(size=(num_hidden, num_seen)), rng.normal(size=num_seen)
    prior = rng.normal(size=num_hidden)
    hidden = rng.random(num_hidden) < 1 / (1 + np.exp(-prior))
    sign = np.where(rng.random(num_seen) < 1 / (1 + np.exp(-(hidden @ weights + bias))), 1.0, -1.0)

    def log_density(theta):
        bits = theta["hidden"].astype(weights.dtype)
        log_prior = jnp.sum(bits * prior) - np.sum(np.logaddexp(0, prior))
        return log_prior - jnp.sum(jnp.logaddexp(0, -sign * (bits @ weights + bias)))

    return Target(log_density, {"hidden": np.zeros(num_hidden, int)}, {"hidden": constraints.boolean}, order=0)


def wine() -> Target:
    """Which of twelve measurements of 178 Italian wines say how much alcohol they hold: 4,096 states."""
    from sklearn.datasets import load_wine

    table = np.asarray(load_wine(return_X_y=True)[0])
    return examples.variable_selection(table[:, 1:], table[:, 0])


def galaxies() -> Target:
    """Nine velocities, eight of them assigned to three normal components: 6,561 states."""
    return examples.finite_mixture(GALAXIES - 20, scale=5.0)


_SHAPE, _PRIOR = 1.802, (0.01, 1.0)  # of Gelfand and Smith (1990)


def pumps() -> tuple[Target, MeanField]:
    """Pumps that fail at rates of their own, rate_i ~ Gamma(1.802, beta), with beta ~ Gamma(0.01, 1): eleven Gammas.

    The conditional distributions are Gammas, their product is not the posterior.
    """

    def log_density(theta):
        rates, beta = theta["rate"], theta["beta"]
        log_prior = _SHAPE * jnp.log(beta) - gammaln(_SHAPE) + (_SHAPE - 1) * jnp.log(rates) - beta * rates
        log_failures = PUMP_FAILURES * jnp.log(rates * PUMP_HOURS) - rates * PUMP_HOURS - gammaln(PUMP_FAILURES + 1.0)
        shape, rate = _PRIOR
        log_beta = shape * np.log(rate) - gammaln(shape) + (shape - 1) * jnp.log(beta) - rate * beta
        return jnp.sum(log_prior + log_failures) + log_beta

    target = Target(
        log_density,
        {"rate": np.ones(len(PUMP_HOURS)), "beta": np.array(1.0)},
        {"rate": constraints.positive, "beta": constraints.positive},
        order=0,
    )
    start = MeanField(target, {"rate": factors.Gamma(), "beta": factors.Gamma()})
    # A q of no width: the ELBO less the entropy is the log density itself, so the two must be of the same model.
    point = jnp.linspace(0.5, 1.5, len(PUMP_HOURS) + 1)
    narrow = jnp.stack([jnp.full_like(point, 16.0), 16.0 - jnp.log(point)], -1).reshape(-1)
    known = target.full()({"rate": point[:-1], "beta": point[-1]})
    assert abs(pumps_elbo(narrow) - start.replace(narrow).entropy() - known) < 1e-3
    return target, start


def pumps_elbo(params):
    """The exact ELBO of `pumps` in the flat parameters: (log shape, log rate) of each Gamma, beta last."""
    shape, rate = jnp.exp(params).reshape(-1, 2).T
    mean, mean_log = shape / rate, digamma(shape) - jnp.log(rate)
    rates, log_rates, beta, log_beta = mean[:-1], mean_log[:-1], mean[-1], mean_log[-1]
    log_joint = jnp.sum(_SHAPE * log_beta - gammaln(_SHAPE) + (_SHAPE - 1) * log_rates - beta * rates)
    log_joint += jnp.sum(PUMP_FAILURES * (log_rates + np.log(PUMP_HOURS)) - rates * PUMP_HOURS)
    log_joint += -jnp.sum(gammaln(PUMP_FAILURES + 1.0)) + _PRIOR[0] * np.log(_PRIOR[1]) - gammaln(_PRIOR[0])
    log_joint += (_PRIOR[0] - 1) * log_beta - _PRIOR[1] * beta
    return log_joint + jnp.sum(shape - jnp.log(rate) + gammaln(shape) + (1 - shape) * digamma(shape))
