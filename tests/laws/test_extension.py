"""The price of an extension: a new family, method, solver and kind of target, each defined here in a few lines.

None of them touches the package, and each goes through `fit`, progress, interruption, a file, resumption, summary and
report like those that come with it.
"""

import inspect
import io
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import ndtri
from numpyro.distributions import constraints

import curvi
from curvi.curvature import BlockDiagonal
from curvi.estimate import Pathwise
from curvi.family import Family
from curvi.methods import Method, SchemeI
from curvi.methods.base import Budget, Needs, News
from curvi.model.target import AbstractTarget
from curvi.record import progress
from curvi.record.plain import register
from curvi.record.pytree import pytree
from curvi.solve.solution import Solver
from curvi.solve.system import check_system, conclude

PRECISION = np.array([[2.0, 0.8], [0.8, 1.0]])
CENTRE = np.array([0.5, -1.0])


def log_density(theta):
    away = theta["x"] - CENTRE
    return -0.5 * away @ PRECISION @ away - 0.02 * jnp.sum(away**4)


def plain_target():
    return curvi.Target(log_density, {"x": np.zeros(2)})


# -- a family ---------------------------------------------------------------------------------------------------------


@register
class SharedScale(Family):
    """Independent normals with one scale for all: x = mean + scale * e."""

    params: jax.Array
    names: tuple = eqx.field(static=True)
    reparameterised = True

    def __init__(self, target):
        self.names = target.latents
        size = sum(int(np.prod(latent.shape)) for latent in target.latents)
        self.params = jnp.zeros(size + 1).at[-1].set(-1.0)

    @property
    def latents(self):
        return self.names

    @property
    def noise_size(self):
        return self.params.size - 1

    def from_normal(self, noise):
        return self.params[:-1] + jnp.exp(self.params[-1]) * noise

    def from_uniform(self, u):
        return self.from_normal(ndtri(u))

    def to_model(self, x):
        latent = self.names[0]
        return {latent.name: x.reshape(latent.shape)}, jnp.zeros((), x.dtype)

    def log_prob(self, x):
        e = (x - self.params[:-1]) * jnp.exp(-self.params[-1])
        return -0.5 * jnp.sum(e**2) - self.noise_size * (self.params[-1] + 0.5 * np.log(2 * np.pi))

    def entropy(self):
        return self.noise_size * (self.params[-1] + 0.5 * (1 + np.log(2 * np.pi)))

    def fisher(self):
        means = jnp.full(self.noise_size, jnp.exp(-2 * self.params[-1]))
        return BlockDiagonal((jnp.append(means, 2.0 * self.noise_size)[:, None, None],))


def with_family():
    target = plain_target()
    return target, {"family": SharedScale(target)}


# -- a method with a loop on the host ---------------------------------------------------------------------------------


@register
@pytree
class ClimbState:
    q: Family
    taken: int


@register
class NaturalAscent(Method):
    """Half a natural gradient step at a time, on fresh draws."""

    needs = Needs(order=2, path=True)
    default_num_steps = 40

    def init(self, problem, key):
        return ClimbState(problem.q, 0)

    def advance(self, problem, state, key, budget: Budget):
        local = Pathwise(64)(problem.target, state.q, jax.random.fold_in(key, state.taken))
        moved = state.q.replace(state.q.params + 0.5 * local.fisher.solve(local.grad))
        row = {"elbo": float(local.value), "elbo_se": float(local.value_se), "num_draws": 64, "accepted": True}
        state = ClimbState(moved, state.taken + 1)
        asks = state.taken % 10 == 0
        return state, News([row], gain=self.certify(problem, state, key, budget.tolerance) if asks else None)


def with_method():
    return plain_target(), {"method": NaturalAscent()}


# -- a solver ---------------------------------------------------------------------------------------------------------


@register
class SteepestDescent(Solver):
    """Steps along the residual."""

    num_steps: int = eqx.field(static=True, default=60)

    def __call__(self, operator, rhs, *, key=None):
        rhs = check_system(operator, rhs)

        def advance(_, x):
            rest = rhs - operator.mv(x)
            bend = rest @ operator.mv(rest)
            return x + jnp.where(bend > 0, rest @ rest / jnp.where(bend > 0, bend, 1), 0) * rest

        x = jax.lax.fori_loop(0, self.num_steps, advance, jnp.zeros_like(rhs))
        return conclude(operator, rhs, x, 2 * self.num_steps, tolerance=0.3)


def with_solver():
    return plain_target(), {"method": SchemeI(solver=SteepestDescent()), "num_steps": 60}


# -- a kind of target -------------------------------------------------------------------------------------------------


