"""What is particular to Bordered: exact answers of hierarchical normals, its blocks, its cost, its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family_registry import FAMILIES, crossed, grouped, mixed, several_kinds
from numpyro.distributions import constraints
from scipy.optimize import minimize

import curvi
from curvi import Bordered, FullRank, MeanField, MinibatchTarget, Outcome, Target
from curvi.estimate.fixed_draws.noise import matched_noise
from curvi.estimate.fixed_draws.objective import Objective
from curvi.family.arrow_path import ArrowRoot

RNG = np.random.default_rng(5)
GROUPS, SIZE = 5, 4
X = RNG.normal(size=(GROUPS, SIZE)) + 1
Y = X * RNG.normal(size=(GROUPS, 1)) + RNG.normal(size=(GROUPS, 1)) + RNG.normal(size=(GROUPS, SIZE))
BLOCKS = {"group": ["level", "slope"]}


def hierarchy(order=2, dtype=float, x=X, y=Y):
    """Rows in groups with their own level and slope, around common ones: a normal posterior."""
    x, y, num = x.astype(dtype), y.astype(dtype), len(x)

    def log_density(t):
        rows = y - t["level"][:, None] - t["slope"][:, None] * x
        groups = jnp.sum((t["level"] - t["mean"][0]) ** 2) + 4 * jnp.sum((t["slope"] - t["mean"][1]) ** 2)
        return -0.5 * (jnp.sum(rows**2) + groups + jnp.sum(t["mean"] ** 2))

    init = {"level": np.zeros(num, dtype), "mean": np.zeros(2, dtype), "slope": np.zeros(num, dtype)}
    return Target(log_density, init, order=order)


def posterior(target):
    """Mean, covariance and log normaliser of a normal density, in the order of its latents."""
    q = FullRank(target)
    ln_p = lambda v: target.full()(q.to_model((v,))[0])  # noqa: E731
    zero = jnp.zeros(q.dimension)
    covariance = np.linalg.inv(-np.asarray(jax.hessian(ln_p)(zero)))
    mean = covariance @ np.asarray(jax.grad(ln_p)(zero))
    normaliser = float(ln_p(jnp.asarray(mean))) + 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
    return mean, covariance, normaliser


def fitted(target, family, **more):
    return curvi.fit(target, key=jax.random.key(0), family=family, progress=False, **more)


@pytest.mark.parametrize("order", [1, 2])
def test_it_is_exact_on_a_normal_hierarchy(order):
    target = hierarchy(order)
    mean, covariance, evidence = posterior(target)
    found = fitted(target, Bordered(target, BLOCKS), tolerance=1e-6)
    assert found.converged and len(found.history.elbo) <= 8
    np.testing.assert_allclose(found.q.mean(), mean, atol=5e-3)
    np.testing.assert_allclose(found.q.covariance(), covariance, atol=5e-3)
    np.testing.assert_allclose(found.elbo, evidence, atol=1e-4)
    apart = fitted(target, Bordered(target, {"level": "level", "slope": "slope"}))
    assert apart.converged and apart.elbo < evidence - 0.3


def test_single_precision():
    target = hierarchy(dtype=np.float32)
    found = fitted(target, Bordered(target, BLOCKS))
    assert found.q.params.dtype == np.float32 and found.outcome in (Outcome.CONVERGED, Outcome.PRECISION)
    np.testing.assert_allclose(found.q.covariance(), posterior(hierarchy())[1], atol=0.03)


def test_minibatches():
    num = 40
    levels = RNG.normal(size=4)
    data = {"y": levels[np.arange(num) % 4] + RNG.normal(size=num), "group": np.arange(num) % 4}

    def prior(t):
        return -0.5 * jnp.sum((t["level"] - t["mean"]) ** 2) - 0.5 * t["mean"] ** 2

    def row(t, one):
        return -0.5 * (one["y"] - t["level"][one["group"]]) ** 2

    init = {"level": np.zeros(4), "mean": np.zeros(())}
    target = MinibatchTarget(prior, row, data, 20, init)
    found = fitted(target, Bordered(target, {"group": "level"}))
    whole = Target(lambda t: prior(t) + jnp.sum(jax.vmap(lambda one: row(t, one))(data)), init)
    assert found.converged
    mean, covariance, _ = posterior(whole)
    np.testing.assert_allclose(found.q.mean(), mean, atol=0.2 * np.sqrt(covariance.max()))
    np.testing.assert_allclose(found.q.covariance(), covariance, atol=0.15 * covariance.max())


def best_on_plain_draws(target, q, num_draws=4096):
    """The best ELBO of the family of q on fixed draws, by a general optimiser over all of its parameters."""
    noise = np.random.default_rng(0).normal(size=(num_draws // 2, q.noise_size))
    noise = jnp.asarray(np.concatenate([noise, -noise]))
    density = target.full()

    @jax.jit
    def negative(params):
        moved = q.replace(params)
        return -jax.vmap(lambda e: moved.log_joint(density, moved.from_normal(e)))(noise).mean() - moved.entropy()

    value_and_grad = jax.jit(jax.value_and_grad(negative))
    found = minimize(lambda p: tuple(map(np.asarray, value_and_grad(p))), np.asarray(q.params), jac=True, method="BFGS")
    fresh = jnp.asarray(np.random.default_rng(1).normal(size=(num_draws, q.noise_size)))
    best = q.replace(jnp.asarray(found.x))
    values = jax.vmap(lambda e: best.log_joint(density, best.from_normal(e)))(fresh) + best.entropy()
    return float(values.mean()), float(values.std() / num_draws**0.5)


@pytest.mark.parametrize("name", ["bordered", "bordered, crossed"])
def test_the_best_of_the_family_is_found(name):
    row = FAMILIES[name]
    target = row.target()
    best, error = best_on_plain_draws(target, row.family(target))
    found, narrow = fitted(target, row.family(target)), fitted(target, "mean_field")
    assert found.converged and found.elbo > best - 0.1 - 3 * np.hypot(error, found.elbo_se)
    assert curvi.compare(found, narrow).difference > -0.05


@pytest.mark.parametrize(("make", "blocks"), [(grouped, {"g": ["a", "b"]}), (mixed, {"g": "x"})])
def test_it_is_saved_resumed_and_shown(make, blocks, tmp_path):
    target = make()
    whole = fitted(target, Bordered(target, blocks), tolerance=1e-2)
    part = fitted(target, Bordered(target, blocks), tolerance=1e-2, num_steps=3)
    part.save(tmp_path / "fit.curvi")
    again = curvi.load(tmp_path / "fit.curvi", target)
    resumed = curvi.fit(target, start=again, progress=False, tolerance=1e-2)
    np.testing.assert_array_equal(resumed.q.params, whole.q.params)
    assert "s" in str(whole.summary()) and np.isfinite(whole.khat)
    whole.report(tmp_path / "report.html")
    assert [row.name for row in whole.families] == ["bordered"]


def test_linear_response_is_that_of_the_posterior():
    target = hierarchy()
    found = fitted(target, Bordered(target, {"level": "level", "slope": "slope"}))
    sds = found.sd(kind="linear_response")
    own = np.sqrt(np.diag(posterior(target)[1]))
    np.testing.assert_allclose(sds["level"], own[:GROUPS], rtol=0.1)
    np.testing.assert_allclose(sds["slope"], own[-GROUPS:], rtol=0.1)


# -- the pattern ------------------------------------------------------------------------------------------------------


def test_blocks_meet_in_the_globals_alone():
    """The precision of two blocks, and of two sets, is zero; a border left out is another family."""
    q = FAMILIES["bordered, crossed"].q()
    precision = np.linalg.inv(np.asarray(q.covariance()))
    own = np.zeros((5, 5), bool)
    for block in ([0], [1], [2, 3]):
        own[np.ix_([*block, 4], [*block, 4])] = True
    np.testing.assert_allclose(precision[~own], 0, atol=1e-10)
    assert np.all(np.abs(precision[own]) > 1e-3)


def test_a_root_without_its_border_is_another_metric():
    q = FAMILIES["bordered"].q()
    params, v = np.asarray(q.params), np.cos(np.arange(q.num_params))
    fisher = np.asarray(q.fisher().dense())
    right, wrong = (ArrowRoot(q.normal_path, params) for _ in range(2))
    np.testing.assert_allclose(fisher @ right.solve_transpose(right.solve(v)), v, atol=1e-8)
    wrong.factor = wrong.factor._replace(sides=tuple(0 * side for side in wrong.factor.sides))
    assert np.abs(fisher @ wrong.solve_transpose(wrong.solve(v)) - v).max() > 0.1


def test_noise_has_the_moments_of_the_pattern():
    """Second moments are exact where q can follow them, with far fewer pairs than dimensions."""
    target = Target(lambda t: -jnp.sum(t["x"] ** 2), {"x": np.zeros((40, 2)), "g": np.zeros(3)})
    path = Bordered(target, {"rows": "x"}).normal_path
    noise = matched_noise(np.random.default_rng(0), 16, 83, 1, by=path.match)
    moments = noise.T @ noise / 16 - np.eye(83)
    np.testing.assert_allclose(moments[:3], 0, atol=1e-10)
    for first in range(3, 83, 2):
        np.testing.assert_allclose(moments[first : first + 2, first : first + 2], 0, atol=1e-10)
    assert np.abs(moments).max() > 0.1
    assert Bordered(target, {"rows": "x"}).min_draws == 10


def chain_of_groups(num):
    rng = np.random.default_rng(0)
    return hierarchy(x=rng.normal(size=(num, 2)), y=rng.normal(size=(num, 2)))


def test_the_work_is_linear_in_the_number_of_groups():
    """Numbers held and evaluations; time is their product."""
    held, evaluations = [], []
    for num in (100, 3000):
        target = chain_of_groups(num)
        q = Bordered(target, BLOCKS)
        held.append(q.num_params)
        objective = Objective(target, q, jax.random.key(0), 64)
        local = objective(np.asarray(q.params), objective.noise(np.asarray(q.params), (1,), 64))
        bend = local.minus_curvature(local.root(), local.root().solve(local.grad))
        assert bend.shape == (q.num_params,) and np.all(np.isfinite(bend))
        found = curvi.fit(target, key=jax.random.key(0), family=q, progress=False)
        assert found.converged
        evaluations.append(found.counts.evaluations)
    assert held[1] < 31 * held[0] and evaluations[1] <= 2 * evaluations[0]


# -- blocks by name ---------------------------------------------------------------------------------------------------


def test_of_a_mean_field_is_the_same_q():
    narrow = MeanField(mixed())
    narrow = narrow.replace(narrow.params + 0.3 * jnp.cos(jnp.arange(narrow.num_params)))
    q = Bordered.of(narrow, {"each": "x"})
    np.testing.assert_allclose(q.entropy(), narrow.entropy(), rtol=1e-12)
    np.testing.assert_allclose(q.mean(), [narrow.params_of("x")[0], narrow.params_of("x")[2], narrow.params_of("s")[0]])
    assert q.arrow.num_global == 1 and q.arrow.sets[0].count == 2


def test_bad_blocks_are_named():
    target, both = crossed(), {"column": {"w": 1}}
    for blocks, words in {
        "unknown": ({"column": "v"}, "names an unknown latent 'v'; the target has w, p, u"),
        "overlap": ({**both, "again": {"w": 1}}, "blocks overlap: latent 'w' is in the sets 'column' and 'again'"),
        "twice": ({"column": ["w", "w"]}, "names a latent twice"),
        "counts": ({"column": {"w": 1, "p": 0}}, "have 2 and, in 'p', 1 blocks"),
        "axis": ({"column": {"w": 2}}, "'w' of shape \\(1, 2\\) has no axis 2"),
        "event": ({"row": {"p": 1}}, "'p' of shape \\(1, 3\\) has no axis 1 of independent entries"),
        "scalar": ({"row": "u"}, "'u' of shape \\(\\) has no axis 0"),
        "kind": ({"row": 3}, "must be the name of a latent, a list of names, or a dict of axes"),
        "empty": ({}, "blocks must name sets of blocks"),
        "string": ("w", "blocks must name sets of blocks"),
    }.values():
        with pytest.raises(ValueError, match=words):
            Bordered(target, blocks)
    with pytest.raises(ValueError, match="the target knows of no plates"):
        curvi.fit(target, key=jax.random.key(0), family="bordered")
    with pytest.raises(ValueError, match=r"'bit' of the set of blocks 'g' is discrete"):
        Bordered(mixed(), {"g": "bit"})
    with pytest.raises(ValueError, match="the factors of s, share are not Normal"):
        Bordered.of(MeanField(several_kinds(), {"s": curvi.factors.LogNormal(), "share": curvi.factors.Beta()}), both)
    wide = Target(lambda t: -jnp.sum(t["x"] ** 2) - jnp.sum(t["g"] ** 2), {"x": np.zeros(20_000), "g": np.zeros(5_000)})
    with pytest.raises(ValueError, match="with 5,000 global coord"):
        Bordered(wide, {"rows": "x"})
    bits = Target(
        lambda t: -jnp.sum(t["x"] ** 2) * t["z"], {"x": np.zeros((80, 9)), "z": np.array(0)}, {"z": constraints.boolean}
    )
    with pytest.raises(ValueError, match="at most 2,144 parameters beside discrete latents"):
        Bordered(bits, {"rows": "x"})
