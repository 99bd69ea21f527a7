"""Targets that are broken on purpose: what may be said of them, and that nothing else is said.

Each row gives a log density on the plane, the outcomes that are acceptable, and the optimum where there is one. What a
fit must never do is to call a wrong answer converged, to crash, or not to end.
"""

import dataclasses
from collections.abc import Callable
from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints
from scipy.optimize import brentq, minimize, minimize_scalar

from curvi import Outcome, Target, fit

STEPS = 300

CONVERGED = {Outcome.CONVERGED}
NEVER = set(Outcome) - {Outcome.CONVERGED, Outcome.INTERRUPTED}  # anything but converged
LOST = {Outcome.NOT_A_MAXIMUM, Outcome.MAX_STEPS}
ANY = set(Outcome) - {Outcome.INTERRUPTED}
NO_START = set()  # ValueError: no finite start exists


@dataclasses.dataclass(frozen=True)
class Row:
    """A log density on the plane and what may be said of it.

    `mean` and `sd` are those of the best factorised normal: reached where the fit has converged, and on any outcome if
    `reached` is set; `elbo` is the best ELBO, where only that is known. `start` is the mean of the start.
    """

    log_density: Callable
    outcomes: set
    mean: tuple | None = None
    sd: tuple | None = None
    reached: bool = False
    elbo: float | None = None
    start: tuple = (0.0, 0.0)
    reach: float = 6.0  # in sds of q, of the oracle by quadrature


def _normal(x):
    return -jnp.sum(x**2) / 2


def _where(good, value, otherwise):
    """A density with a region where it is something else; the derivatives of the regions do not mix."""
    return jnp.where(good, value, otherwise)


@jax.custom_jvp
def _wrong_curvature(x):
    return -jnp.sum(x**2) / 2


@_wrong_curvature.defjvp
def _(primals, tangents):
    (x,), (along,) = primals, tangents
    return _wrong_curvature(x), -_thousandfold(x) @ along


@jax.custom_jvp
def _thousandfold(x):
    return x


@_thousandfold.defjvp
def _(primals, tangents):
    return primals[0], 1000 * tangents[0]


def _smallest(neg_elbo, low, high):
    found = minimize_scalar(neg_elbo, bounds=(low, high), method="bounded", options={"xatol": 1e-9})
    return float(found.x)


_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(200)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def _sd_of(log_density):
    """sd of the best normal around 0 for a symmetric density in one dimension, by quadrature."""
    return _smallest(lambda s: -(_WEIGHTS @ log_density(np.exp(s) * _NODES) + s), -5, 5)


def _centred(log_density):
    sd = float(np.exp(_sd_of(log_density)))
    return {"mean": (0.0, 0.0), "sd": (sd, sd)}


def _funnel(spread):
    """x1 ~ N(0, spread^2), x0 ~ N(0, exp(x1)). The best factorised normal has mean 0 and
    Var x1 = v = 1 / (1 / spread^2 + 1/2), Var x0 = exp(-v/2).
    """
    v = 1 / (1 / spread**2 + 0.5)
    return Row(
        lambda x: -(x[1] ** 2) / (2 * spread**2) - x[1] / 2 - jnp.exp(-x[1]) * x[0] ** 2 / 2,
        CONVERGED,
        (0.0, 0.0),
        (np.exp(-v / 4), np.sqrt(v)),
    )


def _gaussian(mean, sd, outcomes=frozenset(CONVERGED), **more):
    mean, sd = np.asarray(mean, float), np.asarray(sd, float)
    return Row(lambda x: -jnp.sum(((x - mean) / sd) ** 2) / 2, set(outcomes), tuple(mean), tuple(sd), True, **more)


def _saddle_elbo():
    """The maximum of 5 m^2 - (m^4 + 6 m^2 v + 3 v^2) / 2 + ln v + ln(2 pi e), with both means m and variances v."""

    def neg_elbo(m):
        v = (-(m**2) + np.sqrt(m**4 + 4 / 3)) / 2  # d/dv: 3 m^2 + 3 v = 1 / v
        return -(5 * m**2 - (m**4 + 6 * m**2 * v + 3 * v**2) / 2 + np.log(v) + np.log(2 * np.pi * np.e))

    return -neg_elbo(_smallest(neg_elbo, 1.0, 4.0))


