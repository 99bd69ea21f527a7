"""The report: what it says, and what a browser makes of it on a desk and on a phone."""

import dataclasses
import itertools
import re
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from browser import look
from numpyro.distributions import constraints

import curvi
from curvi import Outcome, Target
from curvi.report import html_correlations, svg, svg_bars
from curvi.report.html import page

KEY = jax.random.key(0)


def schools(sigma, y):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", 8):
        z = numpyro.sample("z", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


@lru_cache
def eight_schools():
    y, sigma = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    return curvi.fit(curvi.from_numpyro(schools, sigma, y), key=KEY, progress=False)


@lru_cache
def ridge():
    def log_density(t):
        away = t["a"] + t["a latent with quite a long name"][1] - 1
        return -50 * away**2 - 0.005 * t["a"] ** 2 - 0.005 * jnp.sum(t["a latent with quite a long name"] ** 2)

    target = Target(log_density, {"a": np.array(0.0), "a latent with quite a long name": np.zeros(30)})
    return curvi.fit(target, key=KEY, family="mean_field", progress=False, num_steps=1, tolerance=1e-6)


@lru_cache
def bits():
    weights = jnp.array([0.3, -1.0, 2.0])
    target = Target(lambda t: t["bits"] @ weights, {"bits": np.zeros(3, int)}, {"bits": constraints.boolean}, order=0)
    return curvi.fit(target, key=KEY, progress=False, num_steps=3)


FITS = {"eight schools": eight_schools, "ridge": ridge, "bits": bits}
HEADINGS = ["Progress", "Families", "Posterior", "Correlations", "k-hat", "Curvature", "Numbers", "Cost"]


# -- content ----------------------------------------------------------------------------------------------------------


def test_the_verdict_comes_first(tmp_path):
    eight_schools().report(tmp_path / "report.html", "Eight schools")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    plain = re.sub(r"<style>.*?</style>|<[^>]+>", " ", text, flags=re.S)
    order = [text.index(word) for word in ("<h1>Eight schools", "Optimum: converged</p>", "Posterior: ", "<h3>ELBO")]
    order += [text.index(f"<h2>{heading}") for heading in HEADINGS]
    assert order == sorted(order)
    assert f"{eight_schools().elbo:.2f}" in plain and f"{eight_schools().khat:.2f}" in plain
    for word in (
        "5 % to 95 % of draws under importance weights",
        "sd (q)",
        "error of sd",
        "linear response",
        "tau",
        "theta[7]",
        "GrowingDraws",
        "curvature",
    ):
        assert word in plain
    flat = bool(eight_schools().curvature_report().of_kind("flat"))
    assert ("Some directions are flat" if flat else "No direction is flat") in plain


def test_families_stand_with_what_they_should_gain():
    fit, text = eight_schools(), page(eight_schools())
    part = text[text.index("<h2>Families") : text.index("<h2>Posterior")]
    for row in fit.families:
        assert part.count(f">{row.name}<") == 2  # a bar and a line of the table
        assert f"{row.num_params:,}" in part and (not np.isfinite(row.predicted_gain) or "± " in part)
    assert part.count('<tr class="chosen">') == 1 and part.count('class="bar marked"') == 1
    # Bars are as long as the gains: nothing is marked as large that is next to nothing.
    for gains in ([0.0, 1.0, 2.0], [0.0, 0.001, np.nan]):
        drawn = svg_bars.bars([(f"f{i}", gain, "", i == 1) for i, gain in enumerate(gains)], "label", 0.2)
        widths = [float(width) for width in re.findall(r'width="([\d.]+)" height="16"', drawn)]
        known = [gain for gain in gains if np.isfinite(gain)]
        np.testing.assert_allclose(widths, np.array(known) / max(0.2, *known) * 300, rtol=0.2, atol=0.6)
    assert "<h2>Families" not in page(dataclasses.replace(bits(), families=()))


def test_correlations_are_those_of_q_and_of_linear_response():
    text = page(ridge())
    part = text[text.index("<h2>Correlations") : text.index("<h2>k-hat")]
    # Two of 31 latents are correlated, by -1 as linear response sees it, and not at all under a mean field.
    assert "the 2 latents that are correlated most" in part and "a 1<" in part and "[1] 2<" in part
    assert re.findall(r'class="value">([^<]+)<', part) == ["\u22121", part.split('class="value">')[2].split("<")[0]]
    assert abs(float(part.split('class="value">')[2].split("<")[0].replace("\u2212", "-"))) < 0.1
    asked = page(eight_schools(), correlations=["mu", "theta[3]"])
    part = asked[asked.index("<h2>Correlations") : asked.index("<h2>k-hat")]
    draws = eight_schools().sample(KEY, 4096)
    truth = np.corrcoef(draws["mu"], draws["theta"][:, 3])[0, 1]
    shown = [float(value.replace("\u2212", "-")) for value in re.findall(r'class="value">([^<]+)<', part)]
    assert abs(shown[1] - truth) < 0.06 and abs(shown[0] - truth) < 0.2
    with pytest.raises(ValueError, match="no latent or output named nu"):
        page(eight_schools(), correlations="nu")
    # Beyond what can be shown: the largest are found among all.
    matrix = np.eye(50)
    matrix[3, 40] = matrix[40, 3] = -0.7
    matrix[7, 8] = matrix[8, 7] = 0.3
    assert html_correlations._most_correlated(matrix) == [3, 7, 8, 40]


def test_chains_stand_against_q():
    pytest.importorskip("blackjax", reason="BlackJAX is not installed (an extra: mcmc)")
    fit = dataclasses.replace(ridge())
    assert "Against Markov chains" not in page(fit, polished=None)
    polished = fit.polish(KEY, 200, 2)
    text = page(fit, polished=polished)
    part = text[text.index("<h2>Against Markov chains") : text.index("<h2>k-hat")]
    assert "2 chains of 200 draws" in part and "the 16 of 31 that moved most" in part
    known = np.concatenate([np.ravel(value) for value in polished.moved.sd.values()])
    at = np.nanargmax(np.abs(np.log(known)))
    assert f"sds by at most a factor of {known[at]:.2g}" in part
    # The ridge is what q, a product, did not see: its intervals moved most.
    order = re.findall(r'class="name">([^<]+)<', part)
    assert len(order) == 16 and {order[0], order[1]} == {"a", "a latent…ng name[1]"}
    # A report shows the last chains of its fit without being asked.
    assert vars(fit)["_polished"] is polished


def test_passes_over_the_data_are_shown():
    text = page(bits())
    assert "Passes over the data" not in text
    counts = dataclasses.replace(bits().counts, passes=5.25)
    assert 'Passes over the data</h3><p class="figure">5.25</p><p>times that all rows' in page(
        dataclasses.replace(bits(), counts=counts)
    )


def test_the_page_is_self_contained():
    for fit in FITS.values():
        text = page(fit())
        assert "<script" not in text and not re.search(r'(src|href)="(?!data:)', text)
        assert not re.search(r"url\(|@import", text)
        assert re.findall(r"https?://[^\"' ]+", text) == ["http://www.w3.org/2000/svg"] * text.count("<svg")


def test_a_fit_that_did_not_converge_says_so_at_once():
    text = page(ridge())
    assert text.index("not converged: max steps") < text.index("ELBO")
    assert 'class="flat"' in text and "start=fit" in text and "too small by up to a factor" in text


def test_what_cannot_be_computed_is_explained():
    text = page(bits())
    assert "needs the Hessian of a twice differentiable target" in text
    saved = dataclasses.replace(eight_schools(), target=_without_target(eight_schools().target))
    text = page(saved)
    assert text.count("this needs the target") + text.count("This needs the target") >= 3


def _without_target(target):
    from curvi.storage import MissingTarget

    return MissingTarget(target.latents, {}, 2)


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_a_page(outcome):
    empty = type(bits().history)(*[np.zeros(0)] * len(dataclasses.fields(bits().history)))
    fit = dataclasses.replace(
        bits(), outcome=outcome, elbo=np.nan, elbo_se=np.inf, remaining_gain=np.inf, history=empty
    )
    text = page(fit)
    assert "No step was taken" in text and "unknown" in text
    assert ("not converged" in text) is (outcome is not Outcome.CONVERGED)


def test_names_are_escaped():
    target = Target(lambda t: -(t["<b>&"] ** 2), {"<b>&": np.array(0.0)})
    text = page(curvi.fit(target, key=KEY, progress=False), title="<script>alert(1)</script>")
    assert "<b>" not in text and "&lt;b&gt;&amp;" in text and "<script>" not in text


# -- charts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3.2, 17), (1e-9, 3e-9), (-1e6, 1e6), (99.9, 100.1)])
def test_ticks_are_few_round_and_inside(low, high):
    ticks = svg.even_ticks(low, high)
    assert 2 <= len(ticks) <= 7 and all(low - 1e-12 <= tick <= high + 1e-12 for tick in ticks)
    assert len({float(f"{b - a:.6g}") for a, b in itertools.pairwise(ticks)}) == 1


def test_log_ticks():
    assert svg.log_ticks(0.002, 30) == [0.01, 0.1, 1, 10] and svg.log_ticks(1, 10) == [1, 2, 5, 10]
    assert len(svg.log_ticks(1e-30, 1e30)) <= 7


def test_numbers_of_axes_are_short():
    assert [svg.short(v) for v in (0, 1.5, -2, 1e-7, 3e8)] == ["0", "1.5", "−2", "10⁻⁷", "3·10⁸"]  # noqa: RUF001


def test_points_stand_where_they_should():
    chart = svg.line_chart([0.0, 1.0, 2.0], [0.0, 5.0, 10.0], label="x", x_name="t")
    places = [tuple(map(float, pair.split(","))) for pair in re.search(r'points="([^"]+)"', chart)[1].split()]
    (x0, y0), (x1, y1), (x2, y2) = places
    assert np.isclose(x1 - x0, x2 - x1, atol=0.2) and np.isclose(y0 - y1, y1 - y2, atol=0.2) and y0 > y2
    assert "nothing finite" in svg.line_chart([1.0], [np.nan], label="x", x_name="t")


def test_labels_at_the_edge_are_moved_inwards(tmp_path):
    charts = [
        svg.line_chart([0.005, 0.0064], [-123456.0, -123450.0], label="x", x_name="t"),
        svg.line_chart(
            [1.0, 12000.0], [1e-12, 1e-11], label="x", x_name="t", log=True, level=1e-11, level_name="level"
        ),
        svg.intervals([("a rather long name of a latent[12]", 0.0, (-0.1, 0.1), (-1e-9, 0.1248))], "x"),
    ]
    body = "".join(f"<figure>{chart}</figure>" for chart in charts)
    found = look(page(bits()).replace("</main>", f"{body}</main>"), 390, tmp_path)
    assert found["cut"] == [] and found["small"] == []


# -- in a browser -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", FITS)
def test_in_a_browser(name, width, tmp_path):
    found = look(page(FITS[name](), name), width, tmp_path)
    assert found["console"] == [], "the console stays silent"
    assert found["headings"] == [name, *HEADINGS]
    assert found["width"] <= width and found["out"] == [], "no horizontal scroll"
    assert found["small"] == [] and found["cut"] == [], "text is readable, and inside its chart"
    assert found["outside"] == [] and found["svgs"] >= 3
    assert "converged" in found["text"][:200] and "NaN" not in found["text"] and "nan" not in found["text"].split()


def test_the_browser_would_see_trouble(tmp_path):
    wrong = page(bits()).replace(
        "</main>",
        '<div style="width:900px">wide</div><script>console.error("trouble")</script>'
        '<svg viewBox="0 0 360 20"><text x="350" y="12" style="font-size:8px">cut off</text></svg></main>',
    )
    found = look(wrong, 390, tmp_path)
    assert found["console"] and found["width"] > 390 and any("wide" in e for e in found["out"])
    assert found["cut"] == ["cut off"] and found["small"]
