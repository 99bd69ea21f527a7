"""What the parts that stand apart for speed are worth: the same fits without them.

    python benchmarks/apart.py

- `NormalPath` against `DirectPath`: programs that know means and scales alone, or that differentiate through q.
- Frozen dataclasses against Equinox modules: microseconds to make one with ten fields.
- The host's loop against a compiled one: seconds to compile the two programs of the default, and the program of
  `HessianFree`, which takes the same kind of step inside a compiled loop.

Every figure is the median of repeats; fits run in processes of their own. Lines go to results/apart.jsonl.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "apart.jsonl"
PROBLEMS = ("gaussian_10", "breast_cancer", "eight_schools")
REPEATS = 5


def child(problem: str, variant: str) -> None:
    """One process: a cold and a warm fit; prints one JSON object."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import curvi
    from curvi.family.path import DirectPath
    from versions import make_target

    if variant == "direct path":
        curvi.MeanField.path = property(lambda q: DirectPath(q.num_params))  # type: ignore[method-assign]
    method = curvi.methods.HessianFree() if variant == "compiled loop" else None
    target = make_target(problem)
    fits = [curvi.fit(target, key=jax.random.key(0), method=method, progress=False) for _ in range(4)]
    warm = statistics.median(fit.seconds.run for fit in fits[1:])
    print(json.dumps({"compile": fits[0].seconds.compile, "warm": warm, "outcome": fits[0].outcome.name}))


def construction() -> dict[str, float]:
    """Microseconds to make an object with ten fields."""
    import dataclasses

    import equinox as eqx
    import numpy as np

    names = "abcdefghij"
    plain = dataclasses.make_dataclass("Plain", names, frozen=True)
    module = type("Module", (eqx.Module,), {"__annotations__": dict.fromkeys(names, object)})
    values, found = [np.zeros(3)] * 10, {}
    for kind, cls in (("dataclass", plain), ("module", module)):
        times = []
        for _ in range(200):
            began = time.perf_counter()
            cls(*values)
            times.append(time.perf_counter() - began)
        found[kind] = 1e6 * statistics.median(times)
    return found


def main() -> None:
    import lines

    lines.append(RESULTS, "ten fields", "construction", {}, 0, microseconds=construction())
    for problem in PROBLEMS:
        for variant in ("default", "direct path", "compiled loop"):
            runs = []
            for _ in range(REPEATS):
                command = [sys.executable, __file__, "--child", problem, variant]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                runs.append(json.loads(done.stdout.strip().splitlines()[-1]))
            medians = {key: statistics.median(run[key] for run in runs) for key in ("compile", "warm")}
            lines.append(RESULTS, problem, variant, {"repeats": REPEATS}, 0, outcome=runs[0]["outcome"], **medians)
            print(problem, variant, medians, runs[0]["outcome"], flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