def _roof_sd():
    """sd^2 = 1 + 2 sqrt(2 / pi) sd."""
    slope = np.sqrt(2 / np.pi)
    return float(slope + np.sqrt(slope**2 + 1))


_LAPLACE_SD = float(np.sqrt(np.pi / 2))
STANDARD = {"mean": (0.0, 0.0), "sd": (1.0, 1.0)}
LAPLACE = {"mean": (0.0, 0.0), "sd": (_LAPLACE_SD, _LAPLACE_SD)}
S_BOTH = float(brentq(lambda s: -np.sqrt(2 / np.pi) * s - s**2 + 1, 0.01, 3))

# E[-ln|e|] for standard normal e, with the entropy of two normals less 1/2.
_LIMIT = (np.euler_gamma + np.log(2)) / 2 + np.log(2 * np.pi * np.e) - 0.5

ROWS = {
    # not a number, or infinite
    "nan everywhere": Row(lambda x: x[0] * jnp.nan, NO_START),
    "-inf everywhere": Row(lambda x: x[0] * 0 - jnp.inf, NO_START),
    "+inf everywhere": Row(lambda x: x[0] * 0 + jnp.inf, NO_START),
    "nan in a half plane": Row(lambda x: _where(x[0] < 1, _normal(x), jnp.nan), {Outcome.NON_FINITE}),
    "-inf in a half plane": Row(lambda x: _where(x[0] < 1, _normal(x), -jnp.inf), {Outcome.NON_FINITE}),
    "+inf in a half plane": Row(lambda x: _where(x[0] < 1, _normal(x), jnp.inf), {Outcome.NON_FINITE}),
    "-inf at two sds": Row(lambda x: _where(x[0] < 2, _normal(x), -jnp.inf), {Outcome.NON_FINITE}),
    "nan out of reach": Row(lambda x: _where(x[0] < 9, _normal(x), jnp.nan), CONVERGED, **STANDARD),
    "a hole at the start": Row(lambda x: _where(x @ x > 1, _normal(x), -jnp.inf), {Outcome.NON_FINITE}),
    "a box without supports": Row(
        lambda x: _where(jnp.max(jnp.abs(x)) < 1, 0.0 * x[0], -jnp.inf), {Outcome.NON_FINITE}
    ),
    "logarithm of a negative": Row(
        lambda x: 2 * jnp.log(x[0]) - x[0] - x[1] ** 2 / 2, {Outcome.NON_FINITE}, start=(1.0, 0.0)
    ),
    "nan gradients by where": Row(lambda x: _where(x[0] > 0, jnp.sqrt(x[0]), 0.0) + _normal(x), {Outcome.NON_FINITE}),
    "0 / 0 at zero": Row(lambda x: jnp.sin(x[0]) / x[0] + _normal(x), ANY),
    "infinite at init": Row(lambda x: -jnp.log(jnp.abs(x[0])) + _normal(x), ANY, elbo=_LIMIT),
    # Its ELBO is minus infinity for every q, from draws that no fit will ever see: judged as far as draws reach.
    "overflow": Row(lambda x: -jnp.exp(jnp.exp(3 * x[0])) + _normal(x), ANY, reach=3.3),
    "exploding": Row(lambda x: jnp.exp(x[0]) - x[1] ** 2 / 2, NEVER),
    # no maximum
    "constant": Row(lambda x: 0 * x[0] + 3.0, LOST),
    "linear": Row(lambda x: x[0] - x[1], LOST),
    "convex": Row(lambda x: x @ x, LOST),
    "a flat direction": Row(lambda x: -(x[0] ** 2) / 2, LOST),
    "collinear": Row(lambda x: -((x[0] + x[1] - 1) ** 2) / 2, LOST),
    "collinear, standardised": Row(lambda x: -((x[0] - x[1]) ** 2) / 2 - (x[0] - x[1] - 1) ** 4 / 4, LOST),
    # The ELBO rises to a limit as the sd grows: to be within the tolerance of it is to have converged.
    "improper tails": Row(lambda x: -jnp.log1p(x[0] ** 2) / 2 - x[1] ** 2 / 2, ANY, elbo=_LIMIT),
    "tails too thin to be proper": Row(lambda x: -jnp.log1p(x[0] ** 2) / 4 - x[1] ** 2 / 2, NEVER),
    "separable": Row(lambda x: jax.nn.log_sigmoid(x[0]) - x[1] ** 2 / 2, LOST),
    "a climb to infinity": Row(lambda x: -jnp.exp(-x[0]) - x[1] ** 2 / 2, LOST),
    # derivatives that are not those of the values
    "stopped": Row(lambda x: jax.lax.stop_gradient(_normal(x)), {Outcome.DISAGREEMENT}),
    "half stopped": Row(lambda x: -jnp.sum(x * jax.lax.stop_gradient(x)) / 2, {Outcome.DISAGREEMENT}),
    "floor": Row(lambda x: -jnp.sum(jnp.floor(x) ** 2) / 2, {Outcome.DISAGREEMENT}),
    "rounded": Row(lambda x: -jnp.sum(jnp.round(4 * x) ** 2) / 32, {Outcome.DISAGREEMENT}),
    "rounded latent": Row(lambda x: _normal(jnp.round(x)) - 0.05 * x @ x, NEVER),
    "jump": Row(lambda x: _normal(x) + _where(x[0] > 0.5, 3.0, 0.0), {Outcome.DISAGREEMENT}),
    "jump downwards": Row(lambda x: _normal(x) - _where(x[0] > 1, 5.0, 0.0), NEVER),
    "integers": Row(lambda x: _normal(x) + x[0].astype(int) * 1.0, {Outcome.DISAGREEMENT}),
    # Second derivatives are never asked for: gradients and their differences are right.
    "a thousandfold curvature": Row(_wrong_curvature, CONVERGED, **STANDARD),
    # kinks: derivatives exist almost everywhere, second ones lack a part
    "Laplace": Row(lambda x: -jnp.sum(jnp.abs(x)), ANY, **LAPLACE, reached=True),
    "Laplace off the start": Row(lambda x: -jnp.sum(jnp.abs(x - 1.7)), ANY, (1.7, 1.7), LAPLACE["sd"], True),
    "medians": Row(lambda x: -jnp.sum(jnp.abs(x[:, None] - jnp.arange(5.0) ** 2)), ANY),
    "Laplace and normal": Row(lambda x: -jnp.sum(jnp.abs(x)) + _normal(x), ANY, (0.0, 0.0), (S_BOTH, S_BOTH), True),
    "roof": Row(lambda x: _normal(x) + 2 * jnp.abs(x[0]), ANY, (0.0, 0.0), (_roof_sd(), 1.0), True),
    "norm": Row(lambda x: -jnp.sqrt(x @ x), ANY),
    # hard but honest
    "mild funnel": _funnel(1.0),
    "funnel": _funnel(3.0),
    "steep funnel": _funnel(10.0),
    "scales 1e8 and 1e-8": _gaussian((0, 0), (1e8, 1e-8)),
    "scales 1e-8": _gaussian((1, -2), (1e-8, 1e-8)),
    "scales 1e8": _gaussian((3, 0), (1e8, 1e8)),
    "far": _gaussian((1e6, -1e6), (1, 1)),
    "far and narrow": _gaussian((1e6, 0), (1e-3, 1)),
    "farther": _gaussian((1e12, 0), (1, 1), ANY),
    "a density of 1e-12": _gaussian((0, 0), (1e6, 1e6)),
    "a constant of 1e10": Row(lambda x: _normal(x - 1) + 1e10, CONVERGED | {Outcome.PRECISION}, (1, 1), (1, 1), True),
    "a constant of 1e14": Row(lambda x: _normal(x - 1) + 1e14, ANY, (1, 1), (1, 1)),
    "Cauchy": Row(lambda x: -jnp.sum(jnp.log1p(x**2)), CONVERGED, **_centred(lambda x: -np.log1p(x**2))),
    "far Cauchy": Row(
        lambda x: -jnp.sum(jnp.log1p((x - 50) ** 2)), ANY, (50, 50), _centred(lambda x: -np.log1p(x**2))["sd"]
    ),
    "quartic": Row(lambda x: -jnp.sum(x**4), CONVERGED, **_centred(lambda x: -(x**4))),
    "soft box": Row(
        lambda x: -jnp.sum(jnp.logaddexp(0.0, 10 * (x**2 - 25))),
        CONVERGED | {Outcome.NOISE_LIMIT},
        **_centred(lambda x: -np.logaddexp(0.0, 10 * (x**2 - 25))),
    ),
    "two modes": Row(lambda x: jnp.logaddexp(_normal(x - 4), _normal(x + 4)), ANY, start=(1.0, 0.5)),
    "double well": Row(lambda x: -jnp.sum((x**2 - 4) ** 2), ANY, start=(0.5, -0.5)),
    # By symmetry the gradient of the means is zero at the start. Two maxima, at (m, m) and (-m, -m).
    "saddle at the start": Row(lambda x: 5 * x[0] * x[1] - jnp.sum(x**4) / 4, CONVERGED, elbo=_saddle_elbo()),
    "banana": Row(lambda x: -(x[0] ** 2) / 2 - 50 * (x[1] - x[0] ** 2) ** 2, CONVERGED),
    "ripples": Row(lambda x: _normal(x) + jnp.cos(300 * x[0]), ANY, **STANDARD),
    "nearly collinear": Row(lambda x: -((x[0] + x[1] - 1) ** 2) / 2 - 1e-6 * x @ x / 2, CONVERGED),
}

