"""Laws of the estimators: unbiased against exact oracles, honest about their noise, cheap where they claim to be."""

import dataclasses
from functools import lru_cache

import equinox as eqx
import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from law_statistics import assert_zero_mean
from numpyro.distributions import constraints

from curvi import MeanField, Target
from curvi.curvature import BlockLowRank
from curvi.estimate import (
    AnchoredScore,
    Antithetic,
    Independent,
    MatrixControl,
    PaperScore,
    ParameterControl,
    Pathwise,
    ScalarControl,
    Sobol,
    Stein,
    Stratified,
)
from curvi.estimate.draws import SOBOL_DIMENSIONS
from curvi.solve import CG, Dense, LiSSA, ShermanMorrison, Woodbury

NUM_REPLICATES = 4000

DRAWS = {"independent": Independent(), "antithetic": Antithetic(), "sobol": Sobol(num_scrambles=2)}
DRAWS["stratified"] = Stratified(num_designs=2)
CONTROLS = {"scalar": ScalarControl(), "parameter": ParameterControl(), "matrix": MatrixControl()}

ESTIMATORS = {
    "paper": PaperScore(4),
    "paper, separate gradient draws": PaperScore(4, 6),
    "paper, sobol": PaperScore(8, draws=DRAWS["sobol"]),
    "paper, parameter control": PaperScore(8, control=CONTROLS["parameter"]),
    **{f"anchored, {name}": AnchoredScore(8, draws=draws) for name, draws in DRAWS.items()},
    "anchored, separate gradient draws": AnchoredScore(4, 6),
    **{f"anchored, {name} control": AnchoredScore(8, control=control) for name, control in CONTROLS.items()},
    "anchored, antithetic, scalar control": AnchoredScore(8, draws=Antithetic(), control=CONTROLS["scalar"]),
    "pathwise": Pathwise(4, Independent()),
    "pathwise, antithetic": Pathwise(4),
    "pathwise, sobol": Pathwise(8, DRAWS["sobol"]),
    "stein": Stein(4, Independent()),
    "stein, antithetic": Stein(8),
    "stein, sobol": Stein(8, DRAWS["sobol"]),
}
PATHWISE = [name for name in ESTIMATORS if name.startswith(("pathwise", "stein"))]
SCORE = [name for name in ESTIMATORS if name not in PATHWISE]
BRIEF = ["paper", *[f"anchored, {name}" for name in DRAWS]]

PROBLEMS = {
    "bits": exact.bits,
    "categories": exact.categories,
    "gaussian": exact.gaussian,
    "precision and location": exact.precision_and_location,
    "gamma and beta": exact.gamma_and_beta,
    "regression in batches": exact.regression,
}
CASES = [
    *[("bits", name) for name in SCORE],
    *[("precision and location", name) for name in [*BRIEF, *PATHWISE]],
    ("gaussian", "anchored, independent"),
    ("gaussian", "pathwise, antithetic"),
    ("gaussian", "stein, antithetic"),
    ("categories", "anchored, independent"),
    ("categories", "anchored, sobol"),
    ("gamma and beta", "anchored, independent"),
    ("gamma and beta", "anchored, antithetic"),
    *[("regression in batches", name) for name in [*BRIEF[:3], "anchored, scalar control"]],
    *[("regression in batches", name) for name in ("pathwise, antithetic", "stein, antithetic")],
]


def replicate(estimator, target, q, keys):
    """What is to be judged of a local model, for every key."""

    def one(key):
        local = estimator(target, q, key)
        direction = jnp.cos(jnp.arange(local.grad.size, dtype=local.grad.dtype))
        return {
            "value": local.value,
            "value_variance": local.value_se**2,
            "grad": local.grad,
            "hessian": local.curvature.dense(),
            "product": local.curvature.mv(direction),
            "slope_variance": local.noise.variance_along(direction),
            "group_mean": local.noise.groups.mean(0),
            "draw_value": local.draw_values.mean(),
            "noise": local.noise.copy(),
        }

    return jax.lax.map(one, keys, batch_size=500)


