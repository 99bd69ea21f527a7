"""curvi.pymc.fit and curvi.bambi.fit: from a model to draws in ArviZ's container, with the fit attached."""

import copy
import logging
import pickle
import subprocess
import sys
from functools import lru_cache

import jax
import numpy as np
import pytest

import curvi

pm = pytest.importorskip("pymc", reason="PyMC is not installed (an extra: pymc)", exc_type=ImportError)
arviz = pytest.importorskip("arviz", reason="ArviZ is not installed (an extra: arviz)")

KEY = jax.random.key(0)
X = np.linspace(-1, 1, 30)
Y = 0.5 + 1.5 * X + 0.3 * np.random.default_rng(0).normal(size=30)


def group_names(data) -> set[str]:
    return set(data.groups()) if callable(data.groups) else {name.strip("/") for name in data.groups} - {""}


def line():
    with pm.Model(coords={"row": np.arange(30)}) as model:
        intercept, slope = pm.Normal("intercept", 0, 2), pm.Normal("slope", 0, 2)
        noise = pm.HalfNormal("noise", 1)
        pm.Normal("y", intercept + slope * X, noise, observed=Y, dims="row")
    return model


@lru_cache
def fitted():
    return curvi.pymc.fit(line(), key=KEY, num_draws=300, predictive=True, progress=False)


def test_draws_are_those_of_the_attached_fit():
    data = fitted()
    assert isinstance(data.curvi_fit, curvi.Fit) and data.curvi_fit.converged
    assert {"posterior", "sample_stats", "observed_data", "posterior_predictive"} <= group_names(data)
    own = data.curvi_fit.sample(jax.random.fold_in(KEY, 1), 300)
    np.testing.assert_array_equal(np.asarray(data["posterior"]["slope"])[0], own["slope"])
    # The same fit as from two calls.
    two = curvi.fit(curvi.from_pymc(line()), key=KEY, progress=False)
    np.testing.assert_array_equal(two.q.params, data.curvi_fit.q.params)


def test_copies_keep_the_fit_and_files_keep_what_was_said(tmp_path):
    data = fitted()
    assert data.copy().curvi_fit is data.curvi_fit and copy.deepcopy(data.curvi_fit) is data.curvi_fit
    data.to_netcdf(str(tmp_path / "draws.nc"))
    said = arviz.from_netcdf(str(tmp_path / "draws.nc"))["posterior"].attrs
    assert said["outcome"] == "CONVERGED" and said["elbo"] == data.curvi_fit.elbo
    assert said["posterior_check"] == data.curvi_fit.posterior_check.answer
    # A process that receives the draws has the fit without its model, as from a file.
    sent = pickle.loads(pickle.dumps(data)).curvi_fit
    assert sent.elbo == data.curvi_fit.elbo and sent.posterior_check == data.curvi_fit.posterior_check
    np.testing.assert_array_equal(sent.sample(KEY, 3)["slope"], data.curvi_fit.sample(KEY, 3)["slope"])
    with pytest.raises(ValueError, match=r"curvi.load\(path, target=target\)"):
        sent.log_ratios(KEY, 4)


def test_inside_of_a_model_block_with_a_seed_and_other_draws():
    with line():
        data = curvi.pymc.fit(random_seed=3, num_draws=4, kind="linear_response", family="full_rank", progress=False)
    chosen = [row.name for row in data.curvi_fit.families if row.chosen]
    assert chosen == ["full_rank"] and data["posterior"].attrs["draws"] == "linear_response"
    assert curvi.record.checkpoint.same_key(data.curvi_fit.checkpoint.key, jax.random.key(3))


def test_what_speaks_against_the_draws_is_logged(caplog):
    with caplog.at_level(logging.WARNING, logger="curvi"):
        curvi.pymc.fit(line(), num_steps=1, num_draws=2, family="mean_field", progress=False)
    assert "did not converge" in caplog.text
    caplog.clear()
    with pm.Model() as funnel:
        scale = pm.Normal("scale", 0, 3)
        pm.Normal("x", 0, pm.math.exp(scale / 2), shape=4)
    with caplog.at_level(logging.WARNING, logger="curvi"):
        data = curvi.pymc.fit(funnel, num_draws=2, family="mean_field", marginals="normal", progress=False)
    assert data.curvi_fit.posterior_check.answer == "doubtful" and "doubtful" in caplog.text


