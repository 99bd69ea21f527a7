"""Fits on disk: the same bits in a new process, and never a wrong one from a damaged file."""

import dataclasses
import json
import subprocess
import sys
from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions import constraints

import curvi
from curvi import MeanField, Target, factors
from curvi.estimate import AnchoredScore
from curvi.methods import BBVI, SchemeI
from curvi.record.archive import packed_archive, read_archive
from curvi.record.plain import CannotSaveError, from_plain, register, to_plain

KEY = jax.random.key(0)


@lru_cache
def target():
    return Target(
        lambda t: -jnp.sum((t["a"] - 1) ** 2) + 2 * jnp.log(t["s"]) - t["s"],
        {"a": np.zeros((2, 2)), "s": np.array(1.0)},
        {"s": constraints.positive},
        outputs=lambda t: {"sum": t["a"].sum()},
    )


@lru_cache
def fitted():
    return curvi.fit(target(), key=KEY, progress=False, tolerance=1e-4, num_steps=2)


@lru_cache
def stored(folder):
    path = folder / "gaussian.fit"
    fitted().save(path)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("fits"))


def same(one, other):
    np.testing.assert_array_equal(one.q.params, other.q.params)
    for name in ("elbo", "elbo_se", "remaining_gain", "remaining_gain_se", "outcome", "counts", "seconds"):
        assert getattr(one, name) == getattr(other, name), name
    for name, column in vars(one.history).items():
        np.testing.assert_array_equal(column, getattr(other.history, name))
        assert column.dtype == getattr(other.history, name).dtype
    np.testing.assert_array_equal(one.error_copies, other.error_copies)


# -- what comes back --------------------------------------------------------------------------------------------------


def test_a_fit_comes_back_with_its_target(path):
    found = curvi.load(path, target())
    same(found, fitted())
    draws, expected = found.sample(KEY, 20), fitted().sample(KEY, 20)
    assert set(draws) == {"a", "s", "sum"}
    for name in draws:
        np.testing.assert_array_equal(draws[name], expected[name])
    assert str(found).splitlines()[0] == str(fitted()).splitlines()[0]
    assert found.summary().to_dict() == fitted().summary().to_dict()
    assert found.khat == fitted().khat


def test_without_the_target_a_fit_has_draws_and_says_what_it_lacks(path):
    found = curvi.load(path)
    same(found, fitted())
    draws, expected = found.sample(KEY, 20), fitted().sample(KEY, 20)
    assert set(draws) == {"a", "s"}
    for name in draws:
        np.testing.assert_array_equal(draws[name], expected[name])
    assert "needs the target" in str(found) and "No sd by linear response: this needs the target" in str(
        found.summary()
    )
    for lacking in (
        lambda: found.khat,
        lambda: found.log_ratios(KEY, 5),
        lambda: found.sd("linear_response"),
        lambda: found.resample(KEY, 5),
        lambda: found.predictive(KEY, 5),
        lambda: found.curvature_report(),
        lambda: found.sensitivity(lambda theta, t: t * theta["s"]),
        lambda: curvi.compare(found, found),
    ):
        with pytest.raises(ValueError, match=r"curvi.load\(path, target=target\)"):
            lacking()