class Tempered(AbstractTarget):
    """Another target with its log density divided by a temperature."""

    base: AbstractTarget
    temperature: float
    latents: tuple = eqx.field(static=True)
    init: dict
    order: int = eqx.field(static=True)
    outputs: None = None

    def __init__(self, base, temperature):
        self.base, self.temperature = base, temperature
        self.latents, self.init, self.order = base.latents, base.init, base.order

    def batch(self, key):
        return self.full()

    def full(self):
        density = self.base.full()
        return lambda theta: density(theta) / self.temperature


def with_target():
    return Tempered(plain_target(), 2.0), {}


EXTENSIONS = {
    "family": (with_family, (SharedScale,)),
    "method": (with_method, (ClimbState, NaturalAscent)),
    "solver": (with_solver, (SteepestDescent,)),
    "target": (with_target, (Tempered,)),
}
KEY = jax.random.key(0)
FIT = sys.modules["curvi.fit"]  # the name in the package is that of the function


@pytest.mark.parametrize("name", EXTENSIONS)
def test_an_extension_is_short(name):
    assert sum(len(inspect.getsource(cls).splitlines()) for cls in EXTENSIONS[name][1]) <= 60


@pytest.mark.parametrize("name", EXTENSIONS)
def test_an_extension_goes_all_the_way(name, tmp_path, monkeypatch):
    target, options = EXTENSIONS[name][0]()
    options = {"num_steps": 40, **options}
    whole = curvi.fit(target, key=KEY, tolerance=0.05, **{**options, "progress": False})
    assert whole.converged
    # Progress.
    shown = io.StringIO()
    with progress.open_progress(True, 40, 0.05, shown) as display:
        display.every = 0.0
        monkeypatch.setattr(FIT, "open_progress", lambda *_: _Opened(display))
        again = curvi.fit(target, key=KEY, tolerance=0.05, **options)
    monkeypatch.undo()
    assert "ELBO" in shown.getvalue()
    np.testing.assert_array_equal(again.q.params, whole.q.params)
    # Interruption after two advances, a file, and resumption from it.
    part = curvi.fit(target, key=KEY, **{**options, "num_steps": 1}, tolerance=0.05, progress=False)
    interrupted = _interrupted(target, options)
    assert interrupted.outcome is curvi.Outcome.INTERRUPTED
    for start in (part, interrupted):
        start.save(tmp_path / "fit.curvi")
        loaded = curvi.load(tmp_path / "fit.curvi", target)
        rest = options["num_steps"] - len(start.history)
        resumed = curvi.fit(target, start=loaded, num_steps=rest, tolerance=0.05, progress=False)
        np.testing.assert_array_equal(resumed.q.params, whole.q.params)
        assert resumed.elbo == whole.elbo and len(resumed.history) == len(whole.history)
    # Ways out.
    assert "x[0]" in str(whole.summary())
    whole.report(tmp_path / "report.html")
    assert "converged" in (tmp_path / "report.html").read_text()
    assert np.all(np.isfinite(whole.sample(KEY, 5)["x"]))


class _Opened:
    def __init__(self, display):
        self.display = display

    def __enter__(self):
        return self.display

    def __exit__(self, *_):
        return None


def _interrupted(target, options):
    """A fit that Ctrl-C ends after some advances."""
    calls = []

    def show(taken, row, counts):
        calls.append(taken)
        if len(calls) == 2:
            raise KeyboardInterrupt

    display = progress.Silent()
    display.show = show
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FIT, "open_progress", lambda *_: _Opened(display))
        return curvi.fit(target, key=KEY, tolerance=0.05, **options)


def test_supports_are_the_familys_business():
    """A family decides what lies between its coordinates and the model's: here a bijection of its own."""
    target = curvi.Target(lambda t: -t["s"] + 2 * jnp.log(t["s"]), {"s": np.array(1.0)}, {"s": constraints.positive})

    class Positive(SharedScale):
        def to_model(self, x):
            return {"s": jnp.exp(x.reshape(()))}, x.sum()

    fit = curvi.fit(target, key=KEY, family=Positive(target), progress=False)
    assert fit.converged and abs(float(fit.mean()["s"]) - 3.0) < 0.1
    # It says nothing of vectors, and NUTS starts from it all the same.
    start = fit.to_nuts(KEY)
    assert np.isclose(start.logdensity_fn(jnp.array([0.4])), 3 * 0.4 - np.exp(0.4))
    np.testing.assert_allclose(start.inverse_mass_matrix, [[np.exp(2 * fit.q.params[-1])]], rtol=0.1)
    np.testing.assert_allclose(start.to_named(start.starts)["s"], np.exp(start.starts[:, 0]))
