"""Laws of families: draws, densities, scores, metric, moves, paths and steps, over a registry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family_registry import FAMILIES, PRECISION, both_triangles, elbo_on, evidence, fixed_point, gaussian
from law_statistics import assert_zero_mean

import curvi
from curvi import FullRank, MeanField, Outcome, Target
from curvi.control.climb import climb_step
from curvi.curvature import BlockDiagonal
from curvi.estimate.fixed_draws.objective import Objective
from curvi.record.plain import from_plain, to_plain


def rows(holds=lambda row: True):
    names = {name: row for name, row in FAMILIES.items() if holds(row)}
    slow = {name: [pytest.mark.slow] if row.slow else [] for name, row in names.items()}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=slow[name]) for name in names])


every = rows()
smooth = rows(lambda row: row.normal and not row.values)


def each(function, x):
    return jax.jit(jax.vmap(function))(x)


def draws(q, seed=0, count=4000):
    return each(q.sample, jax.random.split(jax.random.key(seed), count))


def spread_out(x, by=1.1):
    """Draws that are wider than they were about their mean, if they are continuous."""
    return jax.tree.map(lambda v: v if v.dtype.kind == "i" else v.mean(0) + by * (v - v.mean(0)), x)


@every
def test_draws_follow_the_density(name):
    q = FAMILIES[name].q()
    other = q.replace(q.params + 0.1 * jnp.sin(jnp.arange(q.num_params)))
    x = draws(q)

    def residuals(x):
        log_q, log_other = (each(one.log_prob, x) for one in (q, other))
        # The mean of -ln q is the entropy, that of another density over q is one.
        return np.stack([-log_q - q.entropy(), jnp.exp(log_other - log_q) - 1], 1)

    assert_zero_mean(residuals(x))
    with np.errstate(all="ignore"):
        wrong = residuals(spread_out(x, 1.2))
    with pytest.raises(AssertionError):
        assert_zero_mean(wrong[np.all(np.isfinite(wrong), 1)])


@every
def test_scores_and_metric(name):
    q = FAMILIES[name].q()
    x = draws(q, 1)
    scores, fisher = np.asarray(each(q.score, x)), np.asarray(q.fisher().dense())

    def products(metric):
        white = np.linalg.solve(np.linalg.cholesky(metric), scores.T).T
        return (white[:, :, None] * white[:, None, :] - np.eye(q.num_params)).reshape(len(white), -1)

    assert_zero_mean(scores)
    assert_zero_mean(products(fisher), 5.0)
    hessian = np.asarray(each(lambda one: q.hessian(one).dense(), x))
    assert_zero_mean((scores[:, :, None] * scores[:, None, :] + hessian).reshape(len(scores), -1), 5.0)
    wrong = 1.3 * fisher if np.allclose(fisher, np.diag(np.diag(fisher))) else np.diag(np.diag(fisher))
    with pytest.raises(AssertionError):
        assert_zero_mean(products(wrong), 5.0)


@every
def test_the_derivatives_of_the_entropy(name):
    q = FAMILIES[name].q()
    at = lambda params: q.replace(params).entropy()  # noqa: E731
    np.testing.assert_allclose(q.entropy_gradient(), jax.jit(jax.grad(at))(q.params), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(q.entropy_hessian().dense(), jax.jit(jax.hessian(at))(q.params), rtol=1e-8, atol=1e-10)


@every
def test_moves_stay_in_the_family_at_their_distance(name):
    q = FAMILIES[name].q()
    direction = np.cos(3.0 * np.arange(q.num_params))
    step = 0.1 * direction / np.linalg.norm(direction)
    x = draws(q, 2, 10_000)

    def distance(moved):
        log_ratio = each(lambda one: moved.log_prob(one) - q.log_prob(one), x)
        # E[r] = 1, so that r - 1 - ln r has the mean of -ln r, and no term below zero.
        return float(jnp.mean(jnp.expm1(log_ratio) - log_ratio))

    moved = q.move(jnp.asarray(step))
    assert type(moved) is type(q) and moved.layout == q.layout and np.all(np.isfinite(moved.params))
    nats = float(step @ step) / 2
    np.testing.assert_allclose(distance(moved), nats, rtol=0.15)
    # Twice the step in another metric is four times as far.
    assert abs(distance(q.move(jnp.asarray(2 * step))) / nats - 1) > 1


@every
def test_saved_and_read_again(name):
    q = FAMILIES[name].q()
    arrays = []
    again = from_plain(to_plain(q, arrays), arrays, {latent.name: latent for latent in q.latents})
    assert type(again) is type(q) and again.layout == q.layout and again.latents == q.latents
    np.testing.assert_array_equal(again.params, q.params)
    x = q.sample(jax.random.key(0))
    assert again.log_prob(x) == q.log_prob(x)


@every
def test_every_parameter_has_its_name_and_its_part(name):
    q = FAMILIES[name].q()
    labels, names = q.parameter_labels(), {latent.name for latent in q.latents}
    assert len(set(labels)) == len(labels) == q.num_params
    assert len(q.elements()) == q.num_params and {element.split("[")[0] for element in q.elements()} == names
    for one in (q.factor_of_param, q.location_params(), q.max_abs_params, q.pathwise_params):
        assert len(one) == q.num_params
    assert len(q.pathwise_columns) == q.noise_size and q.num_score_params == np.sum(~q.pathwise_params)
    assert q.reparameterised == (not q.latents_without_path) == bool(np.all(q.pathwise_params))


@smooth
def test_vectors_have_the_moments_that_the_family_says(name):
    q = FAMILIES[name].q()
    draws = jax.vmap(q.sample)(jax.random.split(jax.random.key(2), 4000))
    vectors = np.asarray(jax.vmap(q.to_vector)(draws))
    again, log_det = jax.vmap(q.from_vector)(jnp.asarray(vectors))
    jax.tree.map(np.testing.assert_array_equal, again, draws)
    assert not np.any(log_det)
    mean, covariance = map(np.asarray, q.moments())
    covariance = np.diag(covariance) if covariance.ndim == 1 else covariance
    away = vectors - mean
    assert_zero_mean(away)
    products = away[:, :, None] * away[:, None, :]
    assert_zero_mean((products - covariance).reshape(len(away), -1))
    with pytest.raises(AssertionError):
        assert_zero_mean((products - 1.2 * covariance).reshape(len(away), -1))


# -- draws on fixed noise ---------------------------------------------------------------------------------------------


@smooth
def test_the_path_is_that_of_the_family(name):
    """Value, gradient and product on fixed noise, against automatic differentiation through the draws."""
    row, q = FAMILIES[name], FAMILIES[name].q()
    target, params = row.target(), np.asarray(q.params)
    objective = Objective(target, q, jax.random.key(0), 256)
    objective.exact_products = True
    fixed = objective.noise(params, (1,), 64)
    noise, direction = jnp.asarray(fixed.values), np.cos(np.arange(len(params)))

    @jax.jit
    def exact(p):
        elbo = lambda p: elbo_on(q.replace(p), target, noise)  # noqa: E731
        return jax.value_and_grad(elbo)(p), jax.jvp(jax.grad(elbo), (p,), (jnp.asarray(direction),))[1]

    (exact_value, exact_grad), exact_product = exact(q.params)

    def agrees(grad, product):
        np.testing.assert_allclose(grad, exact_grad, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(product, exact_product, rtol=1e-8, atol=1e-9)

    local = objective(params, fixed)
    grad, product = local.grad, local.curvature.mv(direction)
    np.testing.assert_allclose(local.value, exact_value, rtol=1e-10)
    agrees(grad, product)
    if isinstance(q, FullRank) and q.dimension > 1:
        missing = np.arange(q.num_params) >= 2 * q.dimension  # the strict triangle of the factor
        for wrong in ((np.where(missing, 0.0, grad), product), (grad, np.where(missing, 0.0, product))):
            with pytest.raises(AssertionError):
                agrees(*wrong)


@rows(lambda row: row.normal)
def test_the_root_of_the_metric(name):
    row, q = FAMILIES[name], FAMILIES[name].q()
    objective = Objective(row.target(), q, jax.random.key(0), 64)
    local = objective(np.asarray(q.params), objective.noise(np.asarray(q.params), (1,), 64))
    v, fisher = np.cos(np.arange(q.num_params)), q.fisher() if q.reparameterised else q.metric()
    root = local.root()
    solved = root.solve_transpose(root.solve(v))
    if row.metric is not None and q.reparameterised:
        # What steps of this metric would measure by the Fisher information.
        steps = np.stack([root.solve_transpose(unit) for unit in np.eye(q.num_params)])
        values = np.linalg.eigvalsh(steps @ np.asarray(fisher.dense()) @ steps.T)
        assert values[0] > 0 and 1 < values[-1] < 1 / row.metric
        np.testing.assert_allclose(root.solve(v), steps @ v, atol=1e-10)
        return
    np.testing.assert_allclose(np.asarray(fisher.dense()) @ solved, v, atol=1e-8)
    doubled = BlockDiagonal(tuple(2 * block for block in fisher.blocks))
    assert np.abs(np.asarray(doubled.dense()) @ solved - v).max() > 0.1


@rows(lambda row: row.num_nodes > 0)
def test_gradient_and_product_are_those_of_quadrature(name):
    row, q = FAMILIES[name], FAMILIES[name].q()
    target, params = row.target(), np.asarray(q.params)
    direction = 0.3 * np.cos(2.0 * np.arange(q.num_params))
    exact = row.exact_elbo(target, q)
    value, grad = jax.jit(jax.value_and_grad(exact))(q.params)
    product = jax.jit(lambda p, v: jax.jvp(jax.grad(exact), (p,), (v,))[1])(q.params, jnp.asarray(direction))
    objective = Objective(target, q, jax.random.key(0), 256)
    objective.exact_products = True
    before = np.asarray(q.with_min_probability().params)
    found = []
    for index in range(150):
        local = objective(params, objective.noise(before, (index,), 256, match=False))
        found.append(np.concatenate([[local.value], local.grad, local.curvature.mv(direction)]))
    apart = np.stack(found) - np.concatenate([[value], grad, product])
    assert_zero_mean(apart)
    with pytest.raises(AssertionError):
        assert_zero_mean(apart + 0.1 * np.abs(np.concatenate([[value], grad, product])))


# -- steps ------------------------------------------------------------------------------------------------------------


@rows(lambda row: row.unit_step is not None)
def test_one_unit_step_is_exact_on_gaussians(name):
    row = FAMILIES[name]
    target = gaussian(row.gaussian)
    q = row.q()
    objective = Objective(target, q, jax.random.key(0), 64)
    noise = jnp.asarray(objective.noise(np.asarray(q.params), (1,), 64).values)
    moved = row.unit_step(q, target, noise)
    x = draws(moved, 3, 50)
    log_ratio = each(lambda one: moved.log_joint(target.full(), one) - moved.log_prob(one), x)
    np.testing.assert_allclose(log_ratio, evidence(row.gaussian), rtol=1e-8)


@rows(lambda row: row.gaussian is not None)
def test_newton_ends_gaussians_within_six_steps(name):
    """From about two nats away."""
    row = FAMILIES[name]
    target, q = gaussian(row.gaussian), row.q()
    objective = Objective(target, q, jax.random.key(0), 64)
    objective.exact_products = True
    fixed = objective.noise(np.asarray(q.params), (1,), 64)
    best = row.best() if row.unit_step is None else row.unit_step(q, target, jnp.asarray(fixed.values))
    direction = np.cos(np.arange(q.num_params))
    start = best.move(jnp.asarray(2 * direction / np.linalg.norm(direction)))
    local, radius, steps = objective(np.asarray(start.params), fixed), 6.0, 0
    assert evidence(row.gaussian) - local.value > 0.5
    while abs(local.value - evidence(row.gaussian)) > 1e-6:
        climbed = climb_step(objective, local, radius, 1e-9)
        local, radius, steps = climbed.local, climbed.radius, steps + 1
        assert steps <= 6


def test_both_triangles_of_a_stein_matrix_are_read():
    """In another order of the coordinates one step on the same draws ends at the same q."""
    rng = np.random.default_rng(1)
    order = np.array([2, 0, 3, 1])
    noise = rng.normal(size=(40, 4))
    noise = np.concatenate([noise, -noise])

    def density(x):
        return -0.5 * x @ PRECISION @ x - 0.1 * jnp.sum(jnp.tanh(x) * jnp.roll(x, 1) ** 2)

    own = Target(lambda t: density(t["x"]), {"x": np.zeros(4)})
    turned = Target(lambda t: density(jnp.zeros(4).at[order].set(t["x"])), {"x": np.zeros(4)})

    def apart(read):
        here, there = (
            fixed_point(FullRank(target), target, jnp.asarray(e), read)
            for target, e in ((own, noise), (turned, noise[:, order]))
        )
        covariance, other = (np.asarray(q.factor() @ q.factor().T) for q in (here, there))
        return np.abs(covariance[np.ix_(order, order)] - other).max()

    assert apart(both_triangles) < 1e-10
    assert apart(lambda matrix: np.tril(matrix) + np.tril(matrix, -1).T) > 1e-3


def test_with_fewer_pairs_than_dimensions_the_elbo_is_unbounded():
    target = gaussian()
    q = FullRank(target)
    objective = Objective(target, q, jax.random.key(0), 64)
    far = []
    for num_pairs in (3, 16):
        half = np.random.default_rng(0).normal(size=(num_pairs, 4))
        fixed = objective.source.fixed(np.asarray(q.params), np.concatenate([half, -half]), 1)
        # A last row of L that no draw of three pairs feels, but for its entropy.
        unseen = np.linalg.svd(half)[2][-1]
        factor = np.array(q.factor())
        factor[-1] += 1e6 * np.sign(unseen[-1]) * unseen
        values = (objective(np.asarray(one.params), fixed).value for one in (q.with_moments(q.mean(), factor), q))
        far.append(next(values) - next(values))
    assert far[0] > 10 and far[1] < -1e3
    for method in (curvi.methods.GrowingDraws(max_draws=64), curvi.methods.LBFGS(num_draws=64)):
        wide = Target(lambda t: -jnp.sum(t["x"] ** 2), {"x": np.zeros(50)})
        for family in ("full_rank", FullRank(wide)):
            needed = f"at most 64 fixed draws, but FullRank needs {FullRank(wide).min_draws} here"
            with pytest.raises(ValueError, match=needed):
                curvi.fit(wide, key=jax.random.key(0), family=family, method=method, progress=False)
        assert method.why_not(curvi.methods.base.Problem(wide, MeanField(wide))) is None


# -- fits -------------------------------------------------------------------------------------------------------------


def fitted(target, family, seed=0):
    found = curvi.fit(target, key=jax.random.key(seed), family=family(target), progress=False)
    assert found.converged
    return found


def same_elbo(one, other):
    """Whether two fits end at the same ELBO within three standard errors, and what each has left to gain."""
    left = one.remaining_gain + other.remaining_gain + 1e-6
    return abs(one.elbo - other.elbo) <= 3 * np.hypot(one.elbo_se, other.elbo_se) + left


@rows(lambda row: row.normal)
def test_the_order_of_the_latents_does_not_matter(name):
    row = FAMILIES[name]
    target = row.target()
    latents = target.latents[::-1]
    density = target.full()
    if len(latents) == 1 and latents[0].shape:
        turned = Target(lambda t: density({"x": t["x"][::-1]}), {"x": target.init["x"][::-1]})
    else:
        init = {latent.name: target.init[latent.name] for latent in latents}
        around = {
            site.name: (lambda t, site=site: site.function({name: t[name] for name in site.parents}))
            for site in target.location_scale
        }
        supports = {latent.name: latent.support for latent in latents}
        turned = Target(density, init, supports, location_scale=around)
        assert turned.latents != target.latents or len(latents) == 1
    assert same_elbo(fitted(target, row.family), fitted(turned, row.family))


ROTATION = np.linalg.qr(np.random.default_rng(2).normal(size=(4, 4)))[0]


def bent(rotation):
    """A density with heavier shoulders than a normal one, in rotated coordinates."""

    def log_density(t):
        y = rotation @ t["x"]
        return -0.5 * y @ PRECISION @ y - 0.05 * jnp.sum(y**4)

    return Target(log_density, {"x": np.zeros(4)})


def test_rotations_do_not_matter_to_families_that_turn_with_them():
    for row in FAMILIES.values():
        if row.rotates:
            assert same_elbo(fitted(bent(np.eye(4)), row.family), fitted(bent(ROTATION), row.family))
    assert not same_elbo(fitted(bent(np.eye(4)), MeanField), fitted(bent(ROTATION), MeanField))


@pytest.mark.parametrize("name", ["mean field", "full rank"])
def test_a_jump_is_seen(name):
    """The gradient along the draws does not see it; the values do."""
    target = Target(
        lambda t: -0.5 * t["x"] @ PRECISION @ t["x"] + jnp.where(t["x"][0] > 0.3, 3.0, 0.0), {"x": np.zeros(4)}
    )
    found = curvi.fit(target, key=jax.random.key(0), family=FAMILIES[name].family(target), progress=False)
    assert found.outcome is Outcome.DISAGREEMENT and "x[0]" in found.suspects
