"""The documentation: the site builds without a warning, pages are complete, and their code runs."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import curvi
from curvi.methods import Method

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HEADINGS = ["Idea", "Update", "Cost", "When it fails", "References"]
METHODS = [
    name
    for name, value in vars(curvi.methods).items()
    if inspect.isclass(value) and issubclass(value, Method) and not inspect.isabstract(value)
    and name not in ("Method", "StepMethod")
]  # fmt: skip
METHOD_PAGES = sorted(path for path in (DOCS / "methods").glob("*.md") if path.name != "index.md")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for module in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(module, reason=f"{module} is not installed (an extra: docs)")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


def test_site_builds_strictly_and_shows_what_it_should(site):
    assert "<h2" in (site / "index.html").read_text(encoding="utf-8")
    for page in (
        "choose",
        "families",
        "limits",
        "design",
        "add-a-method",
        "benchmarks",
        "peers",
        "posteriors",
        "paper",
        "api",
    ):
        assert (site / page / "index.html").exists()
    # Tutorials hold their scripts, and the reference the docstrings.
    assert "from_pymc" in (site / "tutorials" / "pymc" / "index.html").read_text(encoding="utf-8")
    reference = (site / "api" / "index.html").read_text(encoding="utf-8")
    assert "subsample_size" in reference and "init_strategy" in reference


def test_every_public_name_is_in_the_reference(site):
    reference = (site / "api" / "index.html").read_text(encoding="utf-8")
    public = [name for name, value in vars(curvi).items() if not name.startswith("_") and callable(value)]
    assert {"fit", "check", "Target", "from_pymc"} <= set(public)
    assert not [name for name in [*public, *METHODS] if f".{name}" not in reference]


def test_site_asks_no_other_server(site):
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    fetched = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', "".join(pages))
    assert not [address for address in fetched if "canonical" not in address]


@pytest.mark.parametrize("path", METHOD_PAGES, ids=lambda path: path.stem)
def test_method_pages_have_the_same_headings(path):
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == HEADINGS
    assert re.match(r"# .+\n\n`curvi\.methods\.\w+`\n", text)


def test_every_public_method_has_a_page():
    described = {
        re.search(r"`curvi\.methods\.(\w+)`", path.read_text(encoding="utf-8")).group(1) for path in METHOD_PAGES
    }
    assert set(METHODS) <= described


def test_code_of_the_first_page_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "index.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        names = {}
        exec(compile(block, "docs/index.md", "exec"), names)
        assert names["fit"].converged
    assert "ready to be fitted" in capsys.readouterr().out


def test_every_script_is_shown_in_a_tutorial():
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "tutorials").glob("*.md"))
    scripts = [path.name for path in (ROOT / "examples").glob("*.py")]
    assert not [name for name in scripts if f"examples/{name}" not in pages]


def test_code_of_the_page_on_extensions_runs():
    text = (DOCS / "add-a-method.md").read_text(encoding="utf-8")
    names: dict = {"__name__": "extensions"}
    for block in re.findall(r"```python\n((?:from|import) .*?)```", text, flags=re.DOTALL):
        exec(compile(block, "docs/add-a-method.md", "exec"), names)
    target = curvi.Target(lambda t: -jnp.sum(t["x"] ** 2) + t["x"][0], {"x": np.zeros(2)})
    momentum = curvi.fit(target, key=jax.random.key(0), method=names["Momentum"](), num_steps=300, progress=False)
    solver = curvi.methods.SchemeI(solver=names["SteepestDescent"]())
    steepest = curvi.fit(target, key=jax.random.key(0), method=solver, progress=False)
    family = curvi.MeanField(target, {"x": names["Logistic"]()})
    values = curvi.Target(lambda t: -jnp.sum(t["x"] ** 2) + t["x"][0], {"x": np.zeros(2)}, order=0)
    logistic = curvi.fit(values, key=jax.random.key(0), family=family.onto(values), progress=False)
    for fit in (momentum, steepest, logistic):
        assert fit.converged
        np.testing.assert_allclose(fit.mean()["x"], [0.5, 0.0], atol=0.15)


def test_the_example_of_the_readme_prints_what_it_says():
    """Word by word; numbers of the posterior as far as another processor may round them."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code, said = re.search(r"```python\n(.*?)```\s+```text\n(.*?)```", text, flags=re.DOTALL).groups()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    number = re.compile(r"-?\d[\d.,]*(?:e[-+]\d+)?")
    assert number.sub("#", done.stdout).split() == number.sub("#", said).split()
    for row in ("noise", "slope"):
        shown, printed = (re.search(rf"^{row} .*$", part, flags=re.MULTILINE).group() for part in (said, done.stdout))
        values = [[float(word) for word in line.split()[1:7]] for line in (shown, printed)]
        np.testing.assert_allclose(*values, rtol=0.02)


def test_the_walk_in_the_design_is_that_of_the_code():
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "walk.py")], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    files = re.findall(r"^\| `([\w/.]+)` \|", done.stdout, flags=re.MULTILINE)
    assert 5 < len(files) <= 23
    said = re.findall(r"^\| `([\w/.]+)` \|", (DOCS / "design.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert said == files
