"""Fits that are killed at any moment, and go on from their checkpoint: are the bits those of the fit that was not?

    python benchmarks/kills.py                               # 100 kills at random moments, 30 while a file is written
    python benchmarks/kills.py --random 2 --injected 1       # a few
    python benchmarks/kills.py --only "growing rows"

Every fit writes a checkpoint after each advance, so that many kills fall into a write. Injected kills are by the
process itself: while it writes a new file, between that and its flush to the disk, and between the flush and the
rename. A fit that is killed before its first checkpoint begins anew. The processes are forked before JAX starts, and
share compiled programs through its cache.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import curvi
from curvi.estimate import AnchoredScore
from curvi.methods import GrowingRows, PooledRegression, SchemeI, StreamedNewton

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "kills.jsonl"
WHERE = {"while it writes": (zipfile.ZipFile, "writestr", 20), "before the flush": (os, "fsync", 1),
         "before the rename": (os, "replace", 1)}  # fmt: skip


# -- what is fitted ---------------------------------------------------------------------------------------------------


def bent():
    def log_density(t):
        x = t["x"]
        tied = jnp.sum((x - jnp.roll(x, 1)) ** 2)
        return -0.5 * jnp.sum(jnp.exp(0.3 * x) ** 2) - 0.5 * tied - jnp.sum(x**4) / 50

    return curvi.Target(log_density, {"x": jnp.full(6, 3.0)})


def chain():
    def log_density(t):
        x = t["x"]
        return -jnp.sum(jnp.cosh(x)) - 2 * jnp.sum(jnp.diff(x) ** 2) + jnp.sum(x)

    return curvi.Target(log_density, {"x": jnp.full(300, 2.0)})


def rows(folder: Path):
    """Logistic regression on Parquet files."""
    import pyarrow
    from pyarrow import parquet

    path = folder / "rows.parquet"
    if not path.exists():
        rng = np.random.default_rng(0)
        x = rng.standard_normal((20_000, 2))
        y = rng.random(20_000) < 1 / (1 + np.exp(-x @ [1.0, -0.5]))
        table = pyarrow.table({"a": x[:, 0], "b": x[:, 1], "y": y.astype(float)})
        parquet.write_table(table, path, row_group_size=1000)

    def log_row(t, row):
        logit = t["w"][0] * row["a"] + t["w"][1] * row["b"]
        return row["y"] * logit - jax.nn.softplus(logit)

    data = curvi.Rows(path, chunk_rows=500)
    return curvi.MinibatchTarget(lambda t: -jnp.sum(t["w"] ** 2), log_row, data, 500, {"w": jnp.zeros(2)})


def values():
    """A black box of three latents."""
    return curvi.Target(
        lambda t: -jnp.sum(jnp.cosh(t["x"] - 1)) - t["x"][0] * t["x"][1] / 2, {"x": jnp.zeros(3)}, order=0
    )


# Methods are made where they are used: in processes that have begun with JAX.
CASES: dict[str, tuple[Callable, Callable[[], dict]]] = {
    "growing draws, chosen family": (bent, lambda: {"tolerance": 1e-4}),
    "growing draws, mean field": (bent, lambda: {"family": "mean_field", "tolerance": 1e-4}),
    "growing draws, full rank": (bent, lambda: {"family": "full_rank", "tolerance": 1e-4}),
    "streamed Newton": (chain, lambda: {"method": StreamedNewton(first_draws=64), "tolerance": 0.01}),
    "growing rows": (rows, lambda: {"method": GrowingRows(sample_rows=400), "tolerance": 0.001}),
    "stepwise": (values, lambda: {"method": SchemeI(estimator=AnchoredScore(256)), "tolerance": 0.01}),
    "pooled regression": (values, lambda: {"method": PooledRegression(), "tolerance": 1e-3}),
}


def run(name: str, path: Path, folder: Path, result: Path | None = None) -> None:
    """A fit from its file where there is one, and what it ended with in another file."""
    make, options = CASES[name]
    target, options = (make(folder) if make is rows else make()), options()
    taken = len(curvi.load(path, target).history) if path.exists() else 0
    if path.exists():
        options = {"tolerance": options["tolerance"]}
    found = curvi.fit(target, key=jax.random.key(1), start=path, checkpoint=path, checkpoint_seconds=0, progress=False,
                      **options)  # fmt: skip
    if result is not None:
        bits = np.asarray(found.q.params).tobytes().hex()
        said = {
            "begun": taken,
            "params": bits,
            "steps": len(found.history),
            "outcome": found.outcome.name,
            "elbo": float.hex(found.elbo),
        }
        result.write_text(json.dumps(said))


# -- processes --------------------------------------------------------------------------------------------------------


def forked(work: Callable[[], None], after: float | None = None) -> int:
    """The exit status of a process that does this, killed after some seconds where it has not ended by then."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)  # one that has ended waits to be collected: the number is still its own
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fatal(where: str, count: int) -> None:
    """Make this process kill itself in that call of a file being written."""
    owner, name, _ = WHERE[where]
    real, calls = getattr(owner, name), [0]

    def call(*arguments, **options):
        calls[0] += 1
        if calls[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)

    setattr(owner, name, call)


