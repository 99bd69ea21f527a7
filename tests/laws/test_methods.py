"""Laws of the methods: each reaches a known optimum, accounts for its cost, and is second order where it says so."""

from functools import lru_cache
from typing import Any

import equinox as eqx
import exact
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from curvi import MeanField, fit
from curvi.curvature import DenseMatrix
from curvi.estimate import AnchoredScore, Counts, LocalModel, PaperScore, Pathwise
from curvi.estimate.local import GroupNoise
from curvi.estimate.sampling import FINAL_DRAWS
from curvi.methods import (
    BBVI,
    LBFGS,
    Algorithm0,
    GrowingDraws,
    HessianFree,
    NaturalGradient,
    Safeguard,
    SchemeI,
    SchemeII,
    StepMethod,
    adaptive_rate,
    robbins_monro,
)
from curvi.solve import CG, Dense, LiSSA, ShermanMorrison, Woodbury

TOLERANCE = 0.05

# Name: method, most steps, nats from the optimum within which it must end. Score methods settle at their own noise.
METHODS = {
    "Algorithm 0": (Algorithm0(AnchoredScore(128)), 60, 0.05),
    "Scheme I, CG": (SchemeI(), 60, 0.05),
    "Scheme I, Sherman-Morrison": (SchemeI(ShermanMorrison(), AnchoredScore(64)), 60, 0.05),
    "Scheme I, Woodbury": (SchemeI(Woodbury(), AnchoredScore(64)), 60, 0.05),
    "Scheme I, dense": (SchemeI(Dense(definite=True)), 60, 0.05),
    "Scheme I, LiSSA": (SchemeI(LiSSA(depth=20)), 60, 0.05),
    "Scheme II": (SchemeII(draws_per_copy=16), 60, 0.05),
    "natural gradient": (NaturalGradient(), 100, 0.05),
    "BBVI, Adam": (BBVI(optax.adam(0.05)), 600, 0.1),
    "BBVI, Adam, pathwise": (BBVI(optax.adam(0.05), Pathwise(8)), 600, 0.1),
    "BBVI, Robbins-Monro": (BBVI(robbins_monro(0.3)), 600, 0.1),
    "BBVI, adaptive rate, natural": (BBVI(adaptive_rate(), natural=True), 600, 0.1),
    "Hessian-free": (HessianFree(Pathwise(256)), 40, 0.05),
    "L-BFGS": (LBFGS(), 40, 0.05),
    "growing draws": (GrowingDraws(), None, 0.05),
}
LITERAL = {
    "Algorithm 0": Algorithm0.literal(128),
    "Scheme I, CG": SchemeI.literal(64, 32),
    "Scheme I, Sherman-Morrison": SchemeI.literal(64, 32, 0.5, ShermanMorrison()),
    "Scheme II": SchemeII.literal(50.0, 32, max_terms=20),
    "Scheme II, corrected": SchemeII.literal(50.0, 32, max_terms=20, corrected=True),
}
STEPWISE = [name for name, (method, _, _) in METHODS.items() if isinstance(method, StepMethod)]


def run(problem, method, num_steps, seed=0):
    options = {} if num_steps is None else {"num_steps": num_steps}
    return fit(
        problem.target,
        key=jax.random.key(seed),
        family="mean_field",
        method=method,
        tolerance=TOLERANCE,
        progress=False,
        **options,
    )


@lru_cache
def fitted(name):
    method, num_steps, _ = METHODS[name]
    return run(exact.gaussian(), method, num_steps)


@lru_cache
def fitted_literally(name):
    return run(exact.gaussian(), LITERAL[name], 15)


# -- one battery for all ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_battery(name):
    # One test and not three: a fit costs its compilation, and parallel test processes share nothing.
    method, num_steps, nats = METHODS[name]
    found = fitted(name)
    check_optimum(found, nats)
    check_verdict(found)
    check_accounts(found, method, num_steps)


def check_optimum(found, nats):
    """It ends near the optimum of a correlated Gaussian, having started far from it."""
    problem = exact.gaussian()
    assert np.all(np.isfinite(found.q.params))
    assert problem.gap(problem.q.replace(MeanField(problem.target).params)) > 3
    assert 0 <= problem.gap(found.q) < nats