def sample_local_models(estimator, problem, seed=0, num_replicates=NUM_REPLICATES):
    keys = jax.random.split(jax.random.key(seed), num_replicates)
    dynamic, static = eqx.partition((estimator, problem.target, problem.q, keys), eqx.is_array)
    # Most programs here run for a fraction of a second: they are compiled in haste. Not so quantiles by bisection.
    hasty = {} if problem is exact.gamma_and_beta() else {"xla_backend_optimization_level": 0}
    program = jax.jit(lambda arrays: replicate(*eqx.combine(arrays, static)), compiler_options=hasty)
    return jax.tree.map(np.asarray, program(dynamic))


def assert_mean(samples, truth):
    """Raise AssertionError unless the mean of the samples is the truth, up to its standard error or to rounding."""
    away = samples - truth
    # Mirrored draws make some entries exact: what is left of them is rounding, which has a mean and no spread.
    assert_zero_mean(np.where(np.abs(away.mean(0)) < 1e-12 * (1 + np.abs(truth)), 0.0, away))


def assert_unbiased(found, problem):
    assert_mean(found["value"], problem.value)
    assert_mean(found["grad"], problem.gradient)
    assert_mean(found["hessian"], problem.hessian)


@pytest.mark.parametrize(("problem", "estimator"), CASES)
def test_laws(problem, estimator):
    # One test and not three: the replicates cost their compilation, and parallel test processes share nothing.
    truth = PROBLEMS[problem]()
    found = sample_local_models(ESTIMATORS[estimator], truth)
    assert_unbiased(found, truth)
    check_parts_agree(found, truth)
    check_reported_noise(found, truth)


def check_parts_agree(found, truth):
    """Products, groups of draws and log ratios tell the same as the matrix, the gradient and the value."""
    direction = np.cos(np.arange(found["grad"].shape[1]))
    np.testing.assert_allclose(found["product"], found["hessian"] @ direction, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found["hessian"], np.swapaxes(found["hessian"], 1, 2), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found["group_mean"], found["grad"], rtol=1e-9, atol=1e-9)
    assert_mean(found["draw_value"], truth.value)


def check_reported_noise(found, truth):
    """The noise that a local model reports is the spread over replicates."""
    # Groups of draws are independent and equal: the variance that they report is itself unbiased.
    assert_zero_mean(found["value_variance"] - (found["value"] - truth.value) ** 2)
    # Of the gradient only nearly: with so few draws a baseline shared by the groups ties them together.
    direction = np.cos(np.arange(found["grad"].shape[1]))
    spread = (found["grad"] @ direction).var()
    assert 0.6 * spread < found["slope_variance"].mean() < 1.5 * spread
    # The stand-in for the gradient's noise: no mean, and the same spread.
    assert_zero_mean(found["noise"])
    assert 0.6 * spread < (found["noise"] @ direction).var() < 1.5 * spread


# -- the test has teeth -----------------------------------------------------------------------------------------------


class MissingCount(eqx.Module):
    """The paper's gradient and Hessian without 1/T and 1/S (erratum 1)."""

    base: PaperScore

    def __call__(self, target, q, key):
        local = self.base(target, q, key)
        entropy = q.entropy_gradient()
        grad = self.base.num_draws * (local.grad - entropy) + entropy
        return dataclasses.replace(local, grad=grad)


class MissingEntropyHessian(eqx.Module):
    """The paper's Hessian as Scheme II averages it, without the entropy (erratum 8)."""

    base: PaperScore

    def __call__(self, target, q, key):
        local = self.base(target, q, key)
        return dataclasses.replace(local, curvature=local.curvature.add_blocks(q.entropy_hessian().scale(-1.0)))


class MissingAnchor(eqx.Module):
    """E[M r] without -F."""

    base: AnchoredScore

    def __call__(self, target, q, key):
        local = self.base(target, q, key)
        return dataclasses.replace(local, curvature=local.curvature.add_blocks(local.fisher))


class MissingTurning(eqx.Module):
    """Stein's Hessian without the change of J at fixed x."""

    base: Stein

    def __call__(self, target, q, key):
        local = self.base(target, q, key)
        blocks = local.fisher.scale(-1.0)
        return dataclasses.replace(
            local, curvature=BlockLowRank(blocks, local.curvature.vectors, local.curvature.weights)
        )


