"""Problems whose ELBO is known exactly: by enumeration, by quadrature or in closed form.

The ELBO of each is a function of the flat parameters that is written down without curvi's factors, estimators or
bijections; gradient and Hessian follow by differentiating it.
"""

import dataclasses
from collections.abc import Callable
from functools import cached_property, lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from numpyro.distributions import constraints
from scipy.optimize import minimize

from curvi import MeanField, MinibatchTarget, Target, factors

_LOG_2PI = float(np.log(2 * np.pi))
_LOG_2PI_E = _LOG_2PI + 1


@dataclasses.dataclass(frozen=True)
class Exact:
    """A target, a family on it at a generic point, and the exact ELBO as a function of the flat parameters."""

    target: Target | MinibatchTarget
    q: MeanField
    elbo: Callable

    @cached_property
    def functions(self):
        return jax.jit(self.elbo), jax.jit(jax.grad(self.elbo)), jax.jit(jax.hessian(self.elbo))

    @cached_property
    def value(self) -> float:
        return float(self.functions[0](self.q.params))

    @cached_property
    def gradient(self) -> np.ndarray:
        return np.asarray(self.functions[1](self.q.params))

    @cached_property
    def hessian(self) -> np.ndarray:
        return np.asarray(self.functions[2](self.q.params))

    @cached_property
    def optimum(self) -> np.ndarray:
        """The parameters at the maximum next to the family's generic point."""
        value, grad, hess = self.functions
        slopes = {"jac": lambda p: -grad(p), "hess": lambda p: -hess(p)}
        found = minimize(lambda p: -value(p), np.asarray(self.q.params), method="trust-exact", **slopes).x
        # The minimiser stops at half the digits; two Newton steps give the rest.
        for _ in range(2):
            found = found - np.linalg.solve(hess(found), grad(found))
        return found

    @cached_property
    def best(self) -> float:
        return float(self.functions[0](self.optimum))

    def gap(self, q: MeanField) -> float:
        """Nats between q and the optimum."""
        return self.best - float(self.functions[0](q.params))


def _at(target, params, chosen=None) -> MeanField:
    q = MeanField(target, chosen)
    return q.replace(jnp.asarray(params, q.params.dtype).reshape(q.params.shape))


# -- discrete: enumeration --------------------------------------------------------------------------------------------


def _enumerated(log_q, log_p):
    """The exact ELBO from ln q of the parameters at every state, and ln p there."""
    return lambda params: jnp.sum(jnp.exp(log_q(params)) * (log_p - log_q(params)))


@lru_cache
def bits() -> Exact:
    """Eight bits with pair interactions: 256 states."""
    rng = np.random.default_rng(0)
    field, pairs = rng.normal(size=8), np.triu(rng.normal(scale=0.7, size=(8, 8)), 1)

    def log_density(theta):
        x = theta["x"].astype(float)
        return field @ x + x @ pairs @ x - 3.0

    states = np.stack(np.meshgrid(*[np.arange(2.0)] * 8, indexing="ij"), -1).reshape(-1, 8)
    log_p = states @ field + np.einsum("si,ij,sj->s", states, pairs, states) - 3.0
    target = Target(log_density, {"x": np.zeros(8, int)}, {"x": constraints.boolean}, order=0)

    def log_q(logits):
        return states @ jax.nn.log_sigmoid(logits) + (1 - states) @ jax.nn.log_sigmoid(-logits)

    return Exact(target, _at(target, rng.normal(scale=0.5, size=8)), _enumerated(log_q, log_p))


@lru_cache
def categories() -> Exact:
    """Two three-way latents and a four-way one that counts from 1, all pairs interacting: 36 states, 7 parameters."""
    rng = np.random.default_rng(1)
    tables = rng.normal(size=(3, 3)), rng.normal(size=(3, 4)), rng.normal(size=(3, 4))

    def log_p_of(first, second, third):
        ab, ac, bc = (jnp.asarray(table) for table in tables)
        return ab[first, second] + ac[first, third] + bc[second, third] - 2.0

    target = Target(
        lambda theta: log_p_of(theta["pair"][0], theta["pair"][1], theta["single"] - 1),
        {"pair": np.zeros(2, int), "single": np.array(2)},
        {"pair": constraints.integer_interval(0, 2), "single": constraints.integer_interval(1, 4)},
        order=0,
    )
    first, second, third = (axis.ravel() for axis in np.meshgrid(range(3), range(3), range(4), indexing="ij"))
    log_p = log_p_of(first, second, third)

    def log_q(params):
        logits = [jnp.concatenate([jnp.zeros(1), part]) for part in jnp.split(params, [2, 4])]
        tables = [jax.nn.log_softmax(part) for part in logits]
        return tables[0][first] + tables[1][second] + tables[2][third]

    return Exact(target, _at(target, rng.normal(scale=0.7, size=7)), _enumerated(log_q, log_p))


# -- continuous: closed forms -----------------------------------------------------------------------------------------

PRECISION = np.array([[2.0, 0.8, -0.3], [0.8, 1.0, 0.2], [-0.3, 0.2, 0.5]])
CENTRE = np.array([1.0, -2.0, 0.5])


def gaussian_elbo(precision, centre, constant=0.0):
    """The ELBO of independent normals against -(x - centre)' precision (x - centre) / 2 + constant."""
    size = len(centre)

    def elbo(params):
        mu, log_sigma = params.reshape(size, 2).T
        quadratic = (mu - centre) @ precision @ (mu - centre) + jnp.diag(precision) @ jnp.exp(2 * log_sigma)
        return constant - quadratic / 2 + log_sigma.sum() + size * _LOG_2PI_E / 2

    return elbo


