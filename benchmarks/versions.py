"""Two versions of curvi side by side: seconds to within 0.1 nat of the best mean field, cold and warm.

    python benchmarks/versions.py OLD_SRC NEW_SRC [--repeats 9] [--problems NAME ...]

Every run is a process of its own, old and new in turns, so that what else the machine does meets both alike. Cold is
the first fit of a process, compilation included; warm is the median of nine further ones with another key. Lines go to
results/versions.jsonl.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "versions.jsonl"
POSTERIORS = HERE.parent.parent / "shared" / "posteriordb"
POSTERIOR_NAMES = {
    "eight_schools": "eight_schools-eight_schools_noncentered",
    "kidiq": "kidiq-kidscore_interaction",
    "radon": "radon_mn-radon_hierarchical_intercept_noncentered",
    "garch": "garch-garch11",
}
PROBLEMS = ("gaussian_10", "gaussian_100", "breast_cancer", *POSTERIOR_NAMES)


def make_target(name: str):
    """The target of a problem, by the parts of the package that all versions have."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import curvi

    if name.startswith("gaussian"):
        size = int(name.split("_")[1])
        rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(size, size)))[0]
        precision = rotation @ np.diag(np.geomspace(1, 100, size)) @ rotation.T
        return curvi.Target(lambda t: -0.5 * t["x"] @ precision @ t["x"] + t["x"].sum(), {"x": jnp.zeros(size)})
    if name == "breast_cancer":
        from sklearn.datasets import load_breast_cancer

        x, y = map(np.asarray, load_breast_cancer(return_X_y=True))
        design = jnp.asarray(np.column_stack([np.ones(len(y)), (x - x.mean(0)) / x.std(0)]))
        sign = jnp.asarray(2.0 * y - 1)
        log_density = lambda t: -0.5 * jnp.sum(t["b"] ** 2) + jnp.sum(jax.nn.log_sigmoid(sign * (design @ t["b"])))  # noqa: E731
        return curvi.Target(log_density, {"b": jnp.zeros(31)})
    sys.path.insert(0, str(POSTERIORS))
    models = importlib.import_module("models")

    folder = POSTERIORS / "open" / POSTERIOR_NAMES[name]
    model, arguments = models.MODELS[folder.name]
    return curvi.from_numpyro(model, **arguments(json.loads((folder / "data.json").read_text())))


def child(name: str) -> None:
    """One process: a cold fit, then warm ones; prints one JSON object."""
    import jax
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    import curvi

    target = make_target(name)
    times = _clock_of_steps()

    def timed(key: int):
        times.clear()
        began = time.perf_counter()
        fit = curvi.fit(target, key=jax.random.key(key), progress=False)
        return fit, time.perf_counter() - began, [at - began for at in times]

    cold, cold_seconds, cold_steps = timed(0)
    warm = [timed(1) for _ in range(9)]
    best = max(_elbo(fit, np) for fit in (cold, warm[0][0]))
    step = {key: _first_within(target, key, fit, best) for key, fit in ((0, cold), (1, warm[0][0]))}
    found = {
        "cold": cold_steps[step[0]],
        "cold_whole": cold_seconds,
        "warm": statistics.median(steps[step[1]] for _, _, steps in warm),
        "warm_whole": statistics.median(seconds for _, seconds, _ in warm),
        "calls": cold.counts.log_density,
        "outcome": cold.outcome.name,
    }
    print(json.dumps(found))


def _clock_of_steps() -> list[float]:
    """The wall time after each step of the next fit, by the display that shows nothing: every version tells it."""
    try:
        from curvi.record.progress import Silent
    except ImportError:
        from curvi.progress import Silent  # type: ignore[import-not-found]
    times: list[float] = []
    for name in ("show", "note"):
        setattr(Silent, name, lambda *_, **__: times.append(time.perf_counter()))
    return times


def _elbo(fit, np) -> float:
    import jax

    return float(np.mean(np.asarray(fit.log_ratios(jax.random.key(99), 16_384), float)))


def _first_within(target, key: int, fit, best: float) -> int:
    """The index of the first step that ends within 0.1 nat of the best; the same key gives the same path."""
    import jax
    import numpy as np

    import curvi

    low, high = 0, len(fit.history) - 1
    while low < high:
        middle = (low + high) // 2
        early = curvi.fit(target, key=jax.random.key(key), progress=False, num_steps=middle + 1)
        low, high = (low, middle) if best - _elbo(early, np) < 0.1 else (middle + 1, high)
    return low


def compilations(name: str, tree: str) -> int:
    """Programs that a first fit compiles, by JAX's own log."""
    code = (
        "import sys, jax, logging; sys.path.insert(0, sys.argv[1]); jax.config.update('jax_enable_x64', True);"
        "import curvi, versions; target = versions.make_target(sys.argv[2]); names = [];"
        "handler = logging.Handler(); handler.emit = lambda r: names.append(r.getMessage());"
        "logging.getLogger('jax').addHandler(handler); jax.config.update('jax_log_compiles', True);"
        "curvi.fit(target, key=jax.random.key(0), progress=False);"
        "print(sum(n.startswith('Compiling ') for n in names))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(HERE), name], capture_output=True, text=True, env=_env(tree))
    return int(done.stdout.strip().splitlines()[-1])


def _env(tree: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": tree, "OMP_NUM_THREADS": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", help="the src folders of the old and the new version")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(given.child)
    import lines

    versions: dict[str, str] = dict(zip(("old", "new"), given.trees, strict=True))
    for name in given.problems:
        if name in POSTERIOR_NAMES and not POSTERIORS.exists():
            print(f"{name}: skipped, {POSTERIORS} is not there")
            continue
        runs: dict[str, list[dict]] = {version: [] for version in versions}
        for _ in range(given.repeats):
            for version, tree in versions.items():
                command = [sys.executable, __file__, "--child", name]
                done = subprocess.run(command, capture_output=True, text=True, env=_env(tree), check=True)
                runs[version].append(json.loads(done.stdout.strip().splitlines()[-1]))
        line: dict = {}
        for version, found in runs.items():
            medians = {key: statistics.median(run[key] for run in found) for key in found[0] if key != "outcome"}
            line[version] = {**medians, "outcome": found[0]["outcome"]}
            line[version]["compilations"] = compilations(name, versions[version])
        keys = ("cold", "warm", "cold_whole", "warm_whole")
        line["ratio"] = {key: line["new"][key] / line["old"][key] for key in keys}
        lines.append(RESULTS, name, "versions", {"repeats": given.repeats}, 0, **line)
        print(json.dumps({"problem": name, **line}), flush=True)
    return None


if __name__ == "__main__":
    main()