def whole(name: str, folder: Path) -> tuple[dict, float]:
    """What the fit ends with that is not killed, and its seconds once programs are compiled."""
    result, seconds = folder / "whole.json", 0.0
    for attempt in range(2):
        began = time.perf_counter()
        path = folder / f"{name}-{attempt}.curvi"
        if forked(lambda path=path: run(name, path, folder, result)) != 0:
            raise SystemExit(f"the fit of '{name}' failed")
        seconds = time.perf_counter() - began
    found = json.loads(result.read_text())
    assert found.pop("begun") == 0
    return found, seconds


def killed(name: str, where: str, rng, seconds: float, folder: Path, number: int) -> tuple[dict, int]:
    """What a fit ends with that was killed once, and the number of steps in its file at that moment."""
    result = folder / "killed.json"
    for attempt in range(100):
        path = folder / f"{name}-{where}-{number}-{attempt}.curvi"
        if where in WHERE:
            count = int(rng.integers(1, 1 + 6 * WHERE[where][2]))

            def work(path=path, count=count):
                fatal(where, count)
                run(name, path, folder)

            status = forked(work)
        else:
            status = forked(lambda path=path: run(name, path, folder), rng.uniform(0, seconds))
        if status == -signal.SIGKILL:
            if forked(lambda path=path: run(name, path, folder, result)) != 0:
                return {"outcome": "raised"}, -1
            found = json.loads(result.read_text())
            return found, found.pop("begun")
        if status != 0:
            return {"outcome": "raised"}, -1
    raise SystemExit(f"'{name}' always ends before it is killed")


def kills(num_random: int, num_injected: int, names: list[str], folder: Path, seed: int = 0) -> list[dict]:
    """One record per fit and kind of kill."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_compilation_cache_dir", str(folder / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    rng, records = np.random.default_rng(seed), {}
    kinds = ["at random"] * num_random + [list(WHERE)[i % len(WHERE)] for i in range(num_injected)]
    plan: dict[str, list[str]] = {name: [] for name in names}
    for number, kind in enumerate(kinds):
        plan[names[number % len(names)]].append(kind)
    for name in names:
        if not plan[name]:
            continue
        expected, seconds = whole(name, folder)
        for number, kind in enumerate(plan[name]):
            found, steps = killed(name, kind, rng, seconds, folder, number)
            record = records.setdefault(
                (name, kind), {"problem": name, "kind": kind, "kills": 0, "same": 0, "steps": []}
            )
            record["kills"] += 1
            record["same"] += found == expected
            record["steps"].append(steps)
            record |= {"of_steps": expected["steps"], "outcome": expected["outcome"]}
            if found != expected:
                record.setdefault("other", []).append(found)
        print(name, f"{seconds:.2f} s", [r for (n, _), r in records.items() if n == name], file=sys.stderr, flush=True)
    return list(records.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=100)
    parser.add_argument("--injected", type=int, default=30)
    parser.add_argument("--only", action="append", choices=list(CASES))
    parser.add_argument("--json", action="store_true", help="print the records, write no lines")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        records = kills(options.random, options.injected, options.only or list(CASES), Path(folder))
    if options.json:
        print(json.dumps(records))
        return
    import lines

    for record in records:
        measured = {key: value for key, value in record.items() if key not in ("problem", "kind")}
        lines.append(RESULTS, record["problem"], record["kind"], {}, 0, **measured)
    print(sum(r["kills"] for r in records), "kills,", sum(r["same"] for r in records), "with the same bits")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