# One target with all rows as branches compiles once; the index of the row and the start are data.


@lru_cache
def switchboard():
    index = jnp.asarray(0)
    branches = [lambda x, row=row: jnp.asarray(row.log_density(x), x.dtype) for row in ROWS.values()]
    return Target(lambda theta: jax.lax.switch(index, branches, theta["x"]), {"x": np.zeros(2)})


def target_of(name) -> Target:
    where = lambda t: (t.function.consts[0], t.init)  # noqa: E731
    start = {"x": jnp.asarray(ROWS[name].start, float)}
    return eqx.tree_at(where, switchboard(), (jnp.asarray(list(ROWS).index(name)), start))


def check(row, found):
    assert found.outcome in row.outcomes
    assert len(found.history) <= STEPS
    # A verdict never comes with numbers that contradict it.
    if found.converged:
        assert np.isfinite(found.elbo) and found.remaining_gain + 2 * found.remaining_gain_se <= 0.05
    if found.outcome in (Outcome.NOT_A_MAXIMUM, Outcome.NON_FINITE):
        assert not np.isfinite(found.remaining_gain)
    # Trouble has a name.
    assert found.converged or found.suspects
    if row.sd is not None and (row.reached or found.converged):
        assert gap(row, found.q) < 0.1
    if row.elbo is not None and found.converged:
        assert found.elbo > row.elbo - 0.1 - 3 * found.elbo_se
    if found.converged and row.log_density is not None and row.sd is None and row.elbo is None:
        assert missed(row, found.q) < 0.1