def gaussian_target(order=2, constant=0.0, dtype=float, start=0.0) -> Target:
    precision, centre = PRECISION.astype(dtype), CENTRE.astype(dtype)

    def log_density(theta):
        away = theta["x"] - centre
        return constant - away @ (precision @ away) / 2

    return Target(log_density, {"x": np.full(3, start, dtype)}, order=order)


@lru_cache
def gaussian(order=2, constant=0.0) -> Exact:
    """A correlated Gaussian in three dimensions, whose best factorised normal has the precisions of its diagonal."""
    target = gaussian_target(order, constant)
    params = [[0.5, -0.3], [-1.4, 0.2], [0.1, -0.1]]
    return Exact(target, _at(target, params), gaussian_elbo(PRECISION, CENTRE, constant))


@lru_cache
def precision_and_location() -> Exact:
    """A positive latent and a real one that interact, ln p = 2 ln x - x (1 + y^2 / 2) + y: not quadratic, closed form.

    x is exp of a normal, so that the Jacobian adds ln x.
    """

    def log_density(theta):
        x, y = theta["x"], theta["y"]
        return 2 * jnp.log(x) - x * (1 + y**2 / 2) + y

    target = Target(log_density, {"x": np.array(1.0), "y": np.array(0.0)}, {"x": constraints.positive})

    def elbo(params):
        a, log_s, b, log_t = params
        mean_x, square_y = jnp.exp(a + jnp.exp(2 * log_s) / 2), b**2 + jnp.exp(2 * log_t)
        return 3 * a - mean_x * (1 + square_y / 2) + b + log_s + log_t + _LOG_2PI_E

    return Exact(target, _at(target, [0.4, -0.9, 0.5, -0.6]), elbo)


# -- continuous: quadrature -------------------------------------------------------------------------------------------


@lru_cache
def gamma_and_beta() -> Exact:
    """A Gamma and a Beta factor on an interacting pair, by the trapezoidal rule in ln x and logit y."""

    def log_p_of(x, y):
        return 1.5 * jnp.log(x) - 2 * x + 0.5 * jnp.log(y) + 2 * jnp.log1p(-y) - 3 * x * y

    target = Target(
        lambda theta: log_p_of(theta["x"], theta["y"]),
        {"x": np.array(1.0), "y": np.array(0.4)},
        {"x": constraints.positive, "y": constraints.unit_interval},
    )
    t, u = np.linspace(-14, 4, 241), np.linspace(-14, 14, 241)
    x, y = np.exp(t), 1 / (1 + np.exp(-u))
    cells = (t[1] - t[0]) * (u[1] - u[0])
    log_p = log_p_of(x[:, None], y[None, :])

    def elbo(params):
        a, b, c, d = jnp.exp(params)
        log_x = a * jnp.log(b) - gammaln(a) + (a - 1) * t - b * x
        log_y = gammaln(c + d) - gammaln(c) - gammaln(d) + (c - 1) * jnp.log(y) + (d - 1) * jnp.log1p(-y)
        log_q = log_x[:, None] + log_y[None, :]
        weights = jnp.exp(log_q) * x[:, None] * (y * (1 - y))[None, :] * cells
        return jnp.sum(weights * (log_p - log_q))

    q = _at(target, np.log([3.0, 2.5, 2.0, 3.0]), {"x": factors.Gamma(), "y": factors.Beta()})
    return Exact(target, q, elbo)


@lru_cache
def logistic() -> Exact:
    """A skewed density in one dimension, ln p = ln sigmoid(3 x) - x^2 / 4, by Gauss-Hermite quadrature."""
    target = Target(lambda theta: jax.nn.log_sigmoid(3 * theta["x"]) - theta["x"] ** 2 / 4, {"x": np.array(0.0)})
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()

    def elbo(params):
        x = params[0] + jnp.exp(params[1]) * nodes
        return weights @ (jax.nn.log_sigmoid(3 * x) - x**2 / 4) + params[1] + _LOG_2PI_E / 2

    return Exact(target, _at(target, [0.5, -0.5]), elbo)


# -- minibatches ------------------------------------------------------------------------------------------------------


@lru_cache
def regression(batch_size=3, order=2, likelihood_factor=1.0) -> Exact:
    """Linear regression on twelve rows in batches: the exact ELBO is that of all rows.

    A `likelihood_factor` other than one goes into the rows of the target and not into the exact ELBO.
    """
    rng = np.random.default_rng(2)
    inputs = rng.normal(size=(12, 2))
    outputs = inputs @ np.array([1.0, -0.5]) + rng.normal(scale=0.5, size=12)

    def row_density(theta, row):
        error = row["output"] - row["input"] @ theta["w"]
        return -likelihood_factor * error**2

    target = MinibatchTarget(
        lambda theta: -jnp.sum(theta["w"] ** 2) / 2,
        row_density,
        {"input": inputs, "output": outputs},
        batch_size,
        {"w": np.zeros(2)},
        order=order,
    )
    precision = np.eye(2) + 2 * inputs.T @ inputs
    centre = np.linalg.solve(precision, 2 * inputs.T @ outputs)
    constant = centre @ precision @ centre / 2 - outputs @ outputs
    q = _at(target, [[0.6, -1.5], [-0.1, -1.2]])
    return Exact(target, q, gaussian_elbo(precision, centre, constant))
