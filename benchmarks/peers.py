"""curvi against other libraries: how near to the best mean field, at what cost.

Each run appends a line to benchmarks/results/peers.jsonl; docs/peers.md and its picture are made of those lines.
Every method has a process of its own on every problem, in which it finds nothing compiled.

python benchmarks/peers.py [--short | --full] [--problems ...] [--methods ...] [--budget SECONDS] [--tables]
"""

import argparse
import hashlib
import importlib.metadata
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "peers.jsonl"
SHORT_BUDGET, FULL_BUDGET = 3.0, 40.0
SHORT_METHODS = ("curvi", "newton", "lbfgs", "blackjax", "numpyro", "pathfinder", "gsm", "pymc")
PEERS = ("blackjax", "gsmvi", "pymc", "numpyro")
FINAL_PAIRS, TRACK_PAIRS, CHUNK = 10_240, 1_024, 256
THRESHOLDS = (1.0, 0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--short", action="store_true", help="six problems in a few minutes (default)")
    size.add_argument("--full", action="store_true", help="all problems, longer budgets")
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="these only")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help=f"these only, of {', '.join(SHORT_METHODS)}")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="most seconds of one run, without compilation")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], metavar="SEED")
    parser.add_argument("--tables", action="store_true", help="run nothing, only make tables and picture of the lines")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.budget = options.budget or (FULL_BUDGET if options.full else SHORT_BUDGET)
    options.methods = tuple(options.methods or SHORT_METHODS)
    if options.here:
        for seed in options.seeds:
            run_problem(options.problems[0], options, seed)
        return
    if not options.tables:
        run_all(options)
    if options.output == RESULTS:
        import peer_tables

        peer_tables.write()


def run_all(options) -> None:
    """One process after another."""
    import peer_problems

    names = options.problems or (peer_problems.catalogue() if options.full else peer_problems.SHORT)
    if unknown := sorted(set(names) - set(peer_problems.catalogue())):
        sys.exit(f"no problem named {', '.join(unknown)}; there are {', '.join(peer_problems.catalogue())}")
    if unknown := sorted(set(options.methods) - set(SHORT_METHODS)):
        sys.exit(f"no method named {', '.join(unknown)}; there are {', '.join(SHORT_METHODS)}")
    for name in names:
        for seed in options.seeds:
            for method in options.methods:
                command = [sys.executable, __file__, "--here", "--problems", name, "--methods", method]
                command += ["--seeds", str(seed), "--budget", str(options.budget), "--output", str(options.output)]
                began = time.perf_counter()
                # Threads for XLA: with two, the peers' batched LAPACK calls can wait for each other for ever.
                threads = {"NPROC": str(max(8, os.cpu_count() or 1))} if name in peer_problems.LAPACK else {}
                environment = {**threads, **os.environ}
                done = subprocess.run(command + (["--full"] if options.full else []), env=environment)
                passed = f"{name}, {method}: {time.perf_counter() - began:.0f} s"
                print(passed + (" FAILED" if done.returncode else ""), flush=True)


