"""What a persistent compilation cache saves: cold fits without, while filling it, and with it filled.

    python benchmarks/compile_cache.py

Every fit runs in a process of its own, the three kinds in turn, so that what else the machine does meets all alike.
Seconds are those of `curvi.fit` alone, after imports; `hits` are programs that came from the cache. Lines go to
results/compile_cache.jsonl.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "compile_cache.jsonl"
CASES = (("breast_cancer", "mean_field"), ("breast_cancer", "full_rank"), ("radon", "mean_field"))
REPEATS = 3


def child(name: str, family: str, folder: str) -> None:
    """One cold fit; prints one JSON object."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from curvi.cli.common import use_cache

    use_cache(Path(folder) if folder else None)
    import curvi
    import peer_problems

    target = peer_problems.catalogue()[name]().target
    seen = []
    jax.monitoring.register_event_listener(lambda event, **_: seen.append(event.rpartition("/")[2]))
    began = time.perf_counter()
    fit = curvi.fit(target, key=jax.random.key(0), family=family, progress=False)
    print(
        json.dumps(
            {
                "seconds": time.perf_counter() - began,
                "compile": fit.seconds.compile,
                "hits": seen.count("cache_hits"),
                "misses": seen.count("cache_misses"),
                "elbo": fit.elbo,
            }
        )
    )


def run(name: str, family: str, folder: str) -> dict:
    command = [sys.executable, __file__, "--child", name, family, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    import lines

    for name, family in CASES:
        runs = {"none": [], "filled now": [], "filled": []}
        for _ in range(REPEATS):
            with tempfile.TemporaryDirectory() as folder:
                runs["none"].append(run(name, family, ""))
                runs["filled now"].append(run(name, family, folder))
                runs["filled"].append(run(name, family, folder))
        # The cache changes when programs are compiled, not what they compute.
        assert len({one["elbo"] for rows in runs.values() for one in rows}) == 1
        for kind, rows in runs.items():
            medians = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
            lines.append(RESULTS, name, f"cache: {kind}", {"family": family, "repeats": REPEATS}, 0, **medians)
            print(name, family, kind, medians, flush=True)


if __name__ == "__main__":
    child(*sys.argv[2:]) if sys.argv[1:2] == ["--child"] else main()
