"""The exact references of linear mixed models, against dense algebra and quadrature."""

import numpy as np
import pytest
import scipy.stats

from mixed_references import MixedModel, _Gaussian, moments


def crossed(num_rows=40) -> MixedModel:
    rng = np.random.default_rng(0)
    codes = {"sd_a": rng.permutation(np.arange(num_rows) % 9), "sd_b": rng.permutation(np.arange(num_rows) % 4)}
    x = np.stack([np.ones(num_rows), rng.normal(size=num_rows)], 1)
    effects = 0.8 * rng.normal(size=9)[codes["sd_a"]] + 0.5 * rng.normal(size=4)[codes["sd_b"]] * x[:, 1]
    y = x @ np.array([1.0, -0.5]) + effects + 0.6 * rng.normal(size=num_rows)
    half_normal = {"sd_a": 1.0, "sd_b": 0.7, "sigma": 2.0}
    prior = np.array([0.5, 0.0]), np.array([2.0, 1.0])
    return MixedModel(x, y, *prior, codes, {"sd_b": x[:, 1]}, half_normal, ("b[1]", "b[2]"))


def dense(one: MixedModel, log_scales) -> tuple[float, np.ndarray, np.ndarray]:
    """The same from the covariance of the rows."""
    *sds, sigma = np.exp(log_scales)
    shared = (one.x * one.prior_sd**2) @ one.x.T + sigma**2 * np.eye(len(one.y))
    for (name, code), sd in zip(one.codes.items(), sds):
        z = np.eye(code.max() + 1)[code] * one.slopes.get(name, np.ones(len(code)))[:, None]
        shared += sd**2 * z @ z.T
    value = scipy.stats.multivariate_normal(one.x @ one.prior_mean, shared).logpdf(one.y)
    for scale, prior, t in zip(np.exp(log_scales), one.half_normal.values(), log_scales):
        value += scipy.stats.halfnorm(scale=prior).logpdf(scale) + t
    gain = np.linalg.solve(shared, one.x * one.prior_sd**2)
    mean = one.prior_mean + gain.T @ (one.y - one.x @ one.prior_mean)
    covariance = np.diag(one.prior_sd**2) - gain.T @ (one.x * one.prior_sd**2)
    return value, mean, np.sqrt(np.diag(covariance))


def test_the_density_of_the_scales_is_that_of_dense_algebra():
    one, rng = crossed(), np.random.default_rng(1)
    found = [(_Gaussian(one)(t), dense(one, t)) for t in rng.normal(-0.5, 0.6, (5, 3))]
    differences = [ours[0] - theirs[0] for ours, theirs in found]
    np.testing.assert_allclose(differences, differences[0], atol=1e-8)
    for ours, theirs in found:
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-8)
        np.testing.assert_allclose(ours[2], theirs[2], rtol=1e-8)


def test_the_moments_are_those_of_a_grid():
    one = crossed()
    rows, effective = moments(one, num_draws=2_000)
    assert effective > 500
    axes = [np.linspace(-3.5, 1.0, 18), np.linspace(-4.5, 1.2, 18), np.linspace(-1.3, 0.4, 16)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    gaussian = _Gaussian(one)
    done = [gaussian(t) for t in grid]
    weights = np.exp(np.array([value for value, _, _ in done]) - max(value for value, _, _ in done))
    weights /= weights.sum()
    for index, name in enumerate(one.half_normal):
        mean = weights @ np.exp(grid[:, index])
        sd = np.sqrt(weights @ (np.exp(grid[:, index]) - mean) ** 2)
        assert abs(rows[name][0] - mean) < 5 * sd / effective**0.5
        assert abs(rows[name][1] / sd - 1) < 0.1
    centre = np.stack([mean for _, mean, _ in done])
    mean = weights @ centre
    sd = np.sqrt(weights @ (np.stack([s for _, _, s in done]) ** 2 + (centre - mean) ** 2))
    np.testing.assert_allclose([rows[name][0] for name in one.names], mean, atol=5 * sd.max() / effective**0.5)
    np.testing.assert_allclose([rows[name][1] for name in one.names], sd, rtol=0.1)
    assert rows["sd_a"][0] != pytest.approx(rows["sd_b"][0], rel=0.1)