def run_problem(name: str, options, seed: int) -> None:
    """One method on one problem, in this process."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import lines
    import peer_problems
    from peer_methods import Flat, Task, reference

    try:
        began = time.perf_counter()
        problem = peer_problems.catalogue()[name]()
    except peer_problems.UnavailableError as reason:
        print(f"{name}: skipped, {reason}", flush=True)
        return
    build_seconds = time.perf_counter() - began
    flat = Flat(problem.target)
    task = Task(problem, flat, seed, options.budget, options.full)
    runs = _runs(task, options.methods[0])
    bare = bare_compile_seconds(flat)
    judge = Judge(problem, flat, reference(task))

    def write(run):
        measured = judge(run)
        peers = {package: _version(package) for package in PEERS}
        setting = run.setting if run.method == "curvi" else {**run.setting, "budget": options.budget}
        lines.append(
            options.output, problem.name, run.method, setting, seed, num_latents=flat.size, family=run.family,
            compile_seconds=run.compile_seconds, run_seconds=run.run_seconds, build_seconds=build_seconds,
            calls=vars(run.calls), outcome=run.outcome, **measured, peers=peers, curvi_source=source_hash(),
            bare_compile_seconds=bare, num_cpus=os.cpu_count(), load=os.getloadavg()[0],
        )  # fmt: skip
        gap, hit = measured["gap"], measured["seconds_to"]["0.1"]
        shown = "no number" if gap is None else f"{gap:9.4f}"
        print(
            f"  {problem.name:16s} {run.method:26s} {run.setting!s:36s} gap {shown}  {run.compile_seconds:6.2f} + "
            f"{run.run_seconds:7.3f} s  0.1 nat at {'never' if hit is None else f'{hit:.3f}'}  {run.outcome[:40]}",
            flush=True,
        )

    for run in runs:
        write(run)


def _runs(task, method: str) -> list:
    """The runs of a method, one a setting; none, with a word, where it cannot run."""
    from peer_methods import METHODS, curvi_default

    name, found = task.problem.name, []
    try:
        for run in (curvi_default if method == "curvi" else METHODS[method])(task):
            found.append(run)
        if not found:
            print(f"  {name:16s} {method}: skipped, no version of this problem for it", flush=True)
    except ImportError as error:
        print(f"  {name:16s} {method}: skipped, {error}", flush=True)
    except Exception as error:
        print(f"  {name:16s} {method}: failed, {type(error).__name__}: {error}", flush=True)
    return found


def bare_compile_seconds(flat) -> float:
    """What JAX needs to trace and compile one value-and-gradient and one Hessian-vector product of the log density."""
    import jax
    import jax.numpy as jnp

    z = jnp.zeros(flat.size)
    began = time.perf_counter()
    jax.jit(lambda data, z: jax.value_and_grad(lambda x: flat(data, x))(z)).lower(flat.data, z).compile()
    product = lambda data, z, v: jax.jvp(jax.grad(lambda x: flat(data, x)), (z,), (v,))[1]  # noqa: E731
    jax.jit(product).lower(flat.data, z, z).compile()
    return time.perf_counter() - began


def source_hash() -> str:
    """Tells states of the package apart that share a version number."""
    import curvi

    digest = hashlib.sha256()
    for path in sorted(Path(curvi.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


class Judge:
    """ELBOs of all approximations of a problem on the same mirrored pairs of fresh draws, outside every clock."""

    def __init__(self, problem, flat, best):
        import jax
        import jax.numpy as jnp

        from peer_methods import Draws, Gaussian

        self.problem, self.flat = problem, flat
        self._draws, self._gaussian = Draws, Gaussian
        size = flat.size

        def ratios(data, mean, scale, log_det, index, key):
            noise = jax.random.normal(jax.random.fold_in(key, index), (CHUNK, size))

            def one(e):
                step = scale @ e if scale.ndim == 2 else scale * e
                entropy_part = 0.5 * (e @ e) + 0.5 * size * jnp.log(2 * jnp.pi) + log_det
                return (flat(data, mean + step) + flat(data, mean - step)) / 2 + entropy_part

            return jax.lax.map(one, noise, batch_size=32)

        def chunks(data, mean, scale, log_det, num_chunks, key):
            out = jnp.zeros((FINAL_PAIRS // CHUNK, CHUNK))
            body = lambda i, o: o.at[i].set(ratios(data, mean, scale, log_det, i, key))  # noqa: E731
            return jax.lax.fori_loop(0, num_chunks, body, out).reshape(-1)

        self._chunks = jax.jit(chunks)
        self._key = jax.random.key(20_261)
        self._outputs = jax.jit(lambda data, z: jax.lax.map(lambda x: flat.outputs(data, x), z, batch_size=256))
        self._values = jax.jit(lambda data, z: jax.lax.map(lambda x: flat(data, x), z, batch_size=256))
        self.best = self.ratios(best, FINAL_PAIRS)

    def ratios(self, approximation, pairs: int):
        """ln p - ln q, averaged over mirrored pairs; independent draws where the approximation is known by its own."""
        import numpy as np

        if isinstance(approximation, self._draws):
            return np.asarray(self._values(self.flat.data, approximation.z)) - approximation.log_q
        if isinstance(approximation, self._gaussian):
            scale = approximation.cholesky
            log_det = np.log(np.diag(scale)).sum()
        else:
            scale, log_det = np.exp(approximation.log_sd), approximation.log_sd.sum()
        mean = np.asarray(approximation.mean, float)
        return np.asarray(self._chunks(self.flat.data, mean, scale, log_det, pairs // CHUNK, self._key))[:pairs]

    def __call__(self, run) -> dict:
        """ELBO, gap and errors of the end of a run, and the gap at all its points."""
        import numpy as np

        last = run.points[-1].approximation
        values = self.ratios(last, FINAL_PAIRS)
        paired = self.best - values if len(values) == len(self.best) else self.best.mean() - values
        track, stops = [], []
        for point in run.points[:-1]:
            gaps = self.best[:TRACK_PAIRS] - self.ratios(point.approximation, TRACK_PAIRS)
            gap = float(np.mean(gaps))
            track.append([point.seconds, point.calls.passes, _number(gap)])
            if point.said is not None:
                error = float(np.std(gaps, ddof=1) / len(gaps) ** 0.5)
                stops.append([_number(gap), _number(error), *(_number(number) for number in point.said)])
        track.append([run.points[-1].seconds, run.points[-1].calls.passes, _number(paired.mean())])
        return {
            "elbo": _number(values.mean()),
            "elbo_se": _number(values.std(ddof=1) / len(values) ** 0.5),
            "gap": _number(paired.mean()),
            "gap_se": _number(paired.std(ddof=1) / len(paired) ** 0.5),
            "reference_elbo": _number(self.best.mean()),
            "num_draws_elbo": 2 * FINAL_PAIRS,
            "track": track,
            # A fit stopped after each of its steps: true gap, its error, remaining gain as reported, its error.
            "stops": stops,
            "said": None if run.points[-1].said is None else [_number(number) for number in run.points[-1].said],
            "seconds_to": {str(t): first_hit(track, t, 0) for t in THRESHOLDS},
            "calls_to": {str(t): first_hit(track, t, 1) for t in THRESHOLDS},
            "reference_errors": self.errors(run),
        }

    def errors(self, run) -> dict | None:
        """Errors of means in posterior sds and ratios of sds, against the reference draws."""
        import numpy as np

        from peer_problems import pick

        if self.problem.reference is None:
            return None
        last = run.points[-1].approximation
        if isinstance(last, self._draws):
            z = last.z[:4096]
        else:
            noise = np.random.default_rng(5).standard_normal((2048, self.flat.size))
            noise = np.concatenate([noise, -noise])
            step = noise @ last.cholesky.T if isinstance(last, self._gaussian) else noise * np.exp(last.log_sd)
            z = last.mean + step
        draws = {k: np.asarray(v) for k, v in self._outputs(self.flat.data, z).items()}
        response = None
        if run.fit is not None:
            try:
                response = run.fit.sd("linear_response")
            except ValueError:
                response = None
        off, ratio, corrected = [], [], []
        for name, known in self.problem.reference.items():
            if (values := pick(draws, name, 1)) is None:
                continue
            off.append(abs(values.mean() - known["mean"]) / known["sd"])
            ratio.append(values.std() / known["sd"])
            if response is not None and (sd := pick(response, name)) is not None:
                corrected.append(float(sd) / known["sd"])
        found: dict[str, Any] = {"num_compared": len(off), "num_known": len(self.problem.reference)}
        for label, numbers in (("mean_error", off), ("sd_ratio", ratio), ("linear_response_sd_ratio", corrected)):
            if numbers:
                finite = np.asarray(numbers, float)
                found[label] = {
                    "median": _number(np.median(finite)), "min": _number(finite.min()), "max": _number(finite.max()),
                }  # fmt: skip
        return found


def first_hit(track, threshold: float, column: int):
    """Seconds (0) or calls (1) at the first point from which on the gap stays below the threshold; None if none."""
    found = None
    for point in track:
        if point[2] is None or point[2] > threshold:
            found = None
        elif found is None:
            found = point[column]
    return found


def _number(value) -> float | None:
    import math

    return float(value) if math.isfinite(value) else None


if __name__ == "__main__":
    main()
