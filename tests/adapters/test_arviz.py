"""Fits for ArviZ, on its old and its new container; predictions of NumPyro models."""

import os
import subprocess
import sys
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import curvi

KEY = jax.random.key(0)
X = np.linspace(-1, 1, 30)
Y = 0.5 + 1.5 * X + 0.3 * np.random.default_rng(0).normal(size=30)


def regression(x, y=None):
    line = numpyro.sample("line", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    numpyro.deterministic("at one", line[0] + line[1])
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(line[0] + line[1] * x, noise), obs=y)


@lru_cache
def fitted():
    return curvi.fit(curvi.from_numpyro(regression, X, Y), key=KEY, progress=False)


@lru_cache
def plain():
    return curvi.fit(curvi.Target(lambda t: -(t["x"] @ t["x"]) / 2, {"x": np.zeros(2)}), key=KEY, progress=False)


def group_names(data) -> set[str]:
    return set(data.groups()) if callable(data.groups) else {name.strip("/") for name in data.groups} - {""}


def check(data):
    assert {"posterior", "sample_stats", "observed_data", "posterior_predictive", "log_likelihood"} <= group_names(data)
    posterior = data["posterior"]
    assert dict(posterior.sizes)["chain"] == 1 and dict(posterior.sizes)["draw"] == 200
    draws = fitted().sample(KEY, 200)
    for name in ("line", "noise", "at one"):
        np.testing.assert_array_equal(np.asarray(posterior[name])[0], np.asarray(draws[name]))
    np.testing.assert_allclose(data["observed_data"]["y"], Y)
    stats = data["sample_stats"]
    ratios = np.asarray(stats["lp"] - stats["log_q"])[0]
    assert abs(ratios.mean() - fitted().elbo) < 4 * np.hypot(ratios.std() / 200**0.5, fitted().elbo_se)
    assert posterior.attrs["inference_library"] == "curvi" and posterior.attrs["converged"] == 1
    assert posterior.attrs["elbo"] == fitted().elbo
    # ln p and ln q on the model's own supports: those of NumPyro's model.
    one = {name: draws[name][7] for name in ("line", "noise")}
    log_p = numpyro.infer.util.log_density(regression, (X, Y), {}, one)[0]
    assert np.isclose(np.asarray(stats["lp"])[0, 7], float(log_p))
    likelihood = np.asarray(data["log_likelihood"]["y"])[0]
    prior = dist.Normal(0, 2).log_prob(draws["line"]).sum(1) + dist.HalfNormal(1.0).log_prob(draws["noise"])
    np.testing.assert_allclose(likelihood.sum(1) + prior, np.asarray(stats["lp"])[0], rtol=1e-8)


def test_inference_data():
    arviz = pytest.importorskip("arviz")
    data = fitted().to_arviz(200, KEY, predictive=True)
    check(data)
    loo = arviz.loo(data)
    assert np.isfinite(getattr(loo, "elpd_loo", getattr(loo, "elpd", np.nan)))


def test_data_tree():
    # Where both containers are installed the old one wins; a process without it meets the new one.
    pytest.importorskip("arviz_base")
    check_in_new_process()


def check_in_new_process():
    code = (
        "import sys, jax; jax.config.update('jax_enable_x64', True); sys.modules['arviz'] = None\n"
        f"sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "import test_arviz as t\n"
        "data = t.fitted().to_arviz(200, t.KEY, predictive=True)\n"
        "assert type(data).__name__ == 'DataTree', type(data)\n"
        "t.check(data)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_missing_arviz_is_named(monkeypatch):
    for name in ("arviz", "arviz_base"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="pip install arviz"):
        plain().to_arviz()


def test_a_log_density_alone_has_two_groups():
    pytest.importorskip("arviz")
    assert group_names(plain().to_arviz(10)) == {"posterior", "sample_stats"}
    with pytest.raises(ValueError, match="no model that could predict"):
        plain().predictive(KEY, 5)


# -- predictions ------------------------------------------------------------------------------------------------------


def test_predictive_draws_new_data():
    found = fitted().predictive(jax.random.key(2), 4000)
    assert set(found) == {"posterior", "posterior_predictive", "log_likelihood"}
    new, posterior = found["posterior_predictive"]["y"], found["posterior"]
    assert new.shape == found["log_likelihood"]["y"].shape == (4000, 30)
    # Each row of new data belongs to its own draw: what is left over is the noise of that draw.
    centre = posterior["line"][:, :1] + posterior["line"][:, 1:] * X
    z = (new - centre) / posterior["noise"][:, None]
    assert abs(z.mean()) < 0.02 and abs(z.std() - 1) < 0.02
    expected = dist.Normal(centre, posterior["noise"][:, None]).log_prob(jnp.asarray(Y))
    np.testing.assert_allclose(found["log_likelihood"]["y"], expected, rtol=1e-8)


def test_a_model_without_observations_predicts_nothing():
    def model():
        numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("penalty", -1.0)

    found = curvi.fit(curvi.from_numpyro(model), key=KEY, progress=False)
    assert set(found.predictive(KEY, 3)) == {"posterior"}