class NaiveAntithetic(Antithetic):
    """Pairs passed off as independent draws: the baseline of a draw contains its mirror image."""

    def unit(self, q, num_draws):
        return 1


class NaiveSobol(Sobol):
    """Points of one net passed off as independent draws."""

    def unit(self, q, num_draws):
        return 1


class SameDrawControl(ScalarControl):
    """A coefficient fitted on the very draws that it is applied to."""

    def reduce(self, terms, scores, unit):
        return terms - self.fit(terms, scores)(scores)


BIASED = {
    "missing 1/S": (MissingCount(PaperScore(4)), exact.bits),
    "missing entropy Hessian": (MissingEntropyHessian(PaperScore(8)), exact.bits),
    "missing Fisher anchor": (MissingAnchor(AnchoredScore(8)), exact.bits),
    "missing change of J": (MissingTurning(Stein(8)), exact.gaussian),
    "leave-one-out over antithetic pairs": (AnchoredScore(4, draws=NaiveAntithetic()), exact.bits),
    "leave-one-out over a Sobol net": (AnchoredScore(8, draws=NaiveSobol(num_scrambles=2)), exact.bits),
    "control variate on its own draws": (PaperScore(4, control=SameDrawControl()), exact.bits),
    "N/B counted twice": (AnchoredScore(8), lambda: exact.regression(likelihood_factor=4.0)),
    "N/B counted twice, pathwise": (Pathwise(4), lambda: exact.regression(likelihood_factor=4.0)),
}


@pytest.mark.parametrize("name", BIASED)
def test_biased_estimators_fail_the_test_of_bias(name):
    estimator, problem = BIASED[name]
    with pytest.raises(AssertionError, match="standard errors from zero"):
        assert_unbiased(sample_local_models(estimator, problem()), problem())


# -- minibatches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [AnchoredScore(8), Pathwise(4)], ids=["anchored", "pathwise"])
def test_noise_of_minibatches_is_reported(estimator):
    whole = sample_local_models(estimator, exact.regression(batch_size=12))
    batched = sample_local_models(estimator, exact.regression(batch_size=3))
    assert batched["value"].var() > 1.5 * whole["value"].var()
    for variance in ("value_variance", "slope_variance"):
        assert batched[variance].mean() > 1.5 * whole[variance].mean()


@pytest.mark.parametrize("draws", [Independent(), Sobol()], ids=["one draw a batch", "one net a batch"])
def test_baseline_where_every_minibatch_holds_one_unit(draws):
    # Eight draws, eight batches: within a batch there is no other draw to take a baseline from.
    problem = exact.regression()
    assert_unbiased(sample_local_models(AnchoredScore(8, draws=draws), problem), problem)


# -- anchoring --------------------------------------------------------------------------------------------------------


def _posterior_bits():
    logits = np.array([0.3, -1.0, 2.0, 0.0])
    target = Target(
        lambda theta: jnp.asarray(logits) @ theta["x"] + 5.0,
        {"x": np.zeros(4, int)},
        {"x": constraints.boolean},
        order=0,
    )
    q = MeanField(target)
    return target, q.replace(jnp.asarray(logits))


def _posterior_normals():
    target = Target(lambda theta: -jnp.sum((theta["x"] - 1.0) ** 2 / 8) + 5.0, {"x": np.zeros(3)})
    q = MeanField(target)
    return target, q.replace(jnp.tile(jnp.array([1.0, np.log(2.0)]), 3))


@pytest.mark.parametrize(
    ("make", "estimator"),
    [(_posterior_bits, AnchoredScore), (_posterior_normals, AnchoredScore), (_posterior_normals, Stein)],
    ids=["bits", "normals", "normals, stein"],
)
@pytest.mark.parametrize("draws", DRAWS)
def test_anchored_noise_vanishes_at_the_posterior(make, estimator, draws):
    target, q = make()
    local = eqx.filter_jit(estimator(8, draws=DRAWS[draws]))(target, q, jax.random.key(0))
    np.testing.assert_allclose(local.grad, 0, atol=1e-13)
    np.testing.assert_allclose(local.curvature.dense(), -local.fisher.dense(), atol=1e-13)
    np.testing.assert_allclose(local.value_se, 0, atol=1e-13)


