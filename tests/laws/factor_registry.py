"""The factors over which their laws run: a new factor is a new row.

A row gives several parameter values at once, scipy's distributions with the same parameters, and a rule of
quadrature (or the enumeration of the support), whose weights come from scipy alone. Expectations under q are
then sums, exact to rounding.
"""

import dataclasses
from functools import cached_property

import jax.numpy as jnp
import numpy as np
from scipy import stats
from scipy.special import gammaln

from curvi import factors
from curvi.family import Factor


@dataclasses.dataclass(frozen=True)
class Row:
    """One kind of factor at n parameter values."""

    name: str
    factor: Factor
    values: list[list[float]]
    oracles: list
    """scipy's distributions, one per parameter value."""
    rule: list[tuple[np.ndarray, np.ndarray]]
    """Nodes (m, *event) and weights (m,) per parameter value; the weights sum to one."""
    tolerance: float = 1e-9
    """Accuracy of expectations by the rule, relative to the size of their terms."""

    @cached_property
    def params(self):
        return jnp.asarray(self.values)

    @cached_property
    def nodes(self):
        return jnp.asarray(np.stack([nodes for nodes, _ in self.rule], axis=1))

    @cached_property
    def weights(self):
        return np.stack([weights for _, weights in self.rule], axis=1)

    @property
    def discrete(self) -> bool:
        return jnp.issubdtype(self.nodes.dtype, jnp.integer)


def _trapezoid(oracle, chart, slope, low, high, num_nodes=801):
    """Nodes and weights of the trapezoidal rule in t, x = chart(t): exponentially accurate when smooth."""
    t = np.linspace(low, high, num_nodes)
    x = chart(t)
    return x, oracle.pdf(x) * slope(t) * (t[1] - t[0])


def _normal_row():
    values = [[0.0, 0.0], [3.0, -2.0], [-50.0, 2.5]]
    oracles = [stats.norm(mu, np.exp(s)) for mu, s in values]
    rule = [
        _trapezoid(o, lambda t, mu=mu, s=s: mu + np.exp(s) * t, lambda t, s=s: np.exp(s), -14, 14)
        for o, (mu, s) in zip(oracles, values)
    ]
    return Row("Normal", factors.Normal(), values, oracles, rule)


def _log_normal_row():
    values = [[0.0, 0.0], [2.0, -2.0], [-1.0, 0.5]]
    oracles = [stats.lognorm(np.exp(s), scale=np.exp(mu)) for mu, s in values]
    rule = []
    for o, (mu, s) in zip(oracles, values):
        chart = lambda t, mu=mu, s=s: np.exp(mu + np.exp(s) * t)  # noqa: E731
        rule.append(_trapezoid(o, chart, lambda t, s=s, chart=chart: np.exp(s) * chart(t), -14, 14))
    return Row("LogNormal", factors.LogNormal(), values, oracles, rule)


def _student_t_row():
    values = [[0.0, 0.0, 0.0], [2.0, -1.0, 1.0], [-5.0, 1.5, 3.0], [0.5, 0.0, 3.5]]
    oracles = [stats.t(4 + np.exp(d), mu, np.exp(s)) for mu, s, d in values]
    rule = [
        _trapezoid(
            o,
            lambda t, mu=mu, s=s: mu + np.exp(s) * np.sinh(t),
            lambda t, s=s: np.exp(s) * np.cosh(t),
            -12,
            12,
        )
        for o, (mu, s, _) in zip(oracles, values)
    ]
    return Row("StudentT", factors.StudentT(), values, oracles, rule)


class _SinhArcsinh(stats.rv_continuous):
    """x = mu + sigma (S - E[S]) / sd(S), S = sinh((asinh(z) + eps) / delta), by its quantiles and its density."""

    def __init__(self, mu, log_scale, skew, tail):
        super().__init__()
        self._eps, self._delta = 2 * np.tanh(skew / 2), np.exp(np.tanh(tail))
        z = np.linspace(-12, 12, 4001)
        weights = stats.norm.pdf(z) * (z[1] - z[0])
        drawn = self._drawn(z)
        centre = weights @ drawn
        spread = np.sqrt(weights @ (drawn - centre) ** 2)
        self._scale = np.exp(log_scale) / spread
        self._shift = mu - self._scale * centre

    def _drawn(self, z):
        return np.sinh((np.arcsinh(z) + self._eps) / self._delta)

    def _noise(self, x):
        return np.sinh(self._delta * np.arcsinh((x - self._shift) / self._scale) - self._eps)

    def _ppf(self, q, *_):
        return self._shift + self._scale * self._drawn(stats.norm.ppf(q))

    def _cdf(self, x, *_):
        return stats.norm.cdf(self._noise(x))

    def _pdf(self, x, *_):
        s = (x - self._shift) / self._scale
        slope = np.cosh(self._delta * np.arcsinh(s) - self._eps) * self._delta / np.sqrt(1 + s**2) / self._scale
        return stats.norm.pdf(self._noise(x)) * slope

    def _over(self, function):
        z = np.linspace(-12, 12, 4001)
        return (stats.norm.pdf(z) * (z[1] - z[0])) @ function(self._shift + self._scale * self._drawn(z))

    def mean(self):
        return self._over(lambda x: x)

    def var(self):
        return self._over(lambda x: (x - self.mean()) ** 2)

    def entropy(self):
        return -self._over(lambda x: np.log(self._pdf(x)))