def gap(row, q) -> float:
    """KL divergence from the best factorised normal: what is lost at most where the density is about quadratic."""
    mu, log_sigma = np.asarray(q.params, float).reshape(-1, 2).T
    ratio = np.exp(2 * log_sigma) / np.square(row.sd)
    return float(np.sum(ratio - 1 - np.log(ratio) + np.square((mu - row.mean) / row.sd)) / 2)


def grid(reach: float):
    """Gauss-Hermite nodes and weights of the plane, as far as `reach` standard deviations."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    nodes, weights = nodes[np.abs(nodes) < reach], weights[np.abs(nodes) < reach]
    points = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    return jnp.asarray(points), jnp.asarray(np.outer(weights, weights).ravel() / weights.sum() ** 2)


def missed(row, q) -> float:
    """Nats that an optimiser of another kind still gains from q, on the ELBO by quadrature: the oracle of rows whose
    optimum is not known in closed form.
    """
    points, weights = grid(row.reach)

    def neg_elbo(params):
        mean, log_sd = params[:2], params[2:]
        values = jax.vmap(row.log_density)(mean + jnp.exp(log_sd) * points)
        return -(weights @ values + log_sd.sum())

    value = jax.jit(neg_elbo)
    start = np.asarray(q.params, float).reshape(-1, 2).T.ravel()
    steps = np.concatenate([np.zeros((1, 4)), *(side * np.diag([0.3, 0.3, 0.3, 0.3]) for side in (1, -1))])
    with np.errstate(invalid="ignore"):  # steps to where the density overflows
        options = {"initial_simplex": start + steps[:5], "maxfev": 400}
        found = minimize(value, start, method="Nelder-Mead", options=options)
    return float(value(start)) - float(found.fun)


def test_the_oracle_finds_what_is_missed():
    """A q that is off by one standard deviation is no optimum."""
    row = Row(lambda x: _normal(x) - 0.1 * jnp.sum(x**4), ANY)
    target = Target(lambda theta: row.log_density(theta["x"]), {"x": np.zeros(2)})
    best = run(target).q
    assert missed(row, best) < 0.01
    assert missed(row, best.replace(best.params.at[0].add(0.8))) > 0.1


@pytest.mark.parametrize("name", ROWS)
def test_row(name):
    row = ROWS[name]
    if not row.outcomes:
        with pytest.raises(ValueError, match=r"the log density is .* at init"):
            run(target_of(name))
        return
    check(row, run(target_of(name)))


def run(target, **options):
    return fit(
        target, key=jax.random.key(0), num_steps=STEPS, progress=False, family="mean_field", tolerance=0.05, **options
    )


# -- what does not fit on the plane -----------------------------------------------------------------------------------


def _positive(log_density):
    return Target(lambda theta: log_density(theta["x"]), {"x": np.array(1.0)}, {"x": constraints.positive})


def _radial():
    """-20 |x|, whose Hessian at the mean of the start, its control variate's expansion point, does not exist."""
    return Target(lambda theta: -20 * jnp.sqrt(theta["x"] @ theta["x"]), {"x": np.zeros(20)})


