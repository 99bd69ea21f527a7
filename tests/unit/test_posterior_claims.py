"""The benchmark of posteriors: errors against a reference, and what lines say to a claim."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import curvi
import posterior_claims as claims
from peer_methods import Gaussian
from peer_problems import Flat
from posterior_errors import Judge, errors

RIGHT = {"rms_mean": 0.05, "max_mean": 0.2, "median_sd": 0.04, "worst_sd_factor": 1.3}


def line(method, seed=1, **more):
    return {"problem": "kidiq", "kind": "regression", "method": method, "seed": seed, "num_latents": 5, **more}


def test_errors_are_in_reference_sds_and_a_factor_counts_both_ways():
    reference = {"a": {"mean": 1.0, "sd": 2.0}, "b[1]": {"mean": 0.0, "sd": 1.0}, "b[2]": {"mean": 0.0, "sd": 1.0}}
    found = errors(reference, {"a": 2.0, "b": np.array([0.0, 0.1])}, {"a": 2.0, "b": np.array([0.5, 1.25])})
    assert found["max_mean"] == 0.5 and found["worst_mean_at"] == "a"
    assert found["rms_mean"] == pytest.approx(((0.25 + 0.01) / 3) ** 0.5, rel=1e-4)
    assert found["median_sd"] == 0.25
    assert found["worst_sd_factor"] == 2.0 and found["worst_sd_at"] == "b[1]"
    assert errors(reference, {"c": 1.0}, {"c": 1.0}) is None


def test_the_judge_knows_the_elbo_of_a_gaussian_exactly():
    """Against a Gaussian target: zero at the target's own moments, and less by the KL divergence elsewhere."""
    root = np.array([[2.0, 0.0], [0.5, 0.3]])
    target = curvi.Target(
        lambda theta: dist.MultivariateNormal(jnp.ones(2), scale_tril=jnp.asarray(root)).log_prob(theta["x"]),
        {"x": jnp.zeros(2)},
    )
    judge = Judge(Flat(target))
    exact, wrong = judge.elbo(Gaussian(np.ones(2), root)), judge.elbo(Gaussian(np.ones(2) + root[:, 0], root))
    tolerance = 1e3 * float(jnp.finfo(jnp.result_type(float)).eps)
    assert abs(exact[0]) < tolerance and exact[1] < tolerance
    assert wrong[0] == pytest.approx(-0.5, abs=max(3 * wrong[1], tolerance))
    means, sds = judge.moments(Gaussian(np.ones(2), root))
    np.testing.assert_allclose(means["x"], 1.0, atol=1e-5)
    np.testing.assert_allclose(sds["x"], np.sqrt((root**2).sum(1)), rtol=0.05)


@pytest.mark.parametrize("key, value", [("rms_mean", 0.11), ("median_sd", 0.06), ("worst_sd_factor", 1.5)])
def test_a_fit_is_right_only_within_all_thresholds(key, value):
    assert claims.is_right(line(claims.DEFAULT, errors=RIGHT))
    assert not claims.is_right(line(claims.DEFAULT, errors={**RIGHT, key: value}))
    assert not claims.is_right(line(claims.DEFAULT, errors={**RIGHT, key: None}))
    assert not claims.is_right(line(claims.DEFAULT, errors=None))


def test_equal_error_needs_both_errors_and_takes_the_first_point():
    track = [[50, 10, 1.0, 0.5, 0.01, 0.9], [100, 20, 2.0, 1.0, 0.04, 0.03], [150, 30, 3.0, 1.5, 0.01, 0.01]]
    fits = [line(claims.DEFAULT, errors=RIGHT), line(claims.DEFAULT, 2, errors={**RIGHT, "rms_mean": 0.001})]
    race = claims.races([*fits, line(claims.NUTS, track=track)])["kidiq"]
    assert claims.equal_error(race) == [
        claims.EqualError(2.0, 1.0, 20, True),
        claims.EqualError(3.0, 1.5, 30, False),
    ]


def test_the_best_elbo_is_of_full_rank_and_known_well():
    race = claims.races([
        line(claims.FULL_RANK, elbo=-10.0, elbo_se=0.01, family="full rank"),
        line("noisy", elbo=-5.0, elbo_se=1.0, family="full rank"),
        line("draws", elbo=-1.0, elbo_se=0.0, family="draws"),
        line("none", elbo=None, elbo_se=None, family="full rank"),
    ])["kidiq"]  # fmt: skip
    assert claims.best_elbo(race) == (-10.0, 0.01)


def test_a_missed_claim_names_its_problem():
    fits = [line(claims.DEFAULT, errors={**RIGHT, "rms_mean": 1.0}, outcome="CONVERGED", families=[], warns=False)]
    found = {claim.words: claim for claim in claims.check(claims.races(fits))}
    missed = [claim for words, claim in found.items() if words.startswith("default: rms")]
    assert [(claim.met, claim.failing) for claim in missed] == [(False, "kidiq")]
    wrong = next(claim for words, claim in found.items() if "that are wrong" in words)
    assert wrong.met is False and wrong.figure == "0 of 1"