def _sinh_arcsinh_row():
    values = [[1.0, 0.0, 0.0, 0.0], [2.0, -1.0, 0.7, -0.3], [-5.0, 1.5, -0.4, 0.6], [0.5, 0.0, 1.5, -0.8]]
    oracles = [_SinhArcsinh(*value) for value in values]
    z = np.linspace(-9, 9, 801)
    weights = stats.norm.pdf(z) * (z[1] - z[0])
    rule = [(o._shift + o._scale * o._drawn(z), weights) for o in oracles]
    return Row("SinhArcsinh", factors.SinhArcsinh(), values, oracles, rule)


def _gamma_row():
    values = [[0.0, 0.0], [np.log(0.7), 1.0], [np.log(30.0), -2.0]]
    oracles = [stats.gamma(np.exp(a), scale=np.exp(-b)) for a, b in values]
    rule = [
        _trapezoid(o, lambda t, b=b: np.exp(t - b), lambda t, b=b: np.exp(t - b), -50, 6)
        for o, (_, b) in zip(oracles, values)
    ]
    return Row("Gamma", factors.Gamma(), values, oracles, rule)


def _sigmoid(t):
    return 1 / (1 + np.exp(-t))


def _beta_row():
    values = [[np.log(2.0), np.log(3.0)], [np.log(0.8), np.log(5.0)], [np.log(40.0), np.log(12.0)]]
    oracles = [stats.beta(np.exp(a), np.exp(b)) for a, b in values]
    rule = [_trapezoid(o, _sigmoid, lambda t: _sigmoid(t) * _sigmoid(-t), -45, 16) for o in oracles]
    # 1 - x keeps no digits as x nears 1: the right end costs accuracy.
    return Row("Beta", factors.Beta(), values, oracles, rule, tolerance=1e-7)


def _dirichlet_row():
    values = np.log([[2.0, 3.5, 2.5], [8.0, 3.0, 4.0]]).tolist()
    oracles = [stats.dirichlet(np.exp(a)) for a in values]
    t = np.linspace(-13, 13, 121)
    first, second = (part.ravel() for part in np.meshgrid(t, t, indexing="ij"))
    parts = [_sigmoid(first), _sigmoid(-first) * _sigmoid(second), _sigmoid(-first) * _sigmoid(-second)]
    nodes = np.stack(parts, -1)
    slope = _sigmoid(first) * _sigmoid(-first) ** 2 * _sigmoid(second) * _sigmoid(-second)
    rule = []
    for o in oracles:
        density = np.exp(np.log(nodes) @ (o.alpha - 1) + _dirichlet_constant(o.alpha))
        rule.append((nodes, density * slope * (t[1] - t[0]) ** 2))
    return Row("Dirichlet", factors.Dirichlet(3), values, oracles, rule, tolerance=1e-7)


def _dirichlet_constant(alpha):
    return gammaln(alpha.sum()) - gammaln(alpha).sum()


def _bernoulli_row():
    values = [[0.0], [-3.0], [1.2]]
    oracles = [stats.bernoulli(_sigmoid(logit)) for (logit,) in values]
    rule = [(np.arange(2), o.pmf(np.arange(2))) for o in oracles]
    return Row("Bernoulli", factors.Bernoulli(), values, oracles, rule)


def _categorical_row():
    lowest, values = 2, [[0.0, 0.0, 0.0], [1.0, -2.0, 0.5], [-4.0, 2.0, 1.0]]
    support = lowest + np.arange(4)
    oracles = []
    for logits in values:
        p = np.exp([0.0, *logits])
        oracles.append(stats.rv_discrete(values=(support, p / p.sum())))
    rule = [(support, o.pmf(support)) for o in oracles]
    return Row("Categorical", factors.Categorical(4, lowest), values, oracles, rule)


def _poisson_row():
    values = np.log([[0.05], [3.0], [29.0], [31.0], [200.0]]).tolist()
    oracles = [stats.poisson(np.exp(log_rate)) for (log_rate,) in values]
    counts = np.arange(500)
    return Row("Poisson", factors.Poisson(), values, oracles, [(counts, o.pmf(counts)) for o in oracles])


ROWS = [
    _normal_row(),
    _log_normal_row(),
    _student_t_row(),
    _sinh_arcsinh_row(),
    _gamma_row(),
    _beta_row(),
    _dirichlet_row(),
    _bernoulli_row(),
    _categorical_row(),
    _poisson_row(),
]