BAD = [
    ({"model": None}, ValueError, "needs a model.*with pm.Model"),
    ({"model": 3}, ValueError, "takes a pymc.Model; got int"),
    ({"key": KEY, "random_seed": 1}, ValueError, "leave one of them out"),
    ({"key": 3}, ValueError, "key must be a typed key"),
    ({"random_seed": "one"}, ValueError, "random_seed must be an integer"),
    ({"num_draws": 0}, ValueError, "num_draws must be a positive integer; got 0"),
    ({"kind": "exact"}, ValueError, "kind"),
    ({"draws": 100, "method_": 1}, TypeError, "no argument 'draws', 'method_'.*num_draws.*tolerance"),
    ({"family": "full"}, ValueError, "family must be one of"),
    ({"tolerance": -1.0}, ValueError, "tolerance must be a positive"),
]


@pytest.mark.parametrize("given, error, words", BAD, ids=lambda value: "")
def test_misuse_is_named_before_anything_is_computed(given, error, words):
    given = {"model": line(), **given}
    with pytest.raises(error, match=words):
        curvi.pymc.fit(**given, progress=False)


def test_a_missing_arviz_is_named_before_the_fit(monkeypatch):
    for name in ("arviz", "arviz_base"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="pip install arviz"):
        curvi.pymc.fit(line())


def test_the_names_are_there_without_the_packages():
    code = """
import sys
for name in ("pymc", "bambi", "arviz"):
    sys.modules[name] = None
import curvi
assert callable(curvi.pymc.fit) and callable(curvi.bambi.fit) and callable(curvi.numpyro.AutoGuide)
for fit, extra in ((curvi.pymc.fit, "arviz"), (curvi.bambi.fit, "arviz")):
    try:
        fit(None)
    except ImportError as error:
        assert f"pip install {extra}" in str(error), error
    else:
        raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# -- Bambi ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bambi_fit():
    bambi = pytest.importorskip("bambi", reason="Bambi is not installed (an extra: bambi)")
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"x": rng.normal(3.0, 1.0, 60), "z": rng.normal(size=60)})
    frame["y"] = 1.0 + 2.0 * frame.x - frame.z + 0.5 * rng.normal(size=60)
    model = bambi.Model("y ~ x + z", frame)
    return model, frame, curvi.bambi.fit(model, random_seed=0, progress=False)


def test_bambi_gets_what_its_own_fits_return(bambi_fit):
    model, frame, data = bambi_fit
    assert model.built and data.curvi_fit.converged
    assert set(data["posterior"].data_vars) == {"Intercept", "x", "z", "sigma"}
    # Flat enough priors: least squares. The intercept is that of x as it is, not of x less its mean.
    design = np.column_stack([np.ones(60), frame.x, frame.z])
    least, (left,), *_ = np.linalg.lstsq(design, frame.y, rcond=None)
    sds = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * left / 57)
    means = [float(data["posterior"][name].mean()) for name in ("Intercept", "x", "z")]
    assert np.all(np.abs(means - least) < 0.25 * sds)
    assert abs(means[0] - float(data.curvi_fit.mean()["Intercept"])) > 10 * sds[0], "without a shift it would agree"


def test_bambi_predicts_from_it(bambi_fit):
    model, frame, data = bambi_fit
    new = frame.iloc[:2].assign(x=[0.0, 10.0])
    predicted = model.predict(data, data=new, inplace=False, kind="response")
    assert predicted.curvi_fit is data.curvi_fit
    mean = np.asarray(predicted["posterior"]["mu"]).mean((0, 1))
    np.testing.assert_allclose(mean[1] - mean[0] + (frame.z[1] - frame.z[0]), 20.0, rtol=0.1)


def test_misuse_of_bambi_is_named(bambi_fit):
    model, frame, _ = bambi_fit
    with pytest.raises(ValueError, match=r"takes a bambi\.Model; got DataFrame"):
        curvi.bambi.fit(frame)
    with pytest.raises(ValueError, match=r"got bambi\.Model: use curvi\.bambi\.fit"):
        curvi.pymc.fit(model)
    with pytest.raises(TypeError, match="no argument 'inference_method'"):
        curvi.bambi.fit(model, inference_method="vi")
    with pytest.raises(ValueError, match="num_draws must be"):
        curvi.bambi.fit(model, num_draws=2.5)
