"""Fits on draws that are never stored: their sums, their optimum, and what they say where there is none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

import curvi
from curvi import MeanField, Outcome, Target
from curvi.estimate.strata import column_words, part_seed, stratified_noise
from curvi.estimate.streamed import programs
from curvi.estimate.streamed.objective import StreamedObjective
from curvi.methods import GrowingDraws, StreamedNewton
from curvi.methods.base import Problem
from curvi.methods.defaults import MANY_LATENTS, default_method
from curvi.model.exact_sum import exact_sum, sum_by_terms

KEY = jax.random.key(7)
LARGE = MANY_LATENTS["cpu"]


def chain(size, dtype=np.float64, coupling=4.0):
    """A Gaussian chain: precision (1 + 2 coupling) on the diagonal away from its ends, -coupling beside it."""
    centre = np.sin(np.arange(size) / 30).astype(dtype)

    def log_density(t):
        x = t["x"] - centre
        return -(jnp.sum(x**2) + coupling * jnp.sum((x[1:] - x[:-1]) ** 2)) / 2

    return Target(log_density, {"x": np.zeros(size, dtype)}), centre, 1 + coupling * np.r_[1, np.full(size - 2, 2), 1]


def nats_left(q, centre, precision, coupling=4.0):
    """ELBO at the optimum less that of q, for the Gaussian chain."""
    mean, log_scale = np.asarray(q.params, np.float64).reshape(-1, 2).T
    away = mean - centre
    of_mean = (np.sum(away**2) + coupling * np.sum((away[1:] - away[:-1]) ** 2)) / 2
    ratio = precision * np.exp(2 * log_scale)
    return of_mean + np.sum(ratio - 1 - np.log(ratio)) / 2


def bent(size=6):
    """A coupled log density of no simple form, on two supports."""

    def log_density(t):
        x, s = t["x"], t["s"]
        return -jnp.sum(jnp.cosh(x - 0.3)) - 0.5 * jnp.sum(s) * jnp.sum(jnp.diff(x) ** 2) + jnp.sum(jnp.log(s) - 2 * s)

    return Target(log_density, {"x": np.linspace(-1, 1, size), "s": np.ones(2)}, {"s": constraints.positive})


# -- sums -------------------------------------------------------------------------------------------------------------


def elbo_of(target, q, seed, num_draws, num_parts):
    """The ELBO on the same draws as a function of the parameters, all at once."""
    size = num_draws // num_parts

    def part(index):
        words = column_words(part_seed(seed, index), jnp.arange(q.noise_size))
        return stratified_noise(words, jnp.arange(size), size, q.params.dtype)

    noise = jnp.concatenate([part(index) for index in range(num_parts)])
    density = target.full()

    def elbo(params):
        moved = q.replace(params)
        return jax.vmap(lambda e: moved.log_joint(density, moved.from_normal(e)))(noise).mean() + moved.entropy()

    return elbo


@pytest.mark.parametrize("chunk", [1, 4, 8])
def test_sums_are_those_over_stored_draws(chunk):
    """Value, gradient and Hessian product by JAX, whitened by the Fisher information."""
    target = bent()
    q = MeanField(target)
    q = q.replace(q.params + 0.2 * jax.random.normal(KEY, q.params.shape))
    seed = jnp.asarray([3, 4], jnp.uint32)
    elbo = elbo_of(target, q, seed, 64, 8)
    found = programs.sweep(target, q, seed, np.int32(64), num_parts=8, chunk=chunk)
    assert np.isclose(found.values[:, :8].sum() / 64 + found.entropy, elbo(q.params), rtol=1e-12)
    # L^-1 g, and L^-1 H L^-T, in the order of means and ln sds apart.
    root = q.fisher().factorise()
    order = np.arange(q.num_params).reshape(-1, 2).T.ravel()
    expected = np.asarray(root.solve(jax.grad(elbo)(q.params)))[order]
    assert np.allclose(found.grads.mean(0), expected, rtol=1e-10, atol=1e-10)


def test_solves_are_those_of_the_whole_hessian():
    target = bent()
    q = MeanField(target)
    q = q.replace(q.params + jnp.tile(jnp.asarray([0.0, 1.0]), q.noise_size))
    seed = jnp.asarray([3, 4], jnp.uint32)
    elbo = elbo_of(target, q, seed, 16, 1)
    gradient = programs.sweep(target, q, seed, np.int32(16), num_parts=1, chunk=4).grads[0]
    b = jax.random.normal(KEY, gradient.shape)
    solved = programs.solve(target, q, seed, np.int32(16), gradient, b, 1e9, 1e-10, np.int32(200), chunk=4)
    root = q.fisher().factorise()
    order = np.arange(q.num_params).reshape(-1, 2).T.ravel()
    half = jax.vmap(root.solve, 1, 1)(jax.hessian(elbo)(q.params))
    dense = -np.asarray(jax.vmap(root.solve)(half))[np.ix_(order, order)]
    assert bool(solved.definite) == bool(np.linalg.eigvalsh(dense).min() > 0) is True
    assert np.allclose(dense @ np.asarray(solved.x), b, atol=1e-6)
    assert np.isclose(solved.predicted, np.asarray(b) @ np.linalg.solve(dense, b) / 2, rtol=1e-6)


def test_a_long_sum_in_single_precision():
    """Against exact integers, where a plain sum loses the last ones."""
    terms = jnp.asarray(np.r_[1e8, np.ones(9999), -1e8], jnp.float32)
    with jax.enable_x64(False):
        head, rest = exact_sum(terms)
        assert float(head) + float(rest) == 9999
        assert abs(float(terms.sum()) - 9999) > 1
        head, rest = sum_by_terms({"a": terms, "b": jnp.ones(3, jnp.float32)}, jnp.asarray(0.5, jnp.float32))
        assert float(head) + float(rest) == 10002.5
    head, rest = exact_sum(terms)
    assert float(head) + float(rest) == 9999


def test_gains_that_values_round_away_are_seen_by_slopes():
    """In single precision a value of 10^8 has a last digit of 8; slopes at both ends of a step know its gain."""
    target = Target(lambda t: 1e8 - 50 * jnp.sum(t["x"] ** 2), {"x": np.full(4, 0.5, np.float32)})
    objective = StreamedObjective(target, KEY, 8, 64, exact_values=False)
    q = MeanField(target)
    look = objective.look(q, (0, 0), 32, parts=False)
    x = (0.1 * look.gradient / np.linalg.norm(look.gradient)).astype(np.float32)
    end = objective.look(objective.moved(q, x), (0, 0), 32, parts=False)
    by_slopes = objective.gained(look, end, x, 1.0, tolerance=0.05)
    scale = np.exp(2.0)  # in units of which the density bends by 100 / scale^2
    exact = float(x @ look.gradient) - 50 / scale**2 * float(jnp.sum(x**2))
    assert np.isclose(by_slopes, exact, rtol=0.02)
    assert abs(objective.difference(look, end) - exact) > 0.5


# -- fits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_optimum_of_a_chain(dtype):
    """Within the tolerance of a closed form, and no coordinate off; the certificate knows how far."""
    target, centre, precision = chain(LARGE, dtype)
    found = curvi.fit(target, key=KEY, family="mean_field", progress=False)
    assert found.converged and isinstance(found.method, StreamedNewton)
    left = nats_left(found.q, centre, precision)
    assert left < 0.001 * LARGE
    assert abs(found.remaining_gain - left) < 4 * found.remaining_gain_se + 0.1 * left
    mean, log_scale = np.asarray(found.q.params, float).reshape(-1, 2).T
    assert (
        np.abs((mean - centre) * precision**0.5).max() < 0.2 and np.abs(log_scale + np.log(precision) / 2).max() < 0.2
    )
    assert "draws that are made where they are used" in found.reason
    exact = -LARGE / 2 + LARGE / 2 * (1 + np.log(2 * np.pi)) - np.log(precision).sum() / 2
    assert abs(found.elbo + left - exact) < 5 * found.elbo_se


def test_a_tighter_tolerance_takes_more_draws():
    target, centre, precision = chain(LARGE)
    found = curvi.fit(target, key=KEY, method=StreamedNewton(), progress=False, tolerance=0.25)
    assert found.converged and nats_left(found.q, centre, precision) < 0.25
    assert found.history.num_draws.max() > 256


def test_certificates_are_honest_where_draws_end():
    target, centre, precision = chain(LARGE)
    found = curvi.fit(target, key=KEY, method=StreamedNewton(max_draws=256), progress=False, tolerance=0.01)
    assert found.outcome is Outcome.NOISE_LIMIT
    left = nats_left(found.q, centre, precision)
    assert abs(found.remaining_gain - left) < 5 * found.remaining_gain_se


def test_the_same_optimum_as_on_stored_draws():
    options = {"key": KEY, "progress": False, "family": "mean_field", "tolerance": 1e-3}
    ours = curvi.fit(bent(), method=StreamedNewton(), **options)
    theirs = curvi.fit(bent(), method=GrowingDraws(), **options)
    assert ours.converged and theirs.converged
    assert np.allclose(ours.q.params, theirs.q.params, atol=0.05)
    assert abs(ours.elbo - theirs.elbo) < 4 * np.hypot(ours.elbo_se, theirs.elbo_se) + 2e-3


def test_scores_are_those_of_stored_draws():
    """Against all draws at once, for two numbers of them."""
    target = bent()
    q = MeanField(target)
    objective = StreamedObjective(target, KEY, 4, 64, exact_values=True)
    for num_draws in (64, 128):
        look = objective.look(q, (5, 1), num_draws, parts=True)
        noise = []
        for part in range(8):
            words = column_words(part_seed(jnp.asarray(objective.seed((5, 1))), part), jnp.arange(q.noise_size))
            noise.append(stratified_noise(words, jnp.arange(num_draws // 8), num_draws // 8, q.params.dtype))
        e = np.concatenate(noise)
        r = look.values.ravel() + (e**2).sum(1) / 2
        r = r - r.mean()
        found = objective.scores(look)
        terms = np.concatenate([r[:, None] * e, r[:, None] * (e**2 - 1) / 2**0.5], 1)
        assert np.allclose(found.gradient, terms.mean(0), rtol=1e-9, atol=1e-12)
        assert np.allclose(found.variance, terms.var(0) / num_draws, rtol=1e-6)
        wider = r * ((e**2).sum(1) - e.shape[1]) / (2 * e.shape[1]) ** 0.5
        assert np.isclose(found.wider, wider.mean()) and np.isclose(found.wider_variance, wider.var() / num_draws)


def test_scales_far_from_the_start_are_set_before_the_climb():
    """From sds of 0.14 to sds between 0.001 and 100, in the one step that a fit starts with."""
    sds = np.geomspace(1e-3, 1e2, LARGE).astype(np.float32)
    target = Target(lambda t: -jnp.sum((t["x"] / sds) ** 2) / 2, {"x": np.zeros(LARGE, np.float32)})
    found = curvi.fit(target, key=KEY, family="mean_field", num_steps=1, progress=False)
    log_sd = np.asarray(found.q.params, float).reshape(-1, 2)[:, 1]
    assert np.abs(log_sd - np.log(sds)).mean() < 0.1


def test_no_scale_grows_more_than_four_times_at_once():
    """A million few draws leave some curvature near zero by chance: such a scale alone could overflow the model."""
    q = MeanField(bent())
    flat = np.full(q.num_params, np.sqrt(0.5) * (1 - 1e-9))  # the gradient that a curvature of 1e-9 leaves
    widened = np.asarray(programs.rescaled(q, jnp.asarray(flat)).params - q.params).reshape(-1, 2)[:, 1]
    assert np.allclose(widened, np.log(4))


# -- where there is no optimum, or none that can be seen --------------------------------------------------------------


def outcome_of(log_density, size=40, start=0.1, **options):
    target = Target(log_density, {"x": np.full(size, start)})
    method = StreamedNewton(first_draws=16, fresh_draws=64, max_draws=256)
    return curvi.fit(target, key=KEY, method=method, progress=False, num_steps=250, **options)


def test_what_cannot_be_fitted_is_said():
    """A density that is flat, one that is nowhere finite, one with jumps."""
    flat = outcome_of(lambda t: -jnp.sum(t["x"][1:] ** 2))
    assert flat.outcome is Outcome.NOT_A_MAXIMUM and not flat.converged
    nowhere = outcome_of(lambda t: jnp.sum(jnp.log(t["x"] - 5)))
    assert nowhere.outcome is Outcome.NON_FINITE
    jumps = outcome_of(lambda t: -jnp.sum(jnp.floor(2 * t["x"]) ** 2 / 8) - jnp.sum(t["x"] ** 2) / 2)
    assert jumps.outcome is Outcome.DISAGREEMENT


def test_a_start_that_is_too_wide_is_narrowed():
    found = outcome_of(lambda t: jnp.sum(20 * jnp.log(t["x"]) - 20 * t["x"] / 0.3), start=0.3)
    assert np.all(np.isfinite(found.q.params))


# -- the choice -------------------------------------------------------------------------------------------------------


def test_shapes_choose():
    def chosen(size, families=("mean_field", "full_rank"), order=2, num_starts=1):
        target = Target(lambda t: -jnp.sum(t["x"] ** 2), {"x": np.zeros(size)}, order=order)
        return type(default_method(Problem(target, MeanField(target), num_starts, families))[0])

    assert chosen(LARGE) is StreamedNewton and chosen(LARGE - 1) is GrowingDraws
    assert chosen(LARGE, ("full_rank",)) is GrowingDraws and chosen(LARGE, order=1) is GrowingDraws
    assert chosen(LARGE, num_starts=2) is GrowingDraws


@pytest.mark.parametrize(("name", "number"), [("first_draws", 3), ("fresh_draws", 48), ("max_draws", 2**14)])
def test_numbers_of_draws_are_checked(name, number):
    with pytest.raises(ValueError, match=f"{name} must be a power of two from .*; got {number}"):
        StreamedNewton(**{name: number})


def test_other_families_are_refused():
    target = Target(lambda t: -jnp.sum(t["x"]), {"x": np.ones(2)}, {"x": constraints.positive})
    gamma = MeanField(target, {"x": curvi.factors.LogNormal()})
    with pytest.raises(ValueError, match="takes a MeanField of Normal factors"):
        curvi.fit(target, key=KEY, family=gamma, method=StreamedNewton(), progress=False)
