"""Predicted gains of structured covariances against a general optimiser over all of their entries."""

import numpy as np
import pytest
from scipy.optimize import minimize

from curvi.certify.predicted_shapes import (
    best_low_rank,
    best_of_rank,
    predict_low_rank,
    predict_pattern,
    predict_regressions,
)
from curvi.family.widening import ledermann_bound

SIZE = 8
RNG = np.random.default_rng(0)
BELOW = np.tri(SIZE, k=-1, dtype=bool)
ARROW = BELOW & (np.arange(SIZE) < 2)
BAND = BELOW & ~np.tri(SIZE, k=-2, dtype=bool)


def precision(seed=0):
    """A positive definite matrix with unit diagonal."""
    root = np.random.default_rng(seed).normal(size=(SIZE, SIZE + 3))
    matrix = root @ root.T
    return matrix / np.sqrt(np.outer(np.diag(matrix), np.diag(matrix)))


def gain(P, covariance):
    return (len(P) - np.trace(P @ covariance) + np.linalg.slogdet(covariance)[1]) / 2


def best(P, covariance_of, num_params):
    """The largest gain over parameters of a covariance, by BFGS from four starts."""
    starts = [0.3 * np.random.default_rng(seed).normal(size=num_params) for seed in range(4)]
    with np.errstate(all="ignore"):
        return -min(minimize(lambda v: -gain(P, covariance_of(v)), start, method="BFGS").fun for start in starts)


def triangular(pattern, v):
    lower = np.diag(np.exp(v[:SIZE]))
    lower[pattern] = v[SIZE:]
    return lower


@pytest.mark.parametrize("pattern", [ARROW, BAND, BELOW, ARROW | BAND], ids=["arrow", "band", "full", "both"])
def test_the_gain_of_a_triangular_scale(pattern):
    P = precision()
    found = best(P, lambda v: triangular(pattern, v) @ triangular(pattern, v).T, SIZE + pattern.sum())
    np.testing.assert_allclose(predict_pattern(P, pattern), found, atol=1e-5)
    assert predict_pattern(P, np.zeros_like(pattern)) == 0


@pytest.mark.parametrize("pattern", [BAND, BELOW, ARROW | BAND], ids=["band", "full", "both"])
def test_the_gain_of_regressions_on_earlier_coordinates(pattern):
    def covariance(v):
        inverse = np.linalg.inv(triangular(pattern, v))
        return inverse @ inverse.T

    P = precision(1)
    np.testing.assert_allclose(predict_regressions(P, pattern), best(P, covariance, SIZE + pattern.sum()), atol=1e-5)


def test_a_chain_is_a_band_of_the_inverse_scale_and_of_no_scale():
    steps = np.eye(SIZE) - 0.9 * np.eye(SIZE, k=-1)
    P = steps.T @ steps + 0.1 * np.eye(SIZE)
    whole = predict_pattern(P, BELOW)
    np.testing.assert_allclose(predict_regressions(P, BAND), whole, atol=1e-9)
    assert predict_pattern(P, BAND) < whole - 0.3


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_the_gain_of_a_low_rank(rank):
    def covariance(v):
        return np.diag(np.exp(v[:SIZE])) + v[SIZE:].reshape(SIZE, rank) @ v[SIZE:].reshape(SIZE, rank).T

    P = precision(2)
    found, log_scale, factors = best_of_rank(P, rank)
    np.testing.assert_allclose(found, best(P, covariance, SIZE * (1 + rank)), atol=1e-4)
    np.testing.assert_allclose(found, gain(P, np.diag(np.exp(2 * log_scale)) + factors @ factors.T), atol=1e-9)
    assert predict_low_rank(P, rank) == found < predict_pattern(P, BELOW) + 1e-9
    # The smallest eigenvalues alone promise more than there is.
    assert -0.5 * np.log(np.linalg.eigvalsh(P)[:rank]).sum() > found + 0.1


def test_the_rank_that_is_worth_it():
    assert [ledermann_bound(size) for size in (1, 2, 3, 5, 10)] == [0, 0, 1, 2, 6]
    factors = 1.5 * np.random.default_rng(4).normal(size=(SIZE, 2))
    P = np.linalg.inv(np.eye(SIZE) + factors @ factors.T)
    rank, gains = best_low_rank(P, ledermann_bound(SIZE))
    assert rank == 2 and len(gains) <= 3
    np.testing.assert_allclose(gains[1], predict_pattern(P, BELOW), atol=1e-3)


def test_an_indefinite_curvature_predicts_nothing():
    P = precision()
    P[0, 1] = P[1, 0] = 1.5
    assert np.isnan([predict_pattern(P, BELOW), predict_regressions(P, BAND), predict_low_rank(P, 1)]).all()
    rank, gains = best_low_rank(P, 2)
    assert rank == 0 and not gains.size
