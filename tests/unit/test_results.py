"""What a fit shows of itself: the screen, the table, k-hat, resampled draws."""

import dataclasses
import subprocess
import sys
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

import curvi
from curvi import Outcome, Target
from curvi.methods import SchemeI
from curvi.report.answers import next_step
from curvi.report.table import ERROR, MEAN, RESPONSE_SD, SD, SD_ERROR, Summary, number

KEY = jax.random.key(0)
COVARIANCE = np.array([[1.0, 0.4], [0.4, 0.8]])
CENTRE = np.array([0.5, -1.0])


@lru_cache
def gaussian():
    precision = np.linalg.inv(COVARIANCE)
    target = Target(
        lambda t: -(t["a"] - CENTRE) @ precision @ (t["a"] - CENTRE) / 2 - t["s"],
        {"a": np.zeros(2), "s": np.array(1.0)},
        {"s": constraints.positive},
        outputs=lambda t: {"sum": t["a"].sum()},
    )
    return curvi.fit(target, key=KEY, family="mean_field", progress=False, tolerance=0.01)


@lru_cache
def factorised():
    """A target that q can match exactly."""
    target = Target(lambda t: -(t["x"] @ t["x"]) / 2, {"x": np.zeros(3)})
    return curvi.fit(target, key=KEY, family="mean_field", progress=False)


@lru_cache
def discrete():
    weights = jnp.array([0.3, -1.0, 2.0])
    target = Target(lambda t: t["bits"] @ weights, {"bits": np.zeros(3, int)}, {"bits": constraints.boolean}, order=0)
    return curvi.fit(target, key=KEY, progress=False, num_steps=30)


@lru_cache
def heavy():
    """Tails that no normal has."""
    wide = Target(lambda t: -0.65 * jnp.sum(jnp.log1p(t["x"] ** 2 * 4)), {"x": np.zeros(20)})
    return curvi.fit(wide, key=KEY, family="mean_field", progress=False)


# -- the screen -------------------------------------------------------------------------------------------------------


def test_the_screen_says_all_in_few_lines():
    text = str(gaussian())
    assert text.startswith("curvi fit: converged; posterior doubtful (GrowingDraws)")
    for word in ("ELBO", "left to gain", "k-hat", "cost", "calls", "next", "linear_response"):
        assert word in text
    assert f"{gaussian().elbo:.4f} ± " in text and f"{gaussian().khat:.2f}" in text
    lines = text.splitlines()
    assert len(lines) <= 18 and max(map(len, lines)) <= 120


def test_a_fit_that_did_not_converge_says_what_to_do():
    found = curvi.fit(gaussian().target, key=KEY, progress=False, num_steps=1, tolerance=1e-6)
    assert found.outcome is Outcome.MAX_STEPS
    assert "not converged" in str(found) and "start=fit" in str(found)


def test_suspects_are_named_where_there_is_trouble():
    trouble = {"suspects": ("x[2]", "x[0]"), "outcome": Outcome.NOT_A_MAXIMUM}
    assert "look at         x[2], x[0]" in str(dataclasses.replace(factorised(), **trouble))
    assert "look at" not in str(dataclasses.replace(factorised(), suspects=("x[2]",)))


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.CONVERGED])
def test_every_outcome_has_a_next_step(outcome):
    assert "  next  " in str(dataclasses.replace(factorised(), outcome=outcome))


def test_in_single_precision_what_is_not_finite_may_be_rounding():
    fit = factorised()
    single = dataclasses.replace(fit, outcome=Outcome.NON_FINITE, q=fit.q.replace(fit.q.params.astype(jnp.float32)))
    assert "use float64" in next_step(single) and "logarithms" in next_step(single)
    assert "float64" not in next_step(dataclasses.replace(fit, outcome=Outcome.NON_FINITE))


def test_repr_is_one_line_and_computes_nothing():
    found = curvi.fit(factorised().target, key=KEY, progress=False)
    assert repr(found).startswith("Fit(CONVERGED, elbo=") and "\n" not in repr(found)
    assert "khat" not in vars(found)
    first = found.khat
    assert vars(found)["khat"] is first, "computed once"


# -- k-hat ------------------------------------------------------------------------------------------------------------


def test_khat_of_a_perfect_and_of_a_poor_q():
    assert factorised().khat < 0.2
    assert any(words in str(factorised()) for words in ("q is close to the posterior", "q matches the posterior"))
    wide = Target(lambda t: -5 * jnp.log1p(jnp.sum(t["x"] ** 2) / 3), {"x": np.zeros(8)})
    assert curvi.fit(wide, key=KEY, family="mean_field", progress=False).khat > 0.5


