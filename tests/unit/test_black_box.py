"""Black-box targets: called from the host, noisy or not, and nothing lost when they fail."""

import os
import runpy
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from numpyro.distributions import constraints

import curvi
from curvi import BlackBoxError, Outcome, Target
from curvi.methods import SchemeI

sys.path.insert(0, str(Path(__file__).parent))
import black_boxes

EXAMPLE = Path(__file__).parents[2] / "examples" / "black_box.py"


def make(function, **settings) -> Target:
    return Target(function, {"x": np.zeros(2)}, order=0, black_box=True, **settings)


def run(target, **settings):
    return curvi.fit(target, **{"key": jax.random.key(0), "progress": False, **settings})


def test_a_python_function_is_fitted():
    seen = []

    def log_density(theta):
        seen.append(type(theta["x"]))
        return black_boxes.quadratic(theta)

    fit = run(make(log_density))
    np.testing.assert_allclose(fit.mean()["x"], [1.0, 1.0], atol=0.01)
    np.testing.assert_allclose(fit.sd()["x"], [1.0, 1.0], atol=0.01)
    assert fit.converged and fit.counts.log_density == len(seen)
    assert set(seen) == {np.ndarray}
    assert abs(np.mean(fit.log_ratios(jax.random.key(1), 16)) - fit.elbo) < 1e-6


def test_noise_is_averaged_out():
    rng = np.random.default_rng(0)
    fit = run(make(lambda theta: black_boxes.quadratic(theta) + rng.normal()), tolerance=0.1)
    assert fit.converged
    np.testing.assert_allclose(fit.mean()["x"], [1.0, 1.0], atol=0.4)


def test_a_stochastic_simulator_is_fitted():
    epidemic = runpy.run_path(str(EXAMPLE))["epidemic"]
    fit = run(epidemic(), tolerance=0.2)
    assert fit.converged
    assert abs(fit.mean()["infection"] - 2.38) < 0.15 and abs(fit.mean()["recovery"] - 0.69) < 0.12


def test_bijections_belong_to_the_black_box_too():
    # A Gamma(3, 2) variable, whose mean is 3/2. Without the Jacobian it would be a Gamma(2, 2) one, of mean 1.
    target = Target(
        lambda t: float(2 * np.log(t["x"]) - 2 * t["x"]),
        {"x": 1.0},
        {"x": constraints.positive},
        order=0,
        black_box=True,
    )
    fit = run(target, tolerance=0.01)
    # A gain of 0.01 nat is a shift of the mean by 0.14 of its sd, 0.87.
    assert abs(fit.mean()["x"] - 1.5) < 0.13


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.nan, "the value is nan"),
        (np.inf, "the value is inf"),
        (np.zeros(2), "one real number is expected, .* of shape \\(2,\\)"),
        ("high", "one real number is expected"),
        (1j, "one real number is expected"),
        (None, "one real number is expected"),
    ],
    ids=str,
)
def test_what_is_no_number_names_the_input(value, words):
    with pytest.raises(BlackBoxError, match=f"(?s)failed at x = .*{words}") as caught:
        run(make(lambda theta: value))
    assert set(caught.value.theta) == {"x"} and caught.value.fit.outcome is Outcome.MODEL_FAILED


def test_an_exception_keeps_the_fit():
    count = [0]

    def fails_later(theta):
        count[0] += 1
        if count[0] > 50:
            raise ZeroDivisionError("late")
        return black_boxes.quadratic(theta)

    with pytest.raises(BlackBoxError, match="ZeroDivisionError: late") as caught:
        run(make(fails_later), tolerance=1e-3)
    fit = caught.value.fit
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert fit.outcome is Outcome.MODEL_FAILED and len(fit.history) >= 1
    # The first step of a quadratic leads to its optimum: it was kept.
    np.testing.assert_allclose(fit.mean()["x"], [1.0, 1.0], atol=0.01)


def test_zero_density_is_allowed_in_few_places():
    fit = run(make(lambda t: -np.inf if t["x"][0] < -2.5 else black_boxes.quadratic(t)), num_steps=20)
    assert np.isfinite(fit.elbo)
    with pytest.raises(ValueError, match="-inf at most draws around init"):
        run(make(lambda t: -np.inf))


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="pass order=0; got order=2"):
        Target(black_boxes.quadratic, {"x": np.zeros(2)}, black_box=True)
    with pytest.raises(ValueError, match="pass black_box=True"):
        Target(lambda t: -(t["x"] ** 2).sum(), {"x": np.zeros(2)}, workers=2)
    with pytest.raises(ValueError, match="workers must be a number of processes"):
        make(black_boxes.quadratic, workers=-1)
    with pytest.raises(ValueError, match="timeout must be a positive number"):
        make(black_boxes.quadratic, timeout=0)
    with pytest.raises(ValueError, match=r"cannot be sent to worker processes .* top level of a module"):
        make(lambda theta: 0.0, workers=2)
    with pytest.raises(ValueError, match="SchemeI compiles the log density, which is a black box"):
        run(make(black_boxes.quadratic), method=SchemeI())


def test_workers_give_the_same_fit(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    alone, together = run(make(black_boxes.quadratic)), run(make(black_boxes.quadratic, workers=1))
    np.testing.assert_array_equal(alone.q.params, together.q.params)


def test_a_worker_that_raises_or_hangs_is_named():
    with pytest.raises(BlackBoxError, match=r"(?s)failed at x = .*RuntimeError: the solver gave up") as caught:
        run(make(black_boxes.raises_far_out, workers=1))
    assert caught.value.fit is not None and caught.value.theta["x"][0] > 0.9
    with pytest.raises(BlackBoxError, match=r"no answer within timeout = 0.5 s"):
        run(make(black_boxes.hangs_far_out, timeout=0.5))
