"""R-hat and effective sizes against chains whose autocorrelation is known, and against ArviZ."""

import numpy as np
import pytest

from curvi.mcmc.convergence import diagnose, effective_size

RNG = np.random.default_rng(0)


def autoregressive(correlation, num_chains=4, num_draws=4000, num_elements=8):
    noise = RNG.normal(size=(num_chains, num_draws, num_elements))
    draws = noise / (1 - correlation**2) ** 0.5
    for t in range(1, num_draws):
        draws[:, t] = correlation * draws[:, t - 1] + noise[:, t]
    return draws


@pytest.mark.parametrize("correlation", [-0.5, 0.0, 0.5, 0.9])
def test_effective_size_of_an_autoregression(correlation):
    found = effective_size(autoregressive(correlation))
    expected = 16_000 * (1 - correlation) / (1 + correlation)
    assert abs(np.mean(found) / expected - 1) < 0.1


def test_r_hat_sees_shifts_and_scales():
    good = RNG.normal(size=(4, 500, 3))
    assert diagnose(good)[0].max() < 1.02
    shifted, wider = good.copy(), good.copy()
    shifted[0] += 1.0
    wider[0] *= 3.0
    assert diagnose(shifted)[0].min() > 1.05 and diagnose(wider)[0].min() > 1.05
    # The two halves of a chain that drifts do not agree either.
    assert diagnose(good[:1] + np.linspace(0, 3, 500)[None, :, None])[0].min() > 1.1


def test_nothing_is_said_where_nothing_is_known():
    draws = RNG.normal(size=(2, 50, 3))
    draws[:, :, 1], draws[1, 7, 2] = 2.0, np.inf
    for found in diagnose(draws):
        assert found.shape == (3,) and np.isfinite(found[0]) and np.all(np.isnan(found[1:]))
    assert all(np.isnan(found) for found in diagnose(RNG.normal(size=(4, 3))))


def test_agrees_with_arviz():
    arviz = pytest.importorskip("arviz")
    draws = np.concatenate([autoregressive(0.7, 3, 401, 70), np.exp(2 * RNG.normal(size=(3, 401, 2)))], -1)
    r_hat, bulk, tail = diagnose(draws)
    data = {"x": draws}
    np.testing.assert_allclose(r_hat, np.asarray(arviz.rhat(data)["x"]), rtol=1e-6)
    np.testing.assert_allclose(bulk, np.asarray(arviz.ess(data, method="bulk")["x"]), rtol=1e-6)
    np.testing.assert_allclose(tail, np.asarray(arviz.ess(data, method="tail")["x"]), rtol=1e-6)
