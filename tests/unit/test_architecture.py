"""What may import what: the core knows nothing of the edges, and needs nothing that is optional."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import curvi

ROOT = Path(curvi.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
# The edges of the library: ways in (adapters), ways out (report), and programs (cli, demo).
EDGES = ("adapters", "report", "cli", "demo", "examples")
LANGUAGES = ("numpyro", "pymc", "pyro", "blackjax", "tensorflow_probability", "cmdstanpy", "stan")
EXTRAS = ("matplotlib", "sklearn", "arviz", "arviz_base", "xarray", "pandas", "pymc")


def part_of(path: Path) -> str:
    """The first component of a module under the package: a subpackage, or a module of its own."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(path: Path) -> list[str]:
    """Full names of everything that a file imports, wherever in the file."""
    return _names(ast.parse(path.read_text(encoding="utf-8")), path)


def _names(tree: ast.AST, path: Path | None = None) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides where it leads"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


CORE = [path for path in MODULES if part_of(path) not in EDGES]


def test_the_split_is_a_split():
    assert {part_of(path) for path in MODULES} > set(EDGES)
    assert {"fit", "target", "estimate", "methods", "solve"} <= {part_of(path) for path in CORE}


def on_import(path: Path) -> list[str]:
    """Full names of what a file imports when it is itself imported, not when a function of it is called."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body = [ast.Pass()]
    return _names(tree, path)


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_core_imports_no_edge(path):
    # A fit is a facade: its methods open the ways out, when they are called.
    if path == ROOT / "results.py":
        assert not [name for name in on_import(path) for edge in EDGES if within(name, f"curvi.{edge}")]
        assert not [
            name for name in imports_of(path) for edge in ("adapters", "cli", "demo") if within(name, f"curvi.{edge}")
        ]
        return
    # The front door shows the adapters to users; nothing behind it may lean on them.
    if path == ROOT / "__init__.py":
        assert not [name for name in imports_of(path) for edge in EDGES[1:] if within(name, f"curvi.{edge}")]
        return
    wrong = [name for name in imports_of(path) for edge in EDGES if within(name, f"curvi.{edge}")]
    assert not wrong


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_core_knows_no_modelling_language(path):
    # Distributions and constraints of numpyro are mathematics; its handlers and primitives are a language.
    found = [name for name in imports_of(path) for language in LANGUAGES if within(name, language)]
    assert not [name for name in found if not within(name, "numpyro.distributions")]


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_core_imports_no_extra(path):
    assert not [name for name in imports_of(path) for extra in EXTRAS if within(name, extra)]


# What each layer may not reach up to: estimators feed descents, which feed methods, which feed the loop.
ABOVE = {
    "curvature": ("target", "family", "estimate", "solve", "descent", "control", "methods", "fit"),
    "solve": ("target", "family", "estimate", "descent", "control", "methods", "fit"),
    "target": ("family", "estimate", "solve", "descent", "control", "methods", "fit"),
    "family": ("estimate", "solve", "descent", "control", "methods", "fit"),
    "estimate": ("solve", "descent", "control", "methods", "fit"),
    "descent": ("methods", "fit", "loop"),
    "control": ("methods", "fit", "loop"),
    "methods": ("fit", "loop", "certificate", "growing", "stepwise"),
}


@pytest.mark.parametrize("layer", ABOVE)
def test_layers_do_not_reach_up(layer):
    paths = [path for path in CORE if part_of(path) == layer]
    assert paths
    wrong = [
        f"{path.name}: {name}"
        for path in paths
        for name in imports_of(path)
        for above in ABOVE[layer]
        if within(name, f"curvi.{above}")
    ]
    assert not wrong


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_programs_print(path):
    calls = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not calls or part_of(path) in ("cli", "demo")


def test_core_imports_without_extras():
    # A module that is None in sys.modules fails to import, installed or not.
    names = [".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in CORE]
    names = [name.removesuffix(".__init__") for name in names]
    code = f"""
import sys
for extra in {EXTRAS}:
    sys.modules[extra] = None
import importlib
for name in {names}:
    importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and done.stderr == ""
