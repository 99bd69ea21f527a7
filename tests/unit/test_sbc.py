"""Simulation-based calibration: uniform where fits are exact, and said in words where they are not."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import curvi
from curvi.calibration.ranks import counts_of, deviation, ranks_among

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(10, 2)) @ np.array([[1.0, 2.0], [0.0, 1.0]])


def linear(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.deterministic("sum", b.sum())
    numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


# -- ranks ------------------------------------------------------------------------------------------------------------


def test_ranks_of_exact_draws_are_uniform_and_those_of_wrong_ones_are_not():
    rng = np.random.default_rng(1)
    truth, draws = rng.normal(size=400), rng.normal(size=(400, 999))
    uniform = deviation(ranks_among(truth, draws, rng), 999, 1)
    assert not uniform.wrong and uniform.p_value > 0.01 and uniform.words == ""
    assert abs(uniform.outside - 0.1) < 4 * (0.09 / 400) ** 0.5
    for wrong, words in ((0.6 * draws, "too narrow"), (1.6 * draws, "too wide"), (draws - 0.4, "too low by 0.")):
        found = deviation(ranks_among(truth, wrong, rng), 999, 1)
        assert found.wrong and words in found.words
    assert "too high" in deviation(ranks_among(truth, draws + 0.4, rng), 999, 1).words


def test_ties_fall_at_random():
    rng = np.random.default_rng(2)
    truth, draws = rng.integers(0, 2, 2000), rng.integers(0, 2, (2000, 99))
    counts = counts_of(ranks_among(truth, draws, rng), 99)
    assert len(counts) == 20 and counts.sum() == 2000
    # 19 degrees of freedom: 99.99 % of the chi-square distribution lies below 50.
    assert np.sum((counts - 100) ** 2 / 100) < 50
    assert np.sum((counts_of((draws < truth[:, None]).sum(1), 99) - 100) ** 2 / 100) > 50


# -- fits -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_family():
    return {
        family: curvi.sbc(linear, X, key=KEY, observed="y", family=family, num_simulations=200)
        for family in ("full_rank", "mean_field")
    }


def test_a_gaussian_posterior_is_calibrated(by_family):
    found = by_family["full_rank"]
    assert not found.wrong() and not found.wrong("linear_response")
    assert min(found.p_values().values()) > 0.001
    assert set(found.p_values()) == {"b[0]", "b[1]", "sum"}
    assert "uniform, as far as 200 simulations tell" in str(found)


def test_independent_factors_are_too_narrow_and_linear_response_is_not(by_family):
    found = by_family["mean_field"]
    assert {"b[0]", "b[1]"} <= set(found.wrong())
    assert all("too narrow" in words for label, words in found.wrong().items() if label != "sum")
    assert min(found.p_values().values()) < 1e-6
    assert not found.wrong("linear_response")
    assert "b[0] is too narrow" in str(found) and "b[0]: too narrow" in str(found.summary())


def test_the_plot_has_a_bar_for_each_bin(by_family, tmp_path):
    made = by_family["mean_field"].plot(tmp_path / "ranks.svg", names="b")
    assert (tmp_path / "ranks.svg").read_text(encoding="utf-8") == made
    assert made.count('class="bar"') == 2 * 2 * 20  # elements, kinds, bins
    assert "b[1]" in made and "linear response" in made and "sum" not in made


def simulate(key):
    key_scale, key_data = jax.random.split(key)
    scale = jnp.exp(jax.random.normal(key_scale))
    return {"scale": scale}, {"y": scale * jax.random.normal(key_data, (20,))}


def log_density(theta, data):
    prior = dist.LogNormal(0.0, 1.0).log_prob(theta["scale"])
    return prior + dist.Normal(0.0, theta["scale"]).log_prob(data["y"]).sum()


def off_by_a_factor(theta, data):
    return dist.LogNormal(1.0, 0.3).log_prob(theta["scale"]) + log_density(theta, data)


@pytest.mark.parametrize("density, right", [(log_density, True), (off_by_a_factor, False)])
def test_a_pair_of_functions(density, right):
    options = {"init": {"scale": 1.0}, "supports": {"scale": dist.constraints.positive}}
    found = curvi.sbc((simulate, density), key=KEY, num_simulations=200, kinds="q", **options)
    assert (not found.wrong()) == right
    assert right or "too high" in found.wrong()["scale"]


def test_simulations_by_numpy():
    def by_numpy(key):
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        return {"m": rng.normal()}, rng.normal(size=3)

    def density(theta, y):
        return -(theta["m"] ** 2) / 2 - jnp.sum((y - theta["m"]) ** 2) / 2

    found = curvi.sbc((by_numpy, density), key=KEY, num_simulations=40, init={"m": 0.0})
    assert found.ranks["q"]["m"].shape == (40,)
    assert len(counts_of(found.ranks["q"]["m"], 999)) == 8
    assert np.abs(found.truths["m"]).max() > 1  # drawn, and not the start; three data of sd one leave it elsewhere


def schools(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 5):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)


def test_the_scale_of_a_centred_hierarchy_is_wrong_under_a_mean_field_and_so_said():
    found = curvi.sbc(schools, key=KEY, observed=["y"], family="mean_field", num_simulations=120)
    assert found.p_values()["tau"] < 1e-6
    assert "too narrow" in found.wrong()["tau"]
    assert "tau is too narrow" in str(found)
    assert not {label for label in found.wrong() if label.startswith("theta")}


# -- bad input --------------------------------------------------------------------------------------------------------


def factor(x):
    numpyro.factor("more", -(numpyro.sample("m", dist.Normal(0, 1)) ** 2))
    numpyro.sample("y", dist.Normal(0, 1), obs=x)


def improper(y=None):
    m = numpyro.sample("m", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(m, 1), obs=y)


PAIR = (simulate, log_density)
BAD = [
    ((linear, X), {}, "pass key="),
    ((linear, X), {"key": KEY}, 'no site of the model is observed.*observed="y"; there are b, y'),
    ((linear, X), {"key": KEY, "observed": "z"}, "observed names sites that the model does not have: z"),
    ((linear, X), {"key": KEY, "observed": ["b", "y"]}, "names every site"),
    ((linear, X, np.zeros(10)), {"key": KEY, "observed": "b"}, "observes y, which observed does not name"),
    ((linear, X), {"key": KEY, "observed": "y", "num_simulations": 5}, "num_simulations must be .* at least 20"),
    ((linear, X), {"key": KEY, "observed": "y", "kinds": "exact"}, "kinds must be some of"),
    ((linear, X), {"key": KEY, "observed": "y", "init": {"b": 0.0}}, "init and supports are those of a pair"),
    ((factor, 1.0), {"key": KEY}, "site 'more' changes the density by a factor"),
    ((improper,), {"key": KEY, "observed": "y"}, "site 'm' has an improper prior"),
    ((PAIR,), {"key": KEY}, "needs init"),
    ((PAIR, X), {"key": KEY, "init": {"scale": 1.0}}, "leave arguments and observed out"),
    (((simulate,),), {"key": KEY, "init": {"scale": 1.0}}, "a pair of functions is"),
    ((PAIR,), {"key": KEY, "init": {"m": 1.0}}, "returned no value of m"),
    ((PAIR,), {"key": KEY, "init": {"scale": np.ones(2)}}, r"the shape \(\); init gives it \(2,\)"),
    (((lambda key: 1.0, log_density),), {"key": KEY, "init": {"scale": 1.0}}, "must return a pair"),
    (("model",), {"key": KEY}, "sbc takes a NumPyro model, or a pair"),
]


@pytest.mark.parametrize("arguments, options, message", BAD, ids=[message for *_, message in BAD])
def test_bad_input_is_refused_before_anything_is_fitted(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        curvi.sbc(*arguments, **options)


def test_kinds_that_were_not_asked_for_are_named(by_family):
    with pytest.raises(ValueError, match="no ranks of kind 'polished': there are q, linear_response"):
        by_family["full_rank"].wrong("polished")


@pytest.mark.slow
def test_polished_draws_are_calibrated_where_q_is_not():
    found = curvi.sbc(
        linear, X, key=KEY, observed="y", family="mean_field", num_simulations=20, kinds=("q", "polished")
    )
    assert found.ranks["polished"]["b"].max() <= 99
    z = [one.spread_z for one in found.deviations("polished").values()]
    assert np.abs(z).max() < 4 < max(one.spread_z for one in found.deviations("q").values())
