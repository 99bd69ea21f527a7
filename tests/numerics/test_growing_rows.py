"""Fits of many rows converge: many predictors, either precision, groups that the sample hardly knows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi import MinibatchTarget, Rows
from curvi.methods import GrowingRows

KEY = jax.random.key(2)


def fit(target, **options):
    return curvi.fit(target, key=KEY, progress=False, **options)


def logistic(num_rows, dtype):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_rows, 100)).astype(np.float32) / np.float32(10)
    y = (rng.random(num_rows) < 1 / (1 + np.exp(-(x @ rng.standard_normal(100))))).astype(np.float32)

    def log_row(t, row):
        logit = row["x"].astype(dtype) @ t["w"]
        return row["y"] * logit - jax.nn.softplus(logit)

    init = {"w": np.zeros(100, dtype)}
    return MinibatchTarget(lambda t: -jnp.sum(t["w"] ** 2) / 2, log_row, {"x": x, "y": y}, 4096, init)


@pytest.mark.parametrize(
    ("num_rows", "dtype", "options"),
    [
        (12_000, "float32", {"family": "mean_field", "method": GrowingRows(sample_rows=3000)}),
        (12_000, "float64", {"family": "mean_field", "method": GrowingRows(sample_rows=3000)}),
        pytest.param(400_000, "float32", {"method": None}, marks=pytest.mark.slow),
        pytest.param(400_000, "float64", {"method": None}, marks=pytest.mark.slow),
    ],
)
def test_batches_of_many_rows_converge_in_either_precision(num_rows, dtype, options):
    found = fit(logistic(num_rows, dtype), **options)
    assert found.converged and found.q.params.dtype == dtype and 0 < found.counts.passes <= 10
    assert found.remaining_gain + 2 * found.remaining_gain_se < 0.1


@pytest.mark.slow
def test_groups_that_the_sample_hardly_knows_are_corrected_by_passes():
    """Newton's step by the Hessian of the sample alone overshoots there, and climbs and falls for ever."""
    rng, number = np.random.default_rng(0), 80
    share = np.arange(1.0, number + 1) ** -1.5
    group, other = rng.choice(number, 60_000, p=share / share.sum()), rng.integers(0, 10, 60_000)
    logit = -1 + rng.standard_normal(number)[group] + 0.5 * rng.standard_normal(10)[other]
    y = (rng.random(60_000) < 1 / (1 + np.exp(-logit))).astype(float)

    def log_prior(t):
        return -(t["a"] ** 2) / 8 - jnp.sum(t["group"] ** 2) / 2 - jnp.sum(t["other"] ** 2) / 2

    def log_row(t, row):
        logit = t["a"] + t["group"][row["group"]] + t["other"][row["other"]]
        return row["y"] * logit - jax.nn.softplus(logit)

    init = {"a": np.zeros(()), "group": np.zeros(number), "other": np.zeros(10)}
    rows = Rows({"group": group, "other": other, "y": y}, chunk_rows=20_000)
    target = MinibatchTarget(log_prior, log_row, rows, 4096, init)
    found = fit(target, method=GrowingRows(sample_rows=3000), family="mean_field")
    assert found.converged and found.counts.passes <= 40
    of_all = lambda t: jnp.sum(jax.vmap(lambda row: log_row(t, row))({"group": group, "other": other, "y": y}))  # noqa: E731
    plain = curvi.Target(lambda t: log_prior(t) + of_all(t), init)
    whole = curvi.fit(plain, key=KEY, family="mean_field", progress=False)
    assert abs(found.elbo - whole.elbo) < 0.05 + 4 * np.hypot(found.elbo_se, whole.elbo_se)
    for name, sd in whole.sd().items():
        assert np.all(np.abs(found.mean()[name] - whole.mean()[name]) < 0.3 * sd)
