"""What may import what: the order of the layers, the edges, and what the package knows of q."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import curvi

ROOT = Path(curvi.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
# From the bottom up: a part imports from itself and from parts before it, nothing else.
LAYERS = (
    "outcome",
    "moved",
    "model",
    "record",
    "curvature",
    "solve",
    "family",
    "factors",
    "estimate",
    "descent",
    "control",
    "certify",
    "methods",
    "run",
    "diagnostics",
    "report",
    "storage",
    "mcmc",
    "results",
    "loading",
    "comparison",
    "fit",
    "many",
    "calibration",
    "check",
    "adapters",
    "pymc",
    "bambi",
    "numpyro",
    "__init__",
    "cli",
)
LANGUAGES = ("numpyro", "pymc", "pyro", "blackjax", "tensorflow_probability", "cmdstanpy", "stan")
OPTIONAL = ("matplotlib", "sklearn", "arviz", "arviz_base", "xarray", "pandas", "pymc", "pytensor", "stan", "pyarrow")
OPTIONAL += ("IPython", "httpstan", "blackjax", "bambi")
# Part of the installation, but slow to import: only what is shown needs them.
LATE = ("rich",)


def part_of(path: Path) -> str:
    """The first component of a module under the package: a subpackage, or a module of its own."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(tree: ast.AST) -> list[str]:
    """Full names of everything that is imported, wherever in a tree; what is for type checkers alone is left out."""
    names = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import hides where it leads"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        names += imports_of(node)
    return names


def late_imports_of(path: Path) -> list[str]:
    """What a file imports when a function of it is called, not when it is itself imported."""
    functions = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [name for function in functions for name in imports_of(function)]


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def own_part(name: str) -> str | None:
    """The part of curvi that an imported name belongs to; None for other packages."""
    if not within(name, "curvi"):
        return None
    pieces = name.split(".")
    return pieces[1] if len(pieces) > 1 and pieces[1] in LAYERS else "__init__"


def test_every_part_has_its_layer():
    assert {part_of(path) for path in MODULES} == set(LAYERS)


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_lead_downwards(path):
    own = LAYERS.index(part_of(path))
    wrong = [name for name in imports_of(tree_of(path)) if (part := own_part(name)) and LAYERS.index(part) > own]
    assert not wrong, f"{relative(path)} stands below what it imports: {wrong}"


def test_no_module_imports_itself_in_a_circle():
    """Within a part, too: the graph of modules has no cycle."""
    names = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__") for path in MODULES
    }

    def module_of(name: str) -> str | None:
        while name and name not in names:
            name = name.rpartition(".")[0]
        return name or None

    graph = {}
    for path in MODULES:
        name = module_name(path)
        found = {module_of(one) for one in imports_of(tree_of(path)) if within(one, "curvi")}
        # A package that shows its own modules is no cycle: they do not import the package.
        graph[name] = found - {name, None}
    done, open_ = set(), []

    def visit(name):
        assert name not in open_, f"a circle: {' -> '.join([*open_[open_.index(name) :], name])}"
        if name not in done:
            open_.append(name)
            for other in sorted(graph[name]):
                visit(other)
            open_.pop()
            done.add(name)

    for name in sorted(graph):
        visit(name)


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_only_optional_packages_are_imported_late(path):
    wrong = [name for name in late_imports_of(path) if name.split(".")[0] not in (*OPTIONAL, *LATE)]
    assert not wrong


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_optional_packages_are_imported_late_only(path):
    late, tree = late_imports_of(path), tree_of(path)
    found = [name for name in imports_of(tree) if name.split(".")[0] in OPTIONAL and name not in late]
    assert not found


@pytest.mark.parametrize("path", [p for p in MODULES if part_of(p) not in ("adapters", "cli")], ids=relative)
def test_the_core_knows_no_modelling_language(path):
    # Distributions and constraints of numpyro are mathematics; its handlers and primitives are a language.
    found = [name for name in imports_of(tree_of(path)) for language in LANGUAGES if within(name, language)]
    assert not [name for name in found if not within(name, "numpyro.distributions")]


# -- what is known of q -----------------------------------------------------------------------------------------------

MEAN_FIELD_ONLY = {
    "a stride through means and scales": r"\[[^\]]*[01]::2\s*[,\]]",
    "the layout of a mean field": r"\bq\.layout|\.layout\b",
    "a test for a mean field": r"isinstance\([^)]*MeanField",
}


def code_of(path: Path) -> str:
    """The source without strings and comments."""
    tree = tree_of(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.unparse(tree)


@pytest.mark.parametrize("path", [p for p in MODULES if part_of(p) not in ("family", "adapters")], ids=relative)
@pytest.mark.parametrize("what", MEAN_FIELD_ONLY)
def test_q_is_known_by_its_protocol_alone(path, what):
    assert not re.findall(MEAN_FIELD_ONLY[what], code_of(path))


def test_the_patterns_find_what_they_look_for():
    wrong = {
        "a stride through means and scales": "mean = params[0::2]",
        "the layout of a mean field": "q.layout.factors",
        "a test for a mean field": "isinstance(q, MeanField)",
    }
    for what, code in wrong.items():
        assert re.findall(MEAN_FIELD_ONLY[what], code)


# -- size -------------------------------------------------------------------------------------------------------------


def test_the_root_holds_few_modules():
    assert len(list(ROOT.glob("*.py"))) <= 11


def test_files_are_short():
    sizes = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert not {name: size for name, size in sizes.items() if size > 300}
    assert len([size for size in sizes.values() if size > 250]) <= 12


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_only_programs_print(path):
    calls = [
        node.lineno
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not calls or part_of(path) == "cli"


def test_the_core_imports_without_extras():
    # A module that is None in sys.modules fails to import, installed or not.
    core = [path for path in MODULES if part_of(path) not in ("adapters", "cli")]
    names = [module_name(path) for path in core]
    code = f"""
import sys
for extra in {OPTIONAL}:
    sys.modules[extra] = None
import importlib
for name in {names}:
    importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and done.stderr == ""