def test_khat_agrees_with_arviz_on_the_same_draws():
    arviz = pytest.importorskip("arviz")
    for found in (gaussian(), heavy()):
        ratios = np.asarray(found.log_ratios(KEY, 4096))
        assert np.isclose(found.khat, float(arviz.psislw(ratios)[1]), rtol=1e-6)
    # Where the largest ratio is common, ArviZ finds no tail and says infinity; but then the ratios are bounded.
    assert discrete().khat == -np.inf


def test_resampled_draws_follow_the_posterior():
    found = gaussian()
    draws = found.resample(jax.random.key(3), 4000, 80_000)
    assert set(draws) == {"a", "s", "sum"} and draws["a"].shape == (4000, 2)
    assert np.allclose(draws["a"].sum(1), draws["sum"])
    # Those of q have no correlation and too small a spread.
    assert np.allclose(np.cov(draws["a"].T), COVARIANCE, atol=0.1)
    plain = found.sample(jax.random.key(3), 4000)
    assert abs(np.cov(np.asarray(plain["a"]).T)[0, 1]) < 0.05
    again = found.resample(jax.random.key(3), 4000, 80_000)
    np.testing.assert_array_equal(draws["a"], again["a"])


def test_resampling_warns_where_weights_are_useless():
    found = heavy()
    assert found.khat > 0.7
    with pytest.warns(UserWarning, match="k-hat is"):
        found.resample(KEY, 10)
    with pytest.raises(ValueError, match="from 1 to num_proposals"):
        found.resample(KEY, 10, 5)


# -- the table --------------------------------------------------------------------------------------------------------


def test_summary_has_a_row_a_scalar():
    table = gaussian().summary()
    assert table.labels == ("a[0]", "a[1]", "s", "sum") and len(table) == 4
    assert list(table.columns) == [MEAN, SD, RESPONSE_SD, "5%", "50%", "95%", ERROR, SD_ERROR]
    row = table["a[1]"]
    assert abs(row[MEAN] + 1) < 0.02 and abs(row[RESPONSE_SD] - 0.8**0.5) < 0.02
    assert row["5%"] < row["50%"] < row["95%"] and 0 <= row[ERROR] < 0.1
    sd = np.linalg.inv(COVARIANCE)[1, 1] ** -0.5
    assert abs(row["95%"] - row[MEAN] - 1.645 * sd) < 0.03
    text = str(table)
    assert "sd (linear response)" in text and "finite number of draws" in text
    assert len(text.splitlines()) == 7 and max(map(len, text.splitlines())) <= 120
    with pytest.raises(KeyError, match="no row named"):
        table["b"]


def test_summary_exports():
    table = gaussian().summary(probabilities=[0.25, 0.75])
    rows = table.to_dict()
    assert rows["s"]["75%"] > rows["s"]["25%"] > 0 and set(rows) == set(table.labels)
    frame = pytest.importorskip("pandas") and table.to_pandas()
    assert frame.loc["a[0]", MEAN] == rows["a[0]"][MEAN] and list(frame.columns) == list(table.columns)
    with pytest.raises(ValueError, match="between 0 and 1"):
        gaussian().summary(probabilities=[0.0, 0.5])


def test_summary_says_why_a_column_is_missing():
    table = discrete().summary()
    assert RESPONSE_SD not in table.columns and ERROR not in table.columns
    assert "No sd by linear response" in str(table) and "twice differentiable" in str(table)


def test_long_tables_are_cut_in_print_alone():
    many = Summary(tuple(f"x[{i}]" for i in range(500)), {MEAN: np.arange(500.0)})
    assert len(str(many).splitlines()) < 70 and "500 rows" in str(many) and "x[499]" in str(many)
    assert len(many.to_dict()) == 500


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1.0, "1.000"), (123456.0, "123456"), (-0.012346, "-0.01235"), (1e-9, "1.000e-09"), (np.inf, "inf")],
)
def test_numbers_have_four_digits(value, text):
    assert number(value) == text


def test_score_methods_have_a_summary_too():
    found = curvi.fit(gaussian().target, key=KEY, method=SchemeI(), num_steps=20, progress=False)
    assert RESPONSE_SD in found.summary().columns or "No sd by linear response" in str(found.summary())


def test_results_need_no_extra():
    code = """
import sys
for extra in ("arviz", "arviz_base", "xarray", "pandas", "matplotlib"):
    sys.modules[extra] = None
import curvi, jax
target = curvi.Target(lambda t: -(t["x"] ** 2) / 2, {"x": jax.numpy.array(0.0)})
fit = curvi.fit(target, key=jax.random.key(0), progress=False)
assert "k-hat" in str(fit) and "x" in str(fit.summary())
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
