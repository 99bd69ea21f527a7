"""The choice of the family: on Gaussians whose best family is known, by what was predicted, and within a budget."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi import Banded, Bordered, FullRank, MeanField, Target
from curvi.certify.predicted import ExpectedHessian, PredictedGain, precision_of, predict_arrow, predict_full_rank
from curvi.certify.predicted_band import predict_band, predict_regressed
from curvi.certify.predicted_blocks import num_products, predict_by_products
from curvi.certify.predicted_shapes import predict_regressions
from curvi.family.arrow import Arrow, BlockSet
from curvi.family.chain import Chain
from curvi.methods import rung
from curvi.methods.choice import Candidate, choose
from curvi.model.origin import Origin

NUM_GLOBAL = 3


def gaussian(precision: np.ndarray, plates=True) -> Target:
    """A Gaussian of globals and the rows of a plate, with its mean away from the start."""
    size = len(precision)
    centre = np.linspace(-1, 1, size)

    def log_density(t):
        away = jnp.concatenate([t["globals"], t["x"]]) - centre
        return -away @ (jnp.asarray(precision) @ away) / 2

    origin = Origin(plates={"groups": {"x": 0}}) if plates else None
    return Target(log_density, {"globals": np.zeros(NUM_GLOBAL), "x": np.zeros(size - NUM_GLOBAL)}, origin=origin)


def independent(size: int) -> np.ndarray:
    return np.diag(np.linspace(1, 4, size))


def arrow(size: int, strength: float = 0.9) -> np.ndarray:
    """Rows tied to the globals alone."""
    precision = np.eye(size)
    rng = np.random.default_rng(0)
    precision[NUM_GLOBAL:, :NUM_GLOBAL] = rng.normal(size=(size - NUM_GLOBAL, NUM_GLOBAL))
    sides = precision[NUM_GLOBAL:, :NUM_GLOBAL]
    sides *= strength / np.linalg.norm(sides, 2)
    precision[:NUM_GLOBAL, NUM_GLOBAL:] = sides.T
    return precision


def chain(size: int) -> np.ndarray:
    """Neighbours tied to each other, and to the globals."""
    precision = 1e-3 * arrow(size) + np.eye(size)
    precision[NUM_GLOBAL:, NUM_GLOBAL:] += 0.45 * (np.eye(size - NUM_GLOBAL, k=1) + np.eye(size - NUM_GLOBAL, k=-1))
    return precision


def dense(size: int) -> np.ndarray:
    """No structure: neighbours, in a random order, are tied."""
    order = np.random.default_rng(1).permutation(size)
    chain = np.eye(size) + 0.45 * (np.eye(size, k=1) + np.eye(size, k=-1))
    return chain[np.ix_(order, order)]


def fitted(target, seed=0, **settings):
    return curvi.fit(target, key=jax.random.key(seed), progress=False, **settings)


def chosen(fit) -> str:
    return next(row.name for row in fit.families if row.chosen)


# -- Gaussians whose best family is known -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "name", "kind"),
    [
        (independent, "mean_field", MeanField),
        (arrow, "bordered", Bordered),
        (chain, "banded", Banded),
        (dense, "full_rank", FullRank),
    ],
)
def test_the_best_family_is_chosen(make, name, kind):
    precision = make(110)  # beyond the dimensions in which a full covariance costs no more than others
    found = fitted(gaussian(precision))
    assert found.converged and chosen(found) == name and type(found.q) is kind
    gain = (np.log(np.diag(precision)).sum() - np.linalg.slogdet(precision)[1]) / 2
    rows = {row.name: row for row in found.families}
    assert abs(rows["full_rank"].predicted_gain - gain) < 0.05 + 0.05 * gain
    if name in ("bordered", "banded"):
        assert abs(rows[name].predicted_gain - gain) < 0.05 + 0.05 * gain
    if name == "full_rank":
        assert rows["bordered"].predicted_gain < gain - 1
    assert f"{name}, {found.q.num_params:,} parameters" in str(found)


def test_blocks_are_not_guessed():
    found = fitted(gaussian(arrow(110), plates=False))
    assert chosen(found) == "low_rank"  # three globals tie all others: rank 3 is exact
    assert "no plates" in {row.name: row.why for row in found.families}["bordered"]


def test_many_latents_are_tied_by_blocks():
    """Beyond 500 latents gains come from products, and there is no full covariance to choose."""
    precision = arrow(700)
    found = fitted(gaussian(precision))
    rows = {row.name: row for row in found.families}
    gain = -np.linalg.slogdet(precision)[1] / 2
    assert found.converged and chosen(found) == "bordered"
    assert abs(rows["bordered"].predicted_gain - gain) < 0.01
    assert math.isnan(rows["full_rank"].predicted_gain) and "not afforded" in rows["full_rank"].why
    np.testing.assert_allclose(
        found.sd()["globals"], np.sqrt(np.diag(np.linalg.inv(precision)))[:NUM_GLOBAL], rtol=0.05
    )


def test_many_latents_are_tied_in_a_chain():
    precision = chain(700)
    found = fitted(gaussian(precision))
    rows = {row.name: row for row in found.families}
    gain = (np.log(np.diag(precision)).sum() - np.linalg.slogdet(precision)[1]) / 2
    assert found.converged and chosen(found) == "banded"
    assert abs(rows["banded"].predicted_gain - gain) < 0.01


def test_many_independent_latents_stay_a_mean_field():
    found = fitted(gaussian(independent(700)))
    assert found.converged and chosen(found) == "mean_field"


def test_the_same_key_gives_the_same_choice_and_bits():
    first, second = (fitted(gaussian(arrow(90)), seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.q.params, second.q.params)
    assert first.families == second.families


@pytest.mark.parametrize(("make", "size"), [(arrow, 90), (arrow, 600), (dense, 70)])
def test_a_fit_is_resumed_across_the_switch(make, size, tmp_path):
    """N steps and M more are those of N + M, wherever the first fit stopped."""
    target = gaussian(make(size))
    whole = fitted(target, tolerance=1e-3)
    assert len(whole.history) > 1
    families = set()
    for steps in range(1, len(whole.history)):
        part = fitted(target, tolerance=1e-3, num_steps=steps)
        if part.converged:
            continue  # it is returned as it is
        part.save(tmp_path / "fit.curvi")
        families.add(type(part.q))
        resumed = curvi.fit(target, start=curvi.load(tmp_path / "fit.curvi", target), progress=False, tolerance=1e-3)
        np.testing.assert_array_equal(resumed.q.params, whole.q.params)
        assert repr(resumed.families) == repr(whole.families)  # NaN is not equal to itself
    assert (MeanField if size <= 500 else Bordered) in families and type(whole.q) is not MeanField


def test_auto_is_the_default_and_has_a_name():
    target = gaussian(arrow(90))
    first, second = fitted(target), fitted(target, family="auto")
    np.testing.assert_array_equal(first.q.params, second.q.params)
    assert first.families == second.families


@pytest.mark.parametrize("name", ["bordered", "full_rank"])
def test_a_name_is_what_is_fitted(name):
    found = fitted(gaussian(arrow(90)), family=name)
    assert found.converged and chosen(found) == name
    assert {row.name: row.why for row in found.families}[name] == "asked for"


# -- predictions ------------------------------------------------------------------------------------------------------


def expected(precision: np.ndarray) -> ExpectedHessian:
    return ExpectedHessian(-precision, np.zeros_like(precision))


def random_precision(size: int, seed: int) -> np.ndarray:
    root = np.random.default_rng(seed).normal(size=(size, 2 * size))
    return root @ root.T / size


def column_gains(precision: np.ndarray, pattern: np.ndarray) -> float:
    """The gain of a triangular scale with these entries: its columns stand alone."""
    scale = np.diag(precision) ** -0.5
    precision = precision * scale * scale[:, None]
    nats = 0.0
    for j in range(len(precision)):
        rows = np.flatnonzero(pattern[:, j])
        rows = rows[rows > j]
        nats -= np.log(1 - precision[j, rows] @ np.linalg.solve(precision[np.ix_(rows, rows)], precision[rows, j])) / 2
    return nats


CROSSED = Arrow(12, (BlockSet("a", 3, ((2, 1, 2),)), BlockSet("b", 4, ((8, 1, 1),))))


def pattern_of(one: Arrow) -> np.ndarray:
    pattern = np.tril(np.ones((one.size, one.size), bool))
    pattern[2:, 2:] = False
    for blocks in one.sets:
        for block in blocks.index():
            pattern[np.ix_(block, block)] = True
    return pattern


@pytest.mark.parametrize("seed", range(3))
def test_the_gain_of_an_arrow_is_that_of_its_columns(seed):
    precision = random_precision(12, seed)
    found = predict_arrow(precision_of(expected(precision)), CROSSED)
    assert np.isclose(found.nats, column_gains(precision, pattern_of(CROSSED)))
    assert found.nats < predict_full_rank(precision_of(expected(precision))).nats
    # A border left out is another family.
    apart = pattern_of(CROSSED)
    apart[2:, :2] = False
    assert not np.isclose(found.nats, column_gains(precision, apart), rtol=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_products_predict_what_the_whole_precision_does(seed):
    """Exactly where blocks do not meet; where they do, from below and within the error that is stated."""
    precision, one = random_precision(12, seed) + 5 * np.eye(12), CROSSED
    exact = predict_arrow(precision_of(expected(precision)), one)
    apart = np.where(pattern_of(one) | pattern_of(one).T, precision, 0.0)
    sds, rng = np.diag(precision) ** -0.5, np.random.default_rng(seed)
    few = predict_by_products(lambda v: -apart @ v, sds * rng.uniform(0.8, 1.2, 12), one, 64)
    assert np.isclose(few.nats, predict_arrow(precision_of(expected(apart)), one).nats) and few.error < 1e-9
    found = predict_by_products(lambda v: -precision @ v, sds, one, 64)
    # The probe of a set sees blocks of the same set that meet, which those of this matrix do.
    assert found.error > 0 and abs(found.nats - exact.nats) < 0.5 * exact.nats
    # Both latents of a block have a probe of their own.
    wrong = predict_by_products(
        lambda v: -apart @ v, sds, Arrow(12, (BlockSet("a", 6, ((2, 1, 1),)), *one.sets[1:])), 64
    )
    assert abs(wrong.nats - few.nats) > 0.001


def banded_precision(length: int, width: int, num_global: int, seed: int) -> np.ndarray:
    pattern = Chain(length + num_global, BlockSet("chain", length, ((num_global, 1, 1),)), width).pattern()
    root = np.where(pattern, np.random.default_rng(seed).normal(size=pattern.shape), 0.0) / 3 + np.eye(len(pattern))
    return root.T @ root


@pytest.mark.parametrize(("width", "num_global"), [(1, 0), (1, 2), (2, 3)])
def test_products_predict_what_a_band_gains(width, num_global):
    precision = banded_precision(30, width, num_global, 0)
    one = Chain(len(precision), BlockSet("chain", 30, ((num_global, 1, 1),)), width)
    scale = np.diag(precision) ** -0.5
    unit = precision * scale * scale[:, None]
    gain, sds = -np.linalg.slogdet(unit)[1] / 2, np.random.default_rng(1).uniform(0.5, 2, len(precision))
    found = predict_band(lambda v: -precision @ v, sds, one, 64)
    assert np.isclose(found.nats, gain) and found.error < 1e-9
    assert np.isclose(predict_regressed(unit, one.pattern()), gain)
    # Too narrow a band is no band: its products are not those of the bands alone.
    if width > 1:
        narrow = Chain(len(precision), one.elements, 1)
        assert not abs(predict_band(lambda v: -precision @ v, sds, narrow, 64).nats - gain) < 0.01
        assert predict_regressed(unit, narrow.pattern()) < gain - 0.1


@pytest.mark.parametrize("seed", range(3))
def test_regressions_bound_the_best_gain_of_a_band_from_below(seed):
    precision, one = random_precision(12, seed), Chain(12, BlockSet("chain", 10, ((2, 1, 1),)), 1)
    scale = np.diag(precision) ** -0.5
    unit = precision * scale * scale[:, None]
    bound, best = predict_regressed(unit, one.pattern()), predict_regressions(unit, one.pattern())
    assert 0 <= bound <= best + 1e-9 < -np.linalg.slogdet(unit)[1] / 2


def test_what_is_not_definite_is_unknown():
    for matrix in (np.diag([1.0, -1.0]), np.array([[1.0, 2.0], [2.0, 1.0]]), np.full((2, 2), np.nan)):
        one = Arrow(2, (BlockSet("a", 1, ((1, 1, 1),)),))
        assert precision_of(expected(matrix)) is None
        assert not predict_arrow(precision_of(expected(matrix)), one).known
        assert not predict_by_products(lambda v: -matrix @ v, np.ones(2), one, 64).known  # noqa: B023


def test_products_are_within_their_budget():
    one = Arrow(1_000 + 20, (BlockSet("a", 1_000, ((20, 1, 1),)),))
    assert num_products(one, 64) == 41 and num_products(one, 40) == 21 and num_products(one, 20) is None
    calls = []

    def product(v):
        calls.append(v)
        return -v

    assert predict_by_products(product, np.ones(one.size), one, 41).nats == 0 and len(calls) == 41
    assert not predict_by_products(product, np.ones(one.size), one, 20).known and len(calls) == 41


# -- the rule ---------------------------------------------------------------------------------------------------------


def candidate(name: str, num_params: int, nats: float, wider: float = 1.0) -> Candidate:
    return Candidate(name, num_params, PredictedGain(nats, 0.0, wider))


@pytest.mark.parametrize(
    ("bordered", "full", "expected"),
    [
        (0.0, 0.04, "mean_field"),  # not worth it
        (0.03, 0.06, "full_rank"),  # what is not worth it is not taken in the place of what is
        (0.06, 0.10, "bordered"),
        (3.85, 4.0, "bordered"),  # within 0.2 nats
        (3.75, 4.0, "full_rank"),
    ],
)
def test_the_cheapest_within_a_fifth_of_a_nat(bordered, full, expected):
    rows = [
        candidate("mean_field", 200, 0.0),
        candidate("bordered", 6_000, bordered),
        candidate("full_rank", 9_000, full),
    ]
    assert choose(rows) == expected


def test_what_is_small_costs_nothing():
    rows = [candidate("mean_field", 20, 0.0), candidate("bordered", 40, 3.0), candidate("full_rank", 65, 3.01)]
    assert choose(rows) == "full_rank"


def test_of_families_that_neither_contains_the_better_one_is_taken():
    rows = [candidate("mean_field", 60, 0.0), candidate("bordered", 200, 1.9), candidate("low_rank", 300, 1.8)]
    assert choose(rows) == "bordered"
    assert choose([*rows[:2], candidate("low_rank", 300, 2.0)]) == "low_rank"
    assert choose([*rows[:2], candidate("low_rank", 300, 1.9)]) == "bordered"


def test_an_sd_that_is_off_by_a_tenth_is_enough():
    rows = [candidate("mean_field", 20, 0.0, 1.2), candidate("full_rank", 65, 0.04, 1.2)]
    assert choose(rows) == "full_rank"


def test_what_is_unknown_is_not_chosen():
    assert choose([candidate("mean_field", 20, 0.0), candidate("full_rank", 65, math.nan)]) == "mean_field"


def test_a_budget_refuses_and_says_so(monkeypatch):
    monkeypatch.setattr(rung, "device_bytes", lambda: 2**20)
    found = fitted(gaussian(arrow(90)))
    rows = {row.name: row for row in found.families}
    assert chosen(found) == "bordered"  # the 550 kB of full rank are not there
    assert "not afforded" in rows["full_rank"].why and "memory" in rows["full_rank"].why
    monkeypatch.setattr(rung, "device_bytes", lambda: 2**16)
    found = fitted(gaussian(arrow(90)))
    assert chosen(found) == "mean_field" and found.converged
    assert all("not afforded" in row.why for row in found.families if not row.chosen and "+" not in row.name)


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("fullrank", "family must be one of auto, mean_field, .*got 'fullrank'"),
        (FullRank, "such as FullRank\\(target\\); got the class"),
        (3, "family must be a name or"),
        ("other", "made for another target"),
        ("bordered", "Bordered needs blocks: the target knows of no plates"),
    ],
)
def test_bad_families_are_refused_before_anything_is_computed(family, message):
    target = gaussian(independent(5), plates=False)
    family = FullRank(gaussian(independent(6))) if family == "other" else family
    with pytest.raises(ValueError, match=message):
        fitted(target, family=family)


def test_a_family_and_a_start_contradict_each_other():
    target = gaussian(independent(5))
    found = fitted(target, num_steps=1)
    with pytest.raises(ValueError, match="start has its own family"):
        curvi.fit(target, start=found, family="auto", progress=False)