def _float32(mean, sd):
    mean, sd = np.float32(mean), np.float32(sd)
    return Target(lambda theta: -(((theta["x"] - mean) / sd) ** 2) / 2, {"x": np.float32(0)})


def _many(more=lambda x: 0.0):
    """A standard normal of so many dimensions that no Hessian is kept, with something else added."""
    return Target(lambda theta: -jnp.sum(theta["x"] ** 2) / 2 + more(theta["x"]), {"x": np.zeros(20_000)})


def _partly_stopped(x):
    return -jnp.sum(x[:8000] * jax.lax.stop_gradient(x[:8000])) / 4


OTHERS = {
    "many dimensions": (_many, CONVERGED),
    "many dimensions, partly stopped": (lambda: _many(_partly_stopped), {Outcome.DISAGREEMENT}),
    "many dimensions, a jump in one": (
        lambda: _many(lambda x: _where(x[3] > 0.5, 6.0, 0.0)),
        {Outcome.DISAGREEMENT},
    ),
    "improper positive, 1 / x": (lambda: _positive(lambda x: -jnp.log(x)), LOST),
    "improper positive, 1": (lambda: _positive(lambda x: 0 * x), LOST),
    "singular mean": (_radial, CONVERGED),
    "no room in float32": (lambda: _float32(1e6, 1e-3), NEVER),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other(name):
    build, outcomes = OTHERS[name]
    check(Row(None, outcomes), run(build()))