@lru_cache
def _shifted_models(kind, constant):
    estimator = {"paper": PaperScore(8), "anchored": AnchoredScore(8)}[kind]
    return sample_local_models(estimator, exact.gaussian(constant=constant), num_replicates=500)


def test_anchored_estimates_ignore_additive_constants():
    plain, shifted = _shifted_models("anchored", 0.0), _shifted_models("anchored", -1000.0)
    for part in ("grad", "hessian", "value_variance"):
        np.testing.assert_allclose(shifted[part], plain[part], rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(shifted["value"], plain["value"] - 1000, rtol=1e-12)


def test_additive_constants_swamp_the_paper_form():
    # Erratum 2: ln p(theta | x) and ln p(theta, x) differ by a constant, which leaves the mean and ruins the variance.
    plain, shifted = _shifted_models("paper", 0.0), _shifted_models("paper", -1000.0)
    assert_zero_mean(shifted["grad"] - exact.gaussian().gradient)
    for part in ("grad", "hessian"):
        noise = [found[part].var(0).sum() for found in (plain, shifted, _shifted_models("anchored", -1000.0))]
        assert noise[1] > 1e4 * noise[0] > 1e4 * noise[2]


# -- cost -------------------------------------------------------------------------------------------------------------


def _shapes(jaxpr):
    """Shapes of all arrays that a jaxpr makes, those of its inner jaxprs included."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars if hasattr(variable.aval, "shape"))
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(inner, "eqns"):
                yield from _shapes(inner)
            elif hasattr(inner, "jaxpr"):
                yield from _shapes(inner.jaxpr)


@pytest.mark.parametrize(
    "estimator",
    [PaperScore(8), AnchoredScore(8), Pathwise(8), Stein(8)],
    ids=["paper", "anchored", "pathwise", "stein"],
)
def test_products_form_no_square_array(estimator):
    target = Target(lambda theta: -jnp.sum(theta["x"] ** 4), {"x": np.zeros(250)})
    q = MeanField(target)

    def product(params, key, v):
        return estimator(target, q.replace(params), key).curvature.mv(v)

    def dense(params, key, v):
        return estimator(target, q.replace(params), key).curvature.dense()

    def largest(function):
        jaxpr = jax.make_jaxpr(function)(q.params, jax.random.key(0), q.params)
        return max(int(np.prod(shape)) for shape in _shapes(jaxpr.jaxpr))

    assert q.num_params == 500
    # S P numbers and a block of four per factor and draw; the dense form shows that the walk finds what there is.
    assert largest(product) <= 8 * 4 * 500 < 500**2 <= largest(dense)


def test_calls_are_counted():
    problem = exact.precision_and_location()

    def counts(estimator):
        local = eqx.filter_eval_shape(estimator, problem.target, problem.q, jax.random.key(0))
        return local.counts.log_density, local.counts.gradient, local.counts.hvp, local.calls_per_product

    assert counts(PaperScore(4, 6)) == (10, 0, 0, 0)
    assert counts(AnchoredScore(8)) == (8, 0, 0, 0)
    assert counts(Pathwise(4)) == (4, 4, 0, 4)
    assert counts(Stein(4)) == (4, 4, 0, 0)


# -- draws ------------------------------------------------------------------------------------------------------------


def test_sobol_beyond_its_dimensions_is_antithetic():
    size = SOBOL_DIMENSIONS + 1
    target = Target(lambda theta: -jnp.sum(theta["x"] ** 2), {"x": np.zeros(size)})
    q, key = MeanField(target), jax.random.key(0)
    assert size == 21_202 and Sobol().unit(q, 4) == 2
    np.testing.assert_array_equal(Sobol().sample(q, key, 4)[0], Antithetic().sample(q, key, 4)[0])
    np.testing.assert_array_equal(Sobol().noise(q, key, 4), Antithetic().noise(q, key, 4))


def test_sobol_draws_are_better_spread_than_independent_ones():
    problem = exact.precision_and_location()
    spread = {}
    for name in ("independent", "sobol"):
        spread[name] = sample_local_models(Pathwise(32, DRAWS[name]), problem, num_replicates=500)["value"].std()
    assert spread["sobol"] < 0.5 * spread["independent"]


def test_draws_are_reproducible():
    problem = exact.bits()
    for draws in DRAWS.values():
        sample = jax.jit(lambda key, draws=draws: draws.sample(problem.q, key, 8)[0])
        first, second, other = (sample(jax.random.key(seed)) for seed in (0, 0, 1))
        np.testing.assert_array_equal(first, second)
        assert np.any(first != other)


@pytest.mark.parametrize("estimator", [PaperScore, AnchoredScore, Pathwise])
@pytest.mark.parametrize("number", [0, -3, 2.5, None])
def test_a_wrong_number_of_draws_is_refused(estimator, number):
    with pytest.raises(ValueError, match="num_draws must be an integer"):
        estimator(number)


@pytest.mark.parametrize("estimator", [PaperScore, AnchoredScore])
def test_no_gradient_draws_are_refused(estimator):
    with pytest.raises(ValueError, match="num_gradient_draws"):
        estimator(8, 0)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (AnchoredScore(1 + 2, draws=Antithetic()), "units of 2"),
        (Pathwise(6, Sobol()), "multiple of num_scrambles"),
        (AnchoredScore(2, draws=Antithetic()), "1 unit"),
        (AnchoredScore(8, draws=Sobol(num_scrambles=1)), "1 unit"),
        (AnchoredScore(5, control=ScalarControl()), "even number"),
        (AnchoredScore(8, draws=Sobol(num_scrambles=2), control=ScalarControl()), "at least 4"),
    ],
)
def test_draws_that_do_not_divide_are_refused(estimator, message):
    problem = exact.precision_and_location()
    with pytest.raises(ValueError, match=message):
        eqx.filter_eval_shape(estimator, problem.target, problem.q, jax.random.key(0))


def test_one_group_of_draws_does_not_know_its_noise():
    problem = exact.precision_and_location()
    local = eqx.filter_jit(PaperScore(1))(problem.target, problem.q, jax.random.key(0))
    assert np.isinf(local.value_se) and np.isinf(local.noise.variance_along(local.grad))
    assert np.all(np.isnan(local.noise.copy()))


def test_curvature_is_block_diagonal_plus_low_rank():
    problem = exact.categories()
    local = eqx.filter_jit(AnchoredScore(8))(problem.target, problem.q, jax.random.key(0))
    assert isinstance(local.curvature, BlockLowRank)
    assert local.curvature.vectors.shape == (8, 7) and np.any(np.asarray(local.curvature.weights) < 0)


@pytest.mark.parametrize(
    ("estimator", "problem"), [(AnchoredScore(8), exact.bits), (Stein(8), exact.gaussian)], ids=["anchored", "stein"]
)
def test_halves_of_the_curvature_are_unbiased(estimator, problem):
    problem = problem()

    def halves(key):
        return [half.dense() for half in estimator(problem.target, problem.q, key).curvature_halves]

    for half in jax.jit(jax.vmap(halves))(jax.random.split(jax.random.key(0), NUM_REPLICATES)):
        assert_zero_mean(np.asarray(half) - problem.hessian)


# -- solvers on each kind of curvature --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "solver", [Dense(), CG(tolerance=1e-10), LiSSA(depth=4000, tolerance=1e-8), ShermanMorrison(), Woodbury()]
)
def test_solvers_take_the_curvature_of_gradients(solver):
    """Of rank 2 S, signed; the matrix-free one of second derivatives has no vectors for the last two."""
    problem = exact.gaussian()
    key = jax.random.key(1)
    for estimator in (Stein(64), Pathwise(64)):
        local = estimator(problem.target, problem.q, key)
        system = local.curvature.whiten(local.fisher.factorise()).scale(-1.0)
        system = system.add_blocks(local.fisher.identity_like().scale(2.0))
        if isinstance(estimator, Pathwise) and isinstance(solver, (ShermanMorrison, Woodbury)):
            with pytest.raises(TypeError, match="needs a BlockLowRank operator, got MatrixFree; use CG"):
                solver(system, local.grad, key=key)
            continue
        expected = np.linalg.solve(np.asarray(system.dense()), local.grad)
        found = solver(system, local.grad, key=key)
        np.testing.assert_allclose(found.x, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
