"""Fits from values alone: example models against their exact answers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_log import compilations
from numpyro.distributions import constraints

import curvi
import reference_models as examples
from curvi import MeanField, Outcome, Target, factors
from curvi.methods import PooledRegression, SchemeI
from curvi.methods.base import Budget, Problem
from curvi.methods.pooled_regression import sampler as program
from reference_models.exact import basin, change_point_elbo, enumerate_states, enumerated_elbo


def run(target, **settings):
    return curvi.fit(target, **{"key": jax.random.key(0), "progress": False, **settings})


def probabilities(params, sizes) -> list[np.ndarray]:
    """Marginals of each scalar latent from logits against its first value."""
    out, start = [], 0
    for size in sizes:
        out.append(np.asarray(jax.nn.softmax(jnp.concatenate([jnp.zeros(1), params[start : start + size - 1]]))))
        start += size - 1
    return out


ENUMERABLE = {
    "spike and slab": examples.spike_and_slab,
    "finite mixture": examples.finite_mixture,
    "noisy or": examples.noisy_or,
}


@pytest.mark.parametrize("name", ENUMERABLE)
@pytest.mark.parametrize("seed", [0, 1])
def test_enumerable_models(name, seed):
    target = ENUMERABLE[name]()
    elbo = enumerated_elbo(target)
    fit = run(target, key=jax.random.key(seed), tolerance=1e-3)
    best_params, best = basin(elbo, fit.q.params)
    assert fit.converged and isinstance(fit.method, PooledRegression)
    assert 0 <= best - float(elbo(fit.q.params)) + 1e-9 < 0.01
    sizes = enumerate_states(target)[2]
    for found, exact in zip(probabilities(fit.q.params, sizes), probabilities(best_params, sizes)):
        assert np.max(np.abs(found - exact)) < 0.02
    assert abs(fit.elbo - float(elbo(fit.q.params))) < 6 * fit.elbo_se + 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_change_point(seed):
    target, family = examples.change_point()
    elbo = change_point_elbo()
    fit = run(target, family=family, key=jax.random.key(seed), tolerance=1e-3)
    best_params, best = basin(elbo, fit.q.params)
    assert fit.converged and best - float(elbo(fit.q.params)) < 0.01
    (found,), (exact,) = (probabilities(np.asarray(p)[:110], [111]) for p in (fit.q.params, best_params))
    assert np.max(np.abs(found - exact)) < 0.02
    np.testing.assert_allclose(np.exp(fit.q.params[110:]), np.exp(best_params[110:]), rtol=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_values_that_the_start_all_but_excludes_are_found(seed):
    """Two of sixty values hold the mass, each with a mean of its own for x; the start knows one of them."""
    worth = np.full(60, -12.0)
    worth[[7, 41]] = 0.0
    centre = np.zeros(60)
    centre[41] = 0.5
    target = Target(
        lambda t: jnp.asarray(worth)[t["z"]] - (t["x"] - jnp.asarray(centre)[t["z"]]) ** 2 / 2,
        {"z": np.array(7), "x": 0.0},
        {"z": constraints.integer_interval(0, 59)},
        order=0,
    )
    q = MeanField(target)
    params = np.asarray(q.params).copy()
    params[q.parameter_slices()["z"]] = -16.0
    params[q.parameter_slices()["z"]][6] = 0.0
    found = run(target, family=q.replace(jnp.asarray(params)), key=jax.random.key(seed))
    probability = probabilities(np.asarray(found.q.params)[q.parameter_slices()["z"]], [60])[0]
    assert found.converged and np.all(probability[[7, 41]] > 0.4)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("make", "posterior"),
    [
        (examples.poisson_gamma, [[2 + 12, 3.5], [2 + 1, 3.5], [2 + 36, 3.5]]),
        (examples.beta_bernoulli, [[1 + 1, 1 + 4], [1 + 7, 1 + 2], [1 + 30, 1 + 11]]),
    ],
    ids=["Poisson-Gamma", "Beta-Bernoulli"],
)
def test_posteriors_in_the_family_within_three_steps(make, posterior, seed):
    target, family = make()
    fit = run(target, family=family, key=jax.random.key(seed), num_steps=3)
    np.testing.assert_allclose(np.exp(fit.q.params).reshape(-1, 2), posterior, rtol=1e-6)
    assert fit.converged and fit.remaining_gain + fit.remaining_gain_se < 1e-6


def test_correlated_gaussian_in_few_steps():
    precision = np.array([[2.0, 0.8, -0.3], [0.8, 1.0, 0.2], [-0.3, 0.2, 0.5]])
    centre = np.array([1.0, -2.0, 0.5])
    target = Target(lambda t: -(t["x"] - centre) @ precision @ (t["x"] - centre) / 2, {"x": np.zeros(3)}, order=0)
    fit = run(target, family="mean_field", num_steps=8, tolerance=1e-6)
    found = np.asarray(fit.q.params).reshape(3, 2)
    # A gain of 1e-6 nats is a shift of 0.0014 sds.
    np.testing.assert_allclose(found[:, 0], centre, atol=3e-3)
    np.testing.assert_allclose(np.exp(-2 * found[:, 1]), np.diag(precision), rtol=6e-3)


def test_without_correction_the_step_is_the_natural_gradient():
    target = examples.noisy_or()
    fit = run(target, method=PooledRegression(correction=False))
    elbo = enumerated_elbo(target)
    assert fit.converged and np.all(fit.history.shrinkage == 0)
    assert basin(elbo, fit.q.params)[1] - float(elbo(fit.q.params)) < 0.05


def way(method, target, key, num_steps) -> list[tuple[int, np.ndarray]]:
    """The parameters after each step, and the calls that were spent before the step was judged."""
    problem, spent, out = Problem(target, MeanField(target)), 0, []
    state = method.init(problem, key)
    for _ in range(num_steps):
        state, news = method.advance(problem, state, key, Budget(1, 0.05))
        out.append((spent, np.asarray(state.q.params)))
        spent += news.counts.log_density
        if news.outcome or (news.gain and news.gain.within(0.05)):
            break
    return out


def test_fewer_calls_with_correction_than_without():
    target = examples.spike_and_slab()
    elbo = jax.jit(enumerated_elbo(target))
    calls = {True: [], False: []}
    for correction, hits in calls.items():
        for seed in range(3):
            path = way(PooledRegression(correction), target, jax.random.key(seed), 40)
            best = basin(elbo, path[-1][1])[1]
            hits.append(next(spent for spent, params in path if best - float(elbo(params)) < 0.1))
    assert np.median(calls[True]) <= 0.7 * np.median(calls[False])
    assert max(calls[True]) < 500


@pytest.mark.parametrize("name", ENUMERABLE)
def test_the_verdict_costs_about_as_much_as_the_climb(name):
    """Calls after q came within 0.1 nat of its optimum, against those before, and the exact gap of what converged."""
    target = ENUMERABLE[name]()
    elbo = jax.jit(enumerated_elbo(target))
    climbs, wholes = [], []
    for seed in range(5):
        path, fit = way(PooledRegression(), target, jax.random.key(seed), 40), run(target, key=jax.random.key(seed))
        best = basin(elbo, fit.q.params)[1]
        assert fit.converged and best - float(elbo(fit.q.params)) < 0.05
        climbs.append(next(spent for spent, params in path if best - float(elbo(params)) < 0.1))
        wholes.append(fit.counts.log_density)
    # Two batches and sixty effective draws are the least, whatever the climb took.
    assert np.median(wholes) < 2 * np.median(climbs) + 100


def test_a_step_that_promises_next_to_nothing_leaves_the_radius():
    """At the end every step is within the noise: refused or not, its size is no measure of what may be trusted."""
    target = examples.noisy_or()
    problem, key = Problem(target, MeanField(target)), jax.random.key(2)
    method = PooledRegression()
    state = method.init(problem, key)
    radii = []
    for _ in range(20):
        state, news = method.advance(problem, state, key, Budget(1, 0.05))
        radii += [row["radius"] for row in news.rows if row["predicted_gain"] < 0.1 * 0.05]
    assert len(radii) >= 5 and min(radii) > 1e-2


def test_default_by_kind_of_target():
    bits = Target(lambda t: -1.0 * jnp.sum(t["x"]), {"x": np.zeros(513, int)}, {"x": constraints.boolean}, order=0)
    few = Target(lambda t: -1.0 * jnp.sum(t["x"]), {"x": np.zeros(2, int)}, {"x": constraints.boolean})
    smooth = Target(lambda t: -(t["x"] ** 2) / 2, {"x": 0.3})
    assert isinstance(run(bits, num_steps=1).method, SchemeI)
    assert isinstance(run(few).method, PooledRegression)
    assert not isinstance(run(smooth).method, PooledRegression)


def test_float32():
    with jax.enable_x64(False):
        target = Target(
            lambda t: jnp.where(t["z"] == 1, -((t["x"] - 1) ** 2), -(t["x"] ** 2)) - 0.2 * t["z"],
            {"z": np.array(0), "x": np.float32(0.5)},
            {"z": constraints.boolean},
            order=0,
        )
        fit = run(target)
        assert fit.q.params.dtype == jnp.float32 and fit.converged


def test_same_key_same_bits():
    target = examples.noisy_or()
    first, second = run(target), run(target)
    np.testing.assert_array_equal(first.q.params, second.q.params)
    assert first.counts == second.counts


def test_nothing_is_compiled_anew_for_another_number_of_draws():
    target = Target(lambda theta: -(theta["x"] ** 4).sum(), {"x": np.full(2, 0.5)}, order=0)
    run(target, tolerance=0.5)
    with compilations() as names:
        fit = run(target, tolerance=5e-3)
    assert len(set(fit.history.num_draws)) > 1
    assert names == []
    with compilations() as names:  # the log sees what is compiled
        run(Target(lambda theta: -(theta["x"] ** 2).sum(), {"x": np.full(2, 0.5)}, order=0))
    assert names


def test_log_density_without_a_value_is_an_outcome_or_an_error():
    never = Target(lambda t: jnp.where(t["x"] > 1e6, 0.0, -jnp.inf), {"x": 0.1}, order=0)
    with pytest.raises(ValueError, match="-inf at init"):
        run(never)
    half = Target(lambda t: jnp.where(t["x"] > 0, -t["x"], -jnp.inf), {"x": 0.1}, order=0)
    assert run(half).outcome in (Outcome.NON_FINITE, Outcome.NOT_A_MAXIMUM, Outcome.MAX_STEPS)


def test_settings_are_checked():
    with pytest.raises(ValueError, match="first_draws must be an integer of at least 8; got 3"):
        PooledRegression(first_draws=3)


def test_interruption_keeps_the_fit(monkeypatch):
    target = examples.noisy_or()
    calls = []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return draw(*args)

    draw = program.draw
    monkeypatch.setattr(program, "draw", interrupted)
    fit = run(target)
    assert fit.outcome is Outcome.INTERRUPTED and len(fit.history) >= 1
    assert np.isfinite(fit.elbo)


def test_natural_parameters_that_leave_the_family_fall_back():
    target = Target(lambda t: -t["x"], {"x": 1.0}, {"x": constraints.positive}, order=0)
    q = MeanField(target, {"x": factors.Gamma()})
    far = q.move(jnp.asarray([0.0, -50.0]))
    assert np.all(np.isfinite(far.params))