def check_verdict(found):
    """It says no more than it knows."""
    problem = exact.gaussian()
    rounding = 100 * np.finfo(np.float64).eps * abs(problem.best)  # where all draws agree there is no other error
    assert abs(found.elbo - (problem.best - problem.gap(found.q))) < 4 * found.elbo_se + rounding
    assert np.isfinite(found.remaining_gain) and found.remaining_gain_se >= 0
    # Near the optimum the decrement is the gap: the certificate must hold, whatever the method.
    assert abs(found.remaining_gain - problem.gap(found.q)) < 4 * found.remaining_gain_se + 0.01
    if found.converged:
        assert found.remaining_gain + 2 * found.remaining_gain_se <= TOLERANCE


def check_accounts(found, method, num_steps):
    """It accounts for every call."""
    history, counts = found.history, found.counts
    assert 0 < len(history) <= (num_steps or method.default_num_steps)
    assert np.all(np.diff(history.log_density) >= 0) and history.log_density[0] > 0
    assert np.all(np.diff(history.seconds) >= 0) and np.all(history.num_draws > 0)
    # The certificate and the final evaluation come on top of the steps.
    assert counts.log_density > history.log_density[-1]
    if isinstance(method, StepMethod):
        assert counts.log_density >= history.log_density[-1] + FINAL_DRAWS
        # A step costs its draws at least; a rejected one, a line search or the copies of Scheme II cost more.
        assert history.log_density[-1] >= history.num_draws.sum()
    assert counts.gradient > 0
    # Growing draws takes differences of gradients for products, in double precision.
    assert counts.hvp > 0 or isinstance(method, GrowingDraws), (
        "the certificate of an order-2 target differentiates twice"
    )


@pytest.mark.parametrize("name", STEPWISE)
def test_a_step_keeps_the_structure_and_single_precision_of_its_state(name):
    # With 64-bit types on, a number of Python or a count easily lifts single to double precision.
    target, method = exact.gaussian_target(dtype=np.float32), METHODS[name][0]
    state = method.start(target, MeanField(target), jax.random.key(0))
    following, record = eqx.filter_eval_shape(method.step, target, state, jax.random.key(1))

    def types(tree):
        return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]

    assert types(following) == types(state)
    assert jax.tree.structure(following) == jax.tree.structure(state)
    floats = [dtype for _, dtype in types((following.q, record)) if jnp.issubdtype(dtype, jnp.floating)]
    assert set(floats) == {np.dtype(np.float32)}


@pytest.mark.parametrize("name", LITERAL)
def test_literal_forms_run(name):
    found = fitted_literally(name)
    assert len(found.history) == 15 and not found.converged
    assert np.all(np.isfinite(found.q.params))
    assert np.all(np.isinf(found.history.remaining_gain)), "the paper's step does not know what is left to gain"


# -- discrete targets -------------------------------------------------------------------------------------------------

