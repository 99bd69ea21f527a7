"""Exact moments of the coefficients and scales of linear mixed models: effects and coefficients are integrated out.

Given the scales, coefficients and effects are jointly Gaussian, so that the posterior of the few scales is known up to
a constant. It is integrated by importance sampling with a Student t at its mode; coefficients follow by the laws of
total expectation and variance. The effects of the largest grouping have a diagonal precision, and are eliminated first.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse

NUM_DRAWS, FREEDOM = 1_000, 5.0


@dataclasses.dataclass(frozen=True)
class MixedModel:
    """y ~ Normal(X beta + sum_k Z_k a_k, sigma), a_k ~ Normal(0, sd_k), sd_k and sigma half-normal.

    `codes` has the group of each row by the name of its scale, the largest grouping first; `slopes` a column of rows
    that multiplies the effect.
    """

    x: np.ndarray
    y: np.ndarray
    prior_mean: np.ndarray
    prior_sd: np.ndarray
    codes: dict[str, np.ndarray]
    slopes: dict[str, np.ndarray]
    half_normal: dict[str, float]  # scale of the prior of every sd and of "sigma"
    names: tuple[str, ...]


class _Gaussian:
    """The Gaussian of coefficients and effects given the scales."""

    def __init__(self, one: MixedModel):
        self.one = one
        rows = len(one.y)
        blocks = []
        for name, code in one.codes.items():
            weight = one.slopes.get(name, np.ones(rows))
            blocks.append(scipy.sparse.csr_matrix((weight, (np.arange(rows), code)), (rows, int(code.max()) + 1)))
        self.sizes = [block.shape[1] for block in blocks]
        first = blocks[0]
        rest = scipy.sparse.hstack([*blocks[1:], scipy.sparse.csr_matrix(one.x)]).tocsr()
        self.gram_first = np.asarray(first.multiply(first).sum(0)).ravel()
        self.cross = (first.T @ rest).tocsr()
        self.gram_rest = np.asarray((rest.T @ rest).todense())
        centred = one.y - one.x @ one.prior_mean  # coefficients from their prior mean on
        self.by_first, self.by_rest, self.squares = first.T @ centred, rest.T @ centred, centred @ centred

    def __call__(self, log_scales: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """ln p(log scales, y) up to a constant, and mean and sd of the coefficients given the scales."""
        one, scales = self.one, np.exp(log_scales)
        *sds, sigma = scales
        first = self.gram_first / sigma**2 + 1 / sds[0] ** 2
        prior = np.concatenate(
            [*(np.full(n, 1 / sd**2) for n, sd in zip(self.sizes[1:], sds[1:])), 1 / one.prior_sd**2]
        )
        weighted = scipy.sparse.diags(1 / first) @ self.cross / sigma**4
        schur = self.gram_rest / sigma**2 + np.diag(prior) - np.asarray((self.cross.T @ weighted).todense())
        right = self.by_rest / sigma**2 - weighted.T @ self.by_first
        root = scipy.linalg.cholesky(schur, lower=True)
        half = scipy.linalg.solve_triangular(root, right, lower=True)
        # ln |prior precision| - ln |posterior precision|, and the quadratic that is completed.
        log_dets = -2 * sum(n * np.log(sd) for n, sd in zip(self.sizes, sds)) - np.log(first).sum()
        log_dets -= 2 * np.log(np.diag(root)).sum()
        squares = self.squares / sigma**2 - (self.by_first**2 / first).sum() / sigma**4 - half @ half
        value = (log_dets - squares) / 2 - len(one.y) * np.log(sigma)
        value += sum(t - s**2 / (2 * one.half_normal[n] ** 2) for n, s, t in zip(one.half_normal, scales, log_scales))
        num = len(one.prior_mean)
        last = scipy.linalg.solve_triangular(root, np.eye(len(root))[:, -num:], lower=True)
        return float(value), one.prior_mean + last.T @ half, np.sqrt((last**2).sum(0))


def moments(one: MixedModel, seed: int = 0, num_draws: int = NUM_DRAWS) -> tuple[dict[str, list[float]], float]:
    """Mean, sd and effective sample size of every scale and coefficient, and the smallest of the latter."""
    gaussian, names = _Gaussian(one), [*one.half_normal]
    start = np.log(np.full(len(names), 0.3))
    start[-1] = np.log(one.y.std())
    found = scipy.optimize.minimize(lambda t: -gaussian(t)[0], start, method="BFGS", options={"gtol": 1e-2})
    precision = _hessian(lambda t: -gaussian(t)[0], found.x)
    root = np.linalg.inv(np.linalg.cholesky(precision)).T
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(num_draws, len(names)))
    noise /= np.sqrt(rng.chisquare(FREEDOM, (num_draws, 1)) / FREEDOM)
    draws = found.x + noise @ root.T
    log_q = -(FREEDOM + len(names)) / 2 * np.log1p((noise**2).sum(1) / FREEDOM)
    done = [gaussian(t) for t in draws]
    ratios = np.array([value for value, _, _ in done]) - log_q
    weights = np.exp(ratios - ratios.max())
    weights /= weights.sum()
    effective = float(1 / (weights**2).sum())
    scales, means, sds = np.exp(draws), np.stack([m for _, m, _ in done]), np.stack([s for _, _, s in done])
    rows = {}
    for name, column in zip(names, scales.T):
        mean = weights @ column
        rows[name] = [mean, np.sqrt(weights @ (column - mean) ** 2), effective]
    for name, column, within in zip(one.names, means.T, sds.T):
        mean = weights @ column
        rows[name] = [mean, np.sqrt(weights @ (within**2 + (column - mean) ** 2)), effective]
    return {name: [float(f"{number:.6g}") for number in row] for name, row in rows.items()}, effective


def _hessian(function: Callable, at: np.ndarray, step: float = 0.02) -> np.ndarray:
    size, unit = len(at), np.eye(len(at)) * step
    matrix = np.empty((size, size))
    for i in range(size):
        for j in range(i + 1):
            corners = [function(at + a * unit[i] + b * unit[j]) for a in (1, -1) for b in (1, -1)]
            matrix[i, j] = matrix[j, i] = (corners[0] - corners[1] - corners[2] + corners[3]) / (4 * step**2)
    return matrix


def insteval(student, lecturer, dept, service, y) -> MixedModel:
    return MixedModel(
        np.stack([np.ones(len(y)), service], 1), y, np.array([3.0, 0.0]), np.array([2.0, 1.0]),
        {"sd_student": student, "sd_lecturer": lecturer, "sd_dept": dept}, {},
        {"sd_student": 1.0, "sd_lecturer": 1.0, "sd_dept": 1.0, "sigma": 2.0}, ("intercept", "slope"),
    )  # fmt: skip


def chem97(area, school, gcse, gender, y) -> MixedModel:
    return MixedModel(
        np.stack([np.ones(len(y)), gcse, gender], 1), y, np.zeros(3), np.full(3, 5.0),
        {"sd_school": school, "sd_area": area}, {}, {"sd_school": 1.0, "sd_area": 1.0, "sigma": 3.0},
        ("beta[1]", "beta[2]", "beta[3]"),
    )  # fmt: skip


def sleepstudy(subject, days, y) -> MixedModel:
    return MixedModel(
        np.stack([np.ones(len(y)), days], 1), y, np.array([2.5, 0.0]), np.array([1.0, 0.5]),
        {"sd_intercept": subject, "sd_slope": subject}, {"sd_slope": days.astype(float)},
        {"sd_intercept": 1.0, "sd_slope": 0.5, "sigma": 1.0}, ("intercept", "slope"),
    )  # fmt: skip


MODELS = {"insteval": insteval, "chem97": chem97, "sleepstudy": sleepstudy}
