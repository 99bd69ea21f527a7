"""curvi.check: sound targets pass, and each kind of damage is found, named and answered with a remedy."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from rich.console import Console

import curvi

KEY = jax.random.key(0)


def regression():
    x, y = jnp.linspace(-1, 1, 40), jnp.linspace(-1, 2, 40)

    def model():
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        share = numpyro.sample("share", dist.Dirichlet(jnp.ones(3)))
        numpyro.deterministic("first", slope[0] * share[0])
        numpyro.sample("y", dist.Normal(slope[0] + slope[1] * x, noise), obs=y)

    return curvi.from_numpyro(model)


def large_and_badly_scaled():
    def log_density(theta):
        return -5e5 * (theta["a"] - 0.3) ** 2 - 1e4 * jnp.sum(jnp.cosh(theta["b"])) + 1e6

    return curvi.Target(log_density, {"a": jnp.asarray(0.0), "b": jnp.zeros(4)})


def minibatch(scale=1.0):
    rows = jnp.linspace(-1, 1, 64)
    return curvi.MinibatchTarget(
        lambda theta: -0.5 * theta["mu"] ** 2,
        lambda theta, row: -0.5 * scale * (row - theta["mu"]) ** 2,
        rows,
        8,
        {"mu": jnp.asarray(0.5)},
    )


def counts_only():
    def model():
        numpyro.sample("y", dist.Normal(numpyro.sample("k", dist.Poisson(3.0)), 1.0), obs=2.0)

    return curvi.from_numpyro(model)


SOUND = {f.__name__: f for f in (regression, large_and_badly_scaled, minibatch, counts_only)}


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("x64", [True, False], ids=["float64", "float32"])
def test_sound_targets_pass(name, x64):
    with jax.enable_x64(x64):
        target = SOUND[name]()
        for seed in range(5):
            report = curvi.check(target, key=jax.random.key(seed))
            assert report.ok, str(report)
    assert "ready to be fitted" in str(report)


def test_order_decides_what_is_checked():
    target = curvi.Target(lambda theta: -jnp.sum(theta["x"] ** 2), {"x": jnp.ones(2)}, order=0)
    report = curvi.check(target, key=KEY)
    assert report.ok and report["gradient"].ok is None and report["minibatch scale"].ok is None
    assert "- gradient" in str(report)


# -- damage ----------------------------------------------------------------------------------------------------


def not_finite_at_start():
    return curvi.Target(lambda theta: jnp.log(theta["x"]) - theta["x"], {"x": jnp.asarray(0.0)})


def missing_support():
    def log_density(theta):
        return jnp.log(theta["scale"]) - theta["scale"] - theta["ok"] ** 2

    return curvi.Target(log_density, {"scale": jnp.asarray(1.0), "ok": jnp.asarray(0.0)})


@jax.custom_jvp
def twice_the_slope(x):
    return -(x**2)


twice_the_slope.defjvp(lambda primals, tangents: (twice_the_slope(*primals), -4 * primals[0] * tangents[0]))


def wrong_gradient():
    def log_density(theta):
        return -jnp.sum(theta["good"] ** 2) + jnp.sum(twice_the_slope(theta["bad"]))

    return curvi.Target(log_density, {"good": jnp.ones(2), "bad": jnp.ones(2)})


@jax.custom_jvp
def wrong_second(x):
    return -(x**3)


@jax.custom_jvp
def its_slope(x):
    return -3 * x**2


wrong_second.defjvp(lambda primals, tangents: (wrong_second(*primals), its_slope(*primals) * tangents[0]))
its_slope.defjvp(lambda primals, tangents: (its_slope(*primals), -20 * primals[0] * tangents[0]))


def wrong_curvature():
    def log_density(theta):
        return jnp.sum(wrong_second(theta["bad"])) - theta["good"] ** 2

    return curvi.Target(log_density, {"good": jnp.asarray(1.0), "bad": jnp.asarray(1.0)})


@jax.custom_jvp
def tilted(x):
    return -0.5 * jnp.sum(x**2)


# The slope is right at the start of the check only to the eye: its derivative is not symmetric.
@tilted.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    turn = jnp.array([[0.0, 1.0], [-1.0, 0.0]])
    return tilted(x), (-x + 10 * turn @ x) @ t


def not_symmetric():
    return curvi.Target(lambda theta: tilted(theta["x"]), {"x": jnp.ones(2)})


def infinite_gradient():
    def log_density(theta):
        return -jnp.where(theta["x"] > 5, jnp.sqrt(theta["x"] - 5), 0.0) - theta["x"] ** 2

    return curvi.Target(log_density, {"x": jnp.asarray(0.0)})


def not_differentiable():
    def log_density(theta):
        shape = jax.ShapeDtypeStruct((), theta["x"].dtype)
        return jax.pure_callback(lambda x: -np.square(x), shape, theta["x"], vmap_method="expand_dims")

    return curvi.Target(log_density, {"x": jnp.asarray(1.0)})


def unused():
    return curvi.Target(lambda theta: -(theta["x"] ** 2), {"x": jnp.asarray(1.0), "spare": jnp.asarray(0.0)})


def bad_output():
    return curvi.Target(
        lambda theta: -(theta["x"] ** 2), {"x": jnp.asarray(1.0)}, outputs=lambda theta: {"ratio": theta["x"] / 0.0}
    )


DAMAGE = [
    (not_finite_at_start, "finite at the start", (), "give an init"),
    (missing_support, "supports", ("scale",), "constraints.positive"),
    (wrong_gradient, "gradient", ("bad",), "custom derivatives"),
    (infinite_gradient, "gradient", ("x",), "jnp.where"),
    (not_differentiable, "gradient", ("x",), "order=0"),
    (wrong_curvature, "curvature", ("bad",), "order=1"),
    (not_symmetric, "curvature", None, "order=1"),
    (unused, "every latent counts", ("spare",), "prior"),
    (bad_output, "outputs", ("ratio",), "does not need"),
]


@pytest.mark.parametrize("make, name, latents, remedy", DAMAGE, ids=lambda value: getattr(value, "__name__", None))
def test_damage_is_found_and_named(make, name, latents, remedy):
    report = curvi.check(make(), key=KEY)
    assert not report.ok
    found = report[name]
    assert found.ok is False, str(report)
    assert latents is None or found.latents == latents
    assert remedy in found.remedy and remedy in str(report)
    assert f"✗ {name}" in str(report)


def test_asymmetry_itself_is_seen():
    assert "not symmetric" in curvi.check(not_symmetric(), key=KEY)["curvature"].detail


class BadScale(curvi.MinibatchTarget):
    """Batches that carry the factor N / B twice."""

    def batch(self, key):
        whole = self.full()
        return lambda theta: 8 * whole(theta)


def test_wrong_minibatch_scale_is_found():
    bad = object.__new__(BadScale)
    for name, value in vars(minibatch()).items():
        object.__setattr__(bad, name, value)
    report = curvi.check(bad, key=KEY)
    assert report["minibatch scale"].ok is False and "N / B" in report["minibatch scale"].remedy


def test_rich_shows_the_same_words():
    out = io.StringIO()
    Console(file=out, width=200).print(curvi.check(missing_support(), key=KEY))
    assert "✗ supports" in out.getvalue() and "constraints.positive" in out.getvalue()


def test_misuse_is_refused():
    with pytest.raises(ValueError, match="curvi target"):
        curvi.check(lambda theta: 0.0, key=KEY)
    with pytest.raises(ValueError, match="random key"):
        curvi.check(unused(), key=None)