DISCRETE = {
    "Algorithm 0": (Algorithm0(), 60),
    "Scheme I": (SchemeI(), 60),
    "natural gradient": (NaturalGradient(), 60),
    "BBVI, adaptive rate, natural": (BBVI(adaptive_rate(), AnchoredScore(64), natural=True), 300),
    "BBVI, Adam, paper form": (BBVI(optax.adam(0.1), PaperScore(256)), 200),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_score_methods_reach_the_enumerated_optimum_on_bits(name):
    problem = exact.bits()
    found = run(problem, *DISCRETE[name])
    assert problem.gap(problem.q.replace(MeanField(problem.target).params)) > 1
    assert problem.gap(found.q) < 0.1
    assert found.counts.gradient == found.counts.hvp == 0, "no derivative of the model is asked for"


@pytest.mark.slow
def test_scheme_two_reaches_the_enumerated_optimum_on_bits():
    problem = exact.bits()
    assert problem.gap(run(problem, SchemeII(), 60).q) < 0.1


# -- second order -----------------------------------------------------------------------------------------------------


class ExactModel(eqx.Module):
    """An estimator without noise: the exact ELBO with its exact derivatives."""

    elbo: Any = eqx.field(static=True)

    def __call__(self, target, q, key):
        value, grad = self.elbo(q.params), jax.grad(self.elbo)(q.params)
        return LocalModel(
            value=value,
            value_se=jnp.zeros_like(value),
            grad=grad,
            curvature=DenseMatrix(jax.hessian(self.elbo)(q.params)),
            fisher=q.fisher(),
            noise=GroupNoise(jnp.stack([grad, grad])),
            draw_values=value[None],
            counts=Counts(log_density=1),
        )


def iterates(problem, method, num_steps):
    """Distances of the parameters from the optimum, one a step."""
    step = eqx.filter_jit(method.step)
    state = method.start(problem.target, problem.q, jax.random.key(0))
    params = [problem.q.params]
    for index in range(num_steps):
        state, _ = step(problem.target, state, jax.random.key(index))
        params.append(state.q.params)
    return np.linalg.norm(np.asarray(params) - problem.optimum, axis=1)


def exact_methods(elbo):
    model = ExactModel(elbo)
    # Damping and shrinking are there against noise; any left makes the last steps linear.
    bare = Safeguard(damping=0.0, shrink=False)
    return {
        "Algorithm 0": Algorithm0(model, safeguard=bare),
        "Algorithm 0, literal": Algorithm0(model, Dense(), None),
        "Scheme I, CG": SchemeI(CG(tolerance=1e-14), model, bare),
        "Scheme I, CG, literal": SchemeI(CG(tolerance=1e-14), model, None),
    }


@pytest.mark.parametrize("name", exact_methods(None))
@pytest.mark.parametrize("make", [exact.logistic, exact.precision_and_location], ids=["logistic", "precision"])
def test_newton_converges_quadratically_on_exact_derivatives(make, name):
    problem = make()
    errors = iterates(problem, exact_methods(problem.elbo)[name], 12)
    # From the first error below 0.3 on, every error is of the order of the square of the one before, down to the
    # accuracy of the reference.
    first = int(np.argmax(errors < 0.3))
    late = errors[first:]
    seen = late[:-1] > 1e-7
    assert errors[-1] < 1e-8 and seen.sum() >= 2
    assert np.all(late[1:][seen] < 3 * late[:-1][seen] ** 2 + 1e-9)


def test_natural_gradient_converges_linearly_on_exact_derivatives():
    problem = exact.precision_and_location()
    errors = iterates(problem, NaturalGradient(ExactModel(problem.elbo)), 25)
    ratios = errors[11:20] / errors[10:19]
    assert np.all((ratios > 0.02) & (ratios < 0.98)), "each error is a fraction of the one before, no smaller power"


# -- errata -----------------------------------------------------------------------------------------------------------


def test_algorithm_0_as_printed_diverges_where_the_safe_one_converges():
    # Erratum 5: the same draws a step, the same seed; the estimate of the Hessian is neither definite nor invertible.
    problem = exact.gaussian()
    start = problem.gap(problem.q.replace(MeanField(problem.target).params))
    literal, safe = fitted_literally("Algorithm 0"), fitted("Algorithm 0")
    assert literal.method.estimator.num_draws == safe.method.estimator.num_draws
    assert not problem.gap(literal.q) < start
    assert problem.gap(safe.q) < 0.05


def test_literal_step_is_newton_where_the_estimate_is_good():
    # Erratum 5 is about noise and indefiniteness, not about the step: with a good and definite Hessian it is Newton's.
    problem = exact.gaussian()
    for method in (Algorithm0.literal(400_000), SchemeI.literal(400_000)):
        state = method.start(problem.target, problem.q, jax.random.key(0))
        state, record = eqx.filter_jit(method.step)(problem.target, state, jax.random.key(1))
        newton = problem.q.params - np.linalg.solve(problem.hessian, problem.gradient)
        np.testing.assert_allclose(state.q.params, newton, atol=0.1)
        assert problem.gap(state.q) < 0.3 * problem.gap(problem.q)
        assert int(record.counts.log_density) == 400_000


def test_a_constant_in_the_log_density_ruins_the_literal_gradient_ascent():
    # Erratum 2, at the level of a method: the same optimiser, draws and seed, on ln p - 1000.
    problem = exact.gaussian(constant=-1000.0)
    gaps = {}
    for estimator in (PaperScore(32), AnchoredScore(32)):
        method = BBVI(optax.adam(0.05), estimator)
        step, state = eqx.filter_jit(method.step), method.start(problem.target, MeanField(problem.target), None)
        for index in range(300):
            state, _ = step(problem.target, state, jax.random.key(index))
        gaps[type(estimator)] = problem.gap(state.q)
    assert gaps[AnchoredScore] < 0.2 and not gaps[PaperScore] < 2
