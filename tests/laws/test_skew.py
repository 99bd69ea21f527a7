"""Skewed marginals: their limits, what they should gain, and the choice of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family_registry import gaussian, grouped
from scipy.special import digamma, polygamma

import curvi
from curvi import Banded, Bordered, FullRank, LowRank, MeanField, Target
from curvi.certify.predicted_skew import predict_skew
from curvi.estimate.fixed_draws.objective import Objective
from curvi.family.shapes import has_skew
from curvi.family.sinh_arcsinh import SinhArcsinh
from curvi.methods import LBFGS, SchemeI

SKEWED = {"marginals": "sinh_arcsinh"}
BUILDERS = {
    "mean field": MeanField,
    "full rank": FullRank,
    "bordered": lambda target, **marginals: Bordered(target, {"group": ["a", "b"]}, **marginals),
    "low rank": lambda target, **marginals: LowRank(target, 1, **marginals),
    "banded": Banded,
}
TURN = np.array([[1.0, 0.6, 0.0], [0.0, 1.0, -0.5], [0.0, 0.0, 1.0]])


def log_gammas(turn=TURN) -> Target:
    """Logarithms of independent exponential numbers, in other coordinates: ln Z = 0, means and sds are known."""

    def log_density(t):
        v = turn @ t["x"]
        return jnp.sum(v - jnp.exp(v)) + np.log(np.linalg.det(turn))

    return Target(log_density, {"x": np.zeros(len(turn))})


def exact_moments(turn=TURN) -> tuple[np.ndarray, np.ndarray]:
    inverse = np.linalg.inv(turn)
    return inverse @ np.full(len(turn), digamma(1)), np.sqrt(np.sum(inverse**2, 1) * polygamma(1, 1))


def fit(target, **options):
    return curvi.fit(target, **{"key": jax.random.key(3), "progress": False, **options})


def on(start, **options):
    return curvi.fit(start.target, start=start, progress=False, **options)


def chosen(found):
    (row,) = (row for row in found.families if row.chosen)
    return row


# -- the families -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILDERS)
def test_normal_shapes_are_the_normal_family(name):
    target, build = grouped(), BUILDERS[name]
    blank = build(target, **SKEWED)
    of_shape = np.array([label.startswith(("skewness", "tail")) for label in blank.parameter_labels()])
    assert of_shape.sum() == 2 * 5
    away = 0.3 * jnp.cos(jnp.arange(blank.num_params) ** 2.0)
    normal = build(target).replace((blank.params + away)[~of_shape])
    noise = jnp.linspace(-1.5, 1.5, blank.noise_size)

    def same(q):
        (x,), (y,) = q.from_normal(noise), normal.from_normal(noise)
        pairs = [(x, y), (q.log_prob((x,)), normal.log_prob((x,))), (q.entropy(), normal.entropy())]
        return [bool(np.allclose(one, other, rtol=1e-9)) for one, other in pairs]

    assert all(same(blank.replace(blank.params + away * ~of_shape)))
    assert not any(same(blank.replace(blank.params + away)))
    # The same q, made of the normal one.
    skewed = normal.with_skew()
    assert type(skewed) is type(blank) and all(same(skewed)) and skewed.num_params == blank.num_params
    np.testing.assert_array_equal(skewed.params, (blank.params + away * ~of_shape).astype(float))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tails_stay_sane_however_far_a_step_goes(dtype):
    far = np.array([-1e4, -3.0, 0.0, 3.0, 1e4], dtype)
    skew, tail = (part.ravel() for part in np.meshgrid(far, far))
    shape = SinhArcsinh.of(jnp.asarray(skew), jnp.asarray(tail))
    u = jnp.asarray(np.linspace(-6, 6, 241, dtype=dtype))[:, None]
    draws, slopes = shape.forward(u), shape.log_slope(u)
    assert draws.dtype == dtype and np.all(np.isfinite(draws)) and np.all(np.isfinite(slopes))
    assert np.all(np.diff(draws, axis=0) > 0)
    np.testing.assert_allclose(
        shape.inverse(draws), np.broadcast_to(u, draws.shape), atol=1e-8 if dtype is np.float64 else 0.1
    )
    z = np.random.default_rng(0).normal(size=(200_000, 1)).astype(dtype)
    drawn = np.asarray(shape.forward(jnp.asarray(z)), float)
    np.testing.assert_allclose(drawn.mean(0), 0.0, atol=0.02)
    np.testing.assert_allclose(drawn.std(0), 1.0, rtol=0.1)
    assert np.all(np.mean(drawn**4, 0) < 2_000)  # 1.7 thousand for one heavy tail
    gradient = jax.grad(lambda p: SinhArcsinh.of(p[0], p[1]).entropy().sum())(jnp.stack([skew, tail]))
    assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("name", ["full rank", "bordered", "low rank", "banded"])
def test_the_host_knows_what_shapes_tell(name):
    """The metric of the shapes is their Fisher information, of all coordinates together and of each; there, a series
    ends after 24 terms.
    """
    q = BUILDERS[name](grouped(), **SKEWED)
    q = q.replace(q.params + 0.4 * jnp.cos(jnp.arange(q.num_params) ** 2.0))
    path, params, size = q.path, np.asarray(q.params), q.dimension
    exact = np.asarray(q.fisher().dense())[path.first :, path.first :]
    np.testing.assert_allclose(path.information(params), exact, rtol=1e-3, atol=1e-5)
    own = exact.reshape(2, size, 2, size)[:, np.arange(size), :, np.arange(size)]
    np.testing.assert_allclose(path.own_information(params), own, rtol=1e-3, atol=1e-5)
    assert np.abs(path.information(params) - np.diag(np.diag(exact))).max() > 0.01
    np.testing.assert_allclose(path.spreads(params)[path.first :], np.diag(exact) ** -0.5, rtol=1e-3)


# -- what they should gain --------------------------------------------------------------------------------------------


def predicted(found, num_draws=1024):
    objective = Objective(found.target, found.q, jax.random.key(5), num_draws)
    params = np.asarray(found.q.params, np.float64)
    return predict_skew(objective(params, objective.noise(params, (7,), num_draws)))


def test_the_gain_is_what_a_fit_gains():
    target = log_gammas()
    normal = fit(target, family="full_rank", tolerance=0.01)
    assert isinstance(normal.q, FullRank)
    skewed = fit(target, family=normal.q.with_skew(), tolerance=0.01)
    assert normal.converged and skewed.converged
    gain, gained = predicted(normal), skewed.elbo - normal.elbo
    assert gained > 0.1 and skewed.elbo < 3 * skewed.elbo_se  # ln Z is zero
    np.testing.assert_allclose(gain.nats, gained, rtol=0.35, atol=3 * gain.error)
    mean, sd = exact_moments()
    off = [np.max(np.abs(np.log(found.sd()["x"] / sd))) for found in (normal, skewed)]
    assert off[1] < 0.6 * off[0]
    assert np.max(np.abs(skewed.mean()["x"] - mean) / sd) < 0.06


def test_a_gaussian_has_nothing_to_gain():
    found = fit(gaussian(), family="full_rank")
    gain = predicted(found, 64)
    assert gain.known and gain.nats < 1e-6 and gain.error < 1e-6
    skewed = fit(gaussian(), family="full_rank", **SKEWED)
    assert skewed.converged and chosen(skewed).name == "full_rank + sinh_arcsinh"
    assert isinstance(skewed.q, FullRank)
    shapes = np.asarray(skewed.q.params)[skewed.q.num_normal_params :]
    assert np.abs(shapes).max() < 0.05 and abs(skewed.elbo - found.elbo) < 0.01


# -- the choice -------------------------------------------------------------------------------------------------------


def test_skew_is_chosen_where_it_pays():
    normal, found = fit(log_gammas(), marginals="normal"), fit(log_gammas())
    assert normal.converged and found.converged and not has_skew(normal.q) and has_skew(found.q)
    assert isinstance(normal.q, FullRank) and isinstance(found.q, FullRank) and found.elbo > normal.elbo + 0.1
    row = chosen(found)
    assert row.name == "full_rank + sinh_arcsinh" and row.num_params == found.q.num_params
    before = next(row for row in found.families if row.name == "full_rank")
    assert not before.chosen and before.num_params == found.q.num_normal_params
    assert "adds" in row.why and row.predicted_gain > before.predicted_gain + 0.05
    assert found.khat < normal.khat and "sinh_arcsinh" in str(found)
    plain = fit(gaussian())
    (skewed,) = (row for row in plain.families if "+" in row.name)
    assert not has_skew(plain.q) and not skewed.chosen and "no more than" in skewed.why


def test_independent_latents_are_skewed_one_by_one():
    found = fit(log_gammas(np.diag([1.0, 2.0])), marginals="sinh_arcsinh")
    assert found.converged and type(found.q) is MeanField and chosen(found).name == "mean_field + sinh_arcsinh"
    assert abs(found.elbo) < 0.02 + 3 * found.elbo_se
    np.testing.assert_allclose(found.sd()["x"], exact_moments(np.diag([1.0, 2.0]))[1], rtol=0.04)


def test_skew_is_left_to_importance_weights_where_they_are_reliable():
    exact = exact_moments(np.diag([1.0, 2.0]))[1]
    found = fit(log_gammas(np.diag([1.0, 2.0])))
    assert found.converged and type(found.q) is MeanField and not has_skew(found.q)
    row = next(row for row in found.families if "+" in row.name)
    assert row.predicted_gain > 0.05 and not row.chosen and "importance weights correct as much" in row.why
    assert found.kind == "reweighted"
    errors = found.draws_error_sd["x"]
    assert np.abs(found.sd()["x"] / exact - 1).max() < 3.5 * errors.max()
    assert np.abs(found.sd("q")["x"] / exact - 1).max() > 0.1, "q itself would fail"


def test_a_fit_is_resumed_across_the_switch(tmp_path):
    whole = fit(log_gammas(), tolerance=0.02)
    steps = len(whole.history)
    assert whole.converged and has_skew(whole.q)
    switched = False
    for cut in range(1, steps, 2):
        first = fit(log_gammas(), num_steps=cut, tolerance=0.02)
        assert not first.converged
        switched |= not has_skew(first.q)
        first.save(tmp_path / "first.npz")
        again = on(curvi.load(tmp_path / "first.npz", first.target), tolerance=0.02)
        np.testing.assert_array_equal(again.q.params, whole.q.params)
        assert again.q.parameter_labels() == whole.q.parameter_labels() and again.elbo == whole.elbo
    assert switched


@pytest.mark.slow
@pytest.mark.parametrize("method", [SchemeI(), LBFGS(64)], ids=["scheme I", "L-BFGS"])
def test_other_methods_begin_with_skewed_marginals(method):
    found = fit(log_gammas(np.eye(2)), family="mean_field", method=method, num_steps=3, **SKEWED)
    assert has_skew(found.q) and chosen(found).name == "mean_field + sinh_arcsinh"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"marginals": "skewed"}, "marginals must be one of normal, sinh_arcsinh; got 'skewed'"),
        ({"marginals": True}, "marginals must be one of"),
        ({"family": FullRank, "marginals": "sinh_arcsinh"}, "not what the FullRank has"),
    ],
)
def test_marginals_that_are_unknown_or_contradicted_are_refused(options, message):
    target = gaussian()
    options = {name: option(target) if callable(option) else option for name, option in options.items()}
    with pytest.raises(ValueError, match=message):
        fit(target, **options)
    with pytest.raises(ValueError, match="marginals must be one of"):
        FullRank(target, marginals="gamma")