def test_a_new_process_draws_the_same_bits(path, tmp_path):
    code = f"""
import sys, jax; jax.config.update("jax_enable_x64", True)
import numpy as np, curvi
fit = curvi.load({str(path)!r})
np.savez({str(tmp_path / "draws.npz")!r}, **fit.sample(jax.random.key(3), 50))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    expected = fitted().sample(jax.random.key(3), 50)
    with np.load(tmp_path / "draws.npz") as draws:
        assert set(draws) == {"a", "s"}
        for name in draws:
            np.testing.assert_array_equal(draws[name], expected[name])


def test_a_loaded_fit_goes_on(path):
    rest = {"progress": False, "tolerance": 1e-4}
    same_bits = curvi.fit(target(), start=fitted(), **rest)
    found = curvi.fit(target(), start=curvi.load(path), **rest)
    np.testing.assert_array_equal(found.q.params, same_bits.q.params)
    assert found.elbo == same_bits.elbo and len(found.history) == len(same_bits.history)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(SchemeI(estimator=AnchoredScore(32)), marks=pytest.mark.slow, id="Scheme I"),
        pytest.param(BBVI(optax.adam(0.1), AnchoredScore(32)), id="BBVI"),
    ],
)
def test_stepwise_methods_go_on_from_a_file(method, tmp_path):
    first = curvi.fit(target(), key=KEY, method=method, num_steps=3, progress=False, tolerance=1e-9)
    first.save(tmp_path / "fit")
    found = curvi.load(tmp_path / "fit", target())
    rest = {"num_steps": 3, "progress": False, "tolerance": 1e-9}
    if isinstance(method, BBVI):
        with pytest.raises(ValueError, match="method of this fit could not be saved"):
            curvi.fit(target(), start=found, **rest)
        with pytest.raises(ValueError, match="does not suit its method"):
            curvi.fit(target(), start=found, method=BBVI(optax.sgd(0.1), AnchoredScore(32)), **rest)
        rest["method"] = method
    else:
        assert eqx.tree_equal(found.method, method)
    second, expected = curvi.fit(target(), start=found, **rest), curvi.fit(target(), start=first, **rest)
    np.testing.assert_array_equal(second.q.params, expected.q.params)


def test_factors_and_supports_come_back(tmp_path):
    log_density = lambda t: sum(jnp.sum(v * 0.1) - jnp.sum(v**2) for v in t.values())  # noqa: E731
    init = {
        "real": np.zeros(2),
        "share": np.array([0.2, 0.8]),
        "kind": np.array([1, 2]),
        "bit": np.array(0),
        "count": np.array(3),
        "rate": np.array(2.0),
        "inside": np.array([0.5, 2.5]),
        "order": np.array([0.0, 1.0, 2.0]),
        "probability": np.array(0.3),
    }
    supports = {
        "share": constraints.simplex,
        "kind": constraints.integer_interval(1, 4),
        "bit": constraints.boolean,
        "count": constraints.nonnegative_integer,
        "rate": constraints.greater_than(1.0),
        "inside": constraints.independent(constraints.interval(np.array([0.0, 2.0]), np.array([1.0, 3.0])), 1),
        "order": constraints.ordered_vector,
        "probability": constraints.unit_interval,
    }
    mixed = Target(log_density, init, supports, order=0)
    family = MeanField(mixed, {"share": factors.Dirichlet(), "probability": factors.Beta(), "real": factors.StudentT()})
    found = dataclasses.replace(fitted(), q=family, target=mixed, checkpoint=None, error_copies=None)
    found.save(tmp_path / "fit")
    for again in (curvi.load(tmp_path / "fit"), curvi.load(tmp_path / "fit", mixed)):
        assert again.q.layout.factors == found.q.layout.factors
        for name, draw in found.sample(KEY, 9).items():
            np.testing.assert_array_equal(again.sample(KEY, 9)[name], draw)


def test_a_numpyro_model_is_recognised(tmp_path):
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    y = np.array([1.0, 2.0])
    curvi.fit(curvi.from_numpyro(model, y), key=KEY, progress=False).save(tmp_path / "fit")
    found = curvi.load(tmp_path / "fit", curvi.from_numpyro(model, y))
    assert set(found.predictive(KEY, 3)) == {"posterior", "posterior_predictive", "log_likelihood"}
    with pytest.raises(ValueError, match="belongs to another model"):
        curvi.load(tmp_path / "fit", target())


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_cut_file_never_loads(path, tmp_path):
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in [0, 1, len(whole) - 1, *rng.integers(2, len(whole) - 1, 50)]:
        (tmp_path / "cut").write_bytes(whole[:place])
        with pytest.raises(ValueError, match=r"truncated or damaged|not a curvi fit"):
            curvi.load(tmp_path / "cut")


def test_a_changed_byte_never_loads_wrongly(path, tmp_path):
    whole, refused = path.read_bytes(), 0
    for place in np.random.default_rng(1).integers(0, len(whole), 60):
        (tmp_path / "changed").write_bytes(whole[:place] + bytes([whole[place] ^ 0x11]) + whole[place + 1 :])
        try:
            found = curvi.load(tmp_path / "changed")
        except ValueError:
            refused += 1
        else:
            same(found, fitted())  # a byte of the zip's own bookkeeping, such as a date
    assert refused > 30


def test_foreign_files_are_refused(path, tmp_path):
    (tmp_path / "text").write_text("PK but not a fit")
    np.savez(tmp_path / "arrays.npz", x=np.zeros(3))
    for name in ("text", "arrays.npz"):
        with pytest.raises(ValueError, match="not a curvi fit"):
            curvi.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        curvi.load(tmp_path / "nothing")


def rewritten(path, to, **changes):
    """A copy of the file with a changed text and an honest checksum."""
    text, arrays = read_archive(path)
    to.write_bytes(packed_archive(json.dumps({**json.loads(text), **changes}), arrays))
    return to


def test_a_later_format_is_refused(path, tmp_path):
    with pytest.raises(ValueError, match="later curvi"):
        curvi.load(rewritten(path, tmp_path / "later", version=3))


def test_a_file_of_version_0_1_is_refused_with_what_to_do(path, tmp_path):
    old = rewritten(path, tmp_path / "old", version=1, **{"written by": {"curvi": "0.1.0"}})
    with pytest.raises(ValueError, match=r"written by curvi 0\.1\.0.*fit again"):
        curvi.load(old)


def test_names_and_not_modules_are_written(path):
    text = read_archive(path)[0].decode()
    assert "curvi." not in text and '"object": "MeanField"' in text


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match="saved as 'SchemeI' already"):
        register(type("SchemeI", (eqx.Module,), {"__module__": "elsewhere"}))


def test_a_file_runs_no_code(path, tmp_path):
    for name in ("os:system", "builtins:eval", "curvi.cli:main", "curvi.storage:save", "curvi.nothing:Here"):
        evil = rewritten(path, tmp_path / "evil", method={"object": name, "fields": {}})
        with pytest.raises(ValueError, match="no class"):
            curvi.load(evil)


def test_single_precision_would_cut_a_double_fit(path):
    code = f"import curvi; curvi.load({str(path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert done.returncode != 0 and "jax_enable_x64" in done.stderr


def test_an_unwritable_place_leaves_nothing(tmp_path):
    with pytest.raises(OSError):
        fitted().save(tmp_path / "no" / "such" / "folder")
    assert list(tmp_path.iterdir()) == []


def test_plain_forms():
    for value in (None, 3, 2.5, "x", True, (1, [2.0, "y"]), constraints.interval(0.0, 2.0)):
        arrays = []
        plain = json.loads(json.dumps(to_plain(value, arrays), allow_nan=False))
        assert str(from_plain(plain, arrays)) == str(value)
    assert eqx.tree_equal(from_plain(to_plain(SchemeI(), []), []), SchemeI())
    assert np.isposinf(from_plain(to_plain(np.inf, []), [])) and from_plain(to_plain(-np.inf, []), []) < 0
    for wrong in (print, {1: 1}, object(), optax.adam(0.1)):
        with pytest.raises(CannotSaveError):
            to_plain(wrong, [])
