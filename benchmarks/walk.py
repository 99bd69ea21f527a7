"""The walk of a default fit: which files it passes through, in order, and which functions it calls there.

    python benchmarks/walk.py            prints the table that stands in docs/design.md

A warm fit of a small target is followed by Python's profiler, so that what is only traced into programs is left out,
from the moment that the run begins: before it, `fit.py` has checked its input and `methods/defaults.py` chosen the
method. Left out is what only holds or describes: `record/`, `model/`, `family/`, states, the interface of methods, the
table of families with its rule and predictions, and the layout of programs and matrices.
"""

import sys
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402

import curvi  # noqa: E402

ROOT = Path(curvi.__file__).parent
_SHOWN = 4  # functions a file
_HOLDS = (
    "record/",
    "model/",
    "family/",
    "methods/base.py",
    "methods/problem.py",
    "methods/growing_draws/state.py",
    "fit.py",
    "results.py",
)
_HOLDS += ("methods/rung.py", "methods/rungs.py", "methods/choice.py", "methods/family_rows.py", "certify/predicted")
_HOLDS += ("estimate/fixed_draws/structure.py", "estimate/fixed_draws/groups.py", "curvature/blocks.py")


def walk() -> dict[str, list[str]]:
    """Public functions in the order in which they were first called, by file, in the order of the first call."""
    data = jnp.linspace(-1.0, 2.0, 30)

    def log_density(theta):
        return -0.5 * theta["m"] ** 2 - theta["s"] - 0.5 * jnp.sum(((data - theta["m"]) * jnp.exp(-theta["s"])) ** 2)

    target = curvi.Target(log_density, {"m": 0.0, "s": 0.0})
    fit = lambda: curvi.fit(target, key=jax.random.key(0), progress=False)  # noqa: E731
    fit()  # compiles
    found: dict[str, list[str]] = {}
    began: list[str] = []

    def follow(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event != "call" or not path.is_relative_to(ROOT):
            return
        file = str(path.relative_to(ROOT))
        began.append(file) if file == "run.py" else None
        if began and not file.startswith(_HOLDS):
            name = frame.f_code.co_qualname.replace(".<locals>", "").replace(".__call__", "").replace(".__init__", "")
            calls = found.setdefault(file, [])
            if name not in calls and "<" not in name and not name.rsplit(".", 1)[-1].startswith("_"):
                calls.append(name)

    sys.setprofile(follow)
    try:
        fit()
    finally:
        sys.setprofile(None)
    return found


def main() -> None:
    found = walk()
    print("| file | what is called there first |\n|---|---|")
    for file, calls in found.items():
        more = ", ..." if len(calls) > _SHOWN else ""
        print(f"| `{file}` | {', '.join(f'`{name}`' for name in calls[:_SHOWN])}{more} |")
    print(f"\n{len(found)} files.")


if __name__ == "__main__":
    main()
