"""How right answers are, and at what cost: our fits, NUTS and other rivals on real posteriors with known answers.

Each run appends a line to benchmarks/results/posteriors.jsonl; docs/posteriors.md is made of those lines. Every method
has a process of its own on every problem and seed, in which it finds nothing compiled. Runs that have a line already
are left out: ours where the package has not changed since, rivals always.

    python benchmarks/posteriors.py [--problems ...] [--methods ...] [--seeds ...] [--budget SECONDS] [--force]
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "posteriors.jsonl"
OURS = ("default", "full_rank", "mean_field")
RIVALS = ("nuts", "pathfinder", "multipath", "auto_mvn", "gsm", "laplace")
METHODS = (*OURS, *RIVALS, "best")
NUTS = {"num_chains": 2, "num_warmup": 500, "num_draws": 500}
# Draws per chain up to which NUTS goes on, for what it takes to be as right as a fit.
MOST_DRAWS = 4_000
OUR_BUDGET = 300.0
# Seconds after which a process is ended that does not come back.
PATIENCE = 900.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="these only")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--budget", type=float, default=30.0, help="most seconds of a rival's run")
    parser.add_argument("--force", action="store_true", help="run what has a line already")
    parser.add_argument("--tables", action="store_true", help="run nothing, only make the page of the lines")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        return run_here(options)
    if not options.tables:
        run_all(options)
    if options.output == RESULTS:
        import posterior_tables

        posterior_tables.write()
    return None


def run_all(options) -> None:
    """One process after another."""
    import lines
    import peer_problems
    import peers
    import posterior_problems

    names = options.problems or list(posterior_problems.POSTERIORS)
    if unknown := sorted(set(names) - set(posterior_problems.POSTERIORS)):
        sys.exit(f"no problem named {', '.join(unknown)}; there are {', '.join(posterior_problems.POSTERIORS)}")
    source = peers.source_hash()
    done = {
        (line["problem"], line["command"], line["seed"])
        for line in lines.read(options.output)
        if line["command"] in RIVALS or line["curvi_source"] == source
    }
    # Seeds outside: a run that is ended has every problem once before any a second time.
    for seed in options.seeds:
        for name in names:
            for method in options.methods:
                # The best known ELBO is of a problem, not of a seed.
                if (method == "best" and seed != options.seeds[0]) or (
                    not options.force and (name, method, seed) in done
                ):
                    continue
                command = [sys.executable, __file__, "--here", "--problems", name, "--methods", method]
                command += ["--seeds", str(seed), "--budget", str(options.budget), "--output", str(options.output)]
                # Threads for XLA: with two, batched LAPACK calls can wait for each other for ever.
                lapack = name in peer_problems.LAPACK or method in ("pathfinder", "multipath")
                threads = {"NPROC": str(max(8, os.cpu_count() or 1))} if lapack else {}
                if method == "gsm":
                    # It factorises a small matrix at every step: threads of BLAS only wait for each other there.
                    threads["OPENBLAS_NUM_THREADS"] = "1"
                environment = {**threads, **os.environ}
                began = time.perf_counter()
                try:
                    failed = subprocess.run(command, env=environment, timeout=PATIENCE).returncode
                except subprocess.TimeoutExpired:
                    failed = True
                passed = f"{name}, {method}, seed {seed}: {time.perf_counter() - began:.0f} s"
                print(passed + (" FAILED" if failed else ""), flush=True)


def run_here(options) -> None:
    """One method on one problem with one seed, in this process."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import lines
    import peers
    import posterior_problems
    from posterior_references import reference

    (name,), (method,), (seed,) = options.problems, options.methods, options.seeds
    try:
        posterior = posterior_problems.POSTERIORS[name]()
    except posterior_problems.UnavailableError as reason:
        print(f"{name}: skipped, {reason}", flush=True)
        return
    known = reference(posterior)
    if not known:
        print(f"{name}: no reference; run benchmarks/posterior_references.py first", flush=True)
    for label, setting, record in _records(posterior, known, method, seed, options.budget):
        packages = {package: peers._version(package) for package in peers.PEERS}
        lines.append(
            options.output, name, label, setting, seed, command=method, kind=posterior.kind, **record,
            peers=packages, curvi_source=peers.source_hash(), num_cpus=os.cpu_count(), load=os.getloadavg()[0],
        )  # fmt: skip
        _show(name, label, record)


def _records(posterior, known, method, seed, budget):
    if method in OURS:
        import posterior_ours

        yield from posterior_ours.fits(posterior, known, method, seed, OUR_BUDGET)
    elif method == "best":
        import posterior_ours

        yield posterior_ours.best_full_rank(posterior, known, seed, 2 * budget)
    elif method == "nuts":
        yield "NumPyro NUTS", dict(NUTS), run_nuts(posterior, known, seed, budget)
    else:
        yield from run_rival(posterior, known, method, seed, budget)


def run_nuts(posterior, known, seed, budget) -> dict:
    """The run of 500 + 500 cold and warm, and the errors of its first draws and of those after it."""
    import posterior_clock as clock
    from posterior_errors import errors, moments
    from posterior_nuts import SEGMENT, Chains, cold_seconds, quality

    cold = cold_seconds(posterior, seed, NUTS["num_warmup"], NUTS["num_draws"], NUTS["num_chains"])
    chains = Chains(posterior, seed, NUTS["num_warmup"], NUTS["num_chains"])
    chains.warm_up()
    record, track, drawn = {}, [], 0
    while drawn < NUTS["num_draws"] or (drawn < MOST_DRAWS and chains.seconds.wall < budget):
        chains.advance(keep=True)
        drawn += SEGMENT
        # Points ever rarer: 50, 100, ... draws per chain, then about a tenth more each.
        if drawn > NUTS["num_draws"] and drawn < 1.1 * track[-1][0]:
            continue
        mean, sd = moments(chains.by_site())
        found = errors(known, mean, sd) or {}
        spent = [drawn, chains.leapfrogs, chains.seconds.wall, chains.seconds.cpu]
        track.append([*spent, found.get("rms_mean"), found.get("median_sd")])
        if drawn == NUTS["num_draws"]:
            rhat, ess = quality(chains.scalars())
            record = {
                "outcome": "done", "family": "draws", "elbo": None, "elbo_se": None, "errors": found or None,
                "calls": {"log_density": 0, "gradient": chains.leapfrogs, "hvp": 0}, "evaluations": chains.leapfrogs,
                **clock.fields(cold, chains.seconds), "rhat": max(rhat.values()),
                "smallest_ess": min(ess.values()), "divergences": chains.divergences, "num_latents": chains.size,
            }  # fmt: skip
    # Draws per chain; leapfrogs, seconds and processor seconds of both chains with their warm-up; rms error of means,
    # median error of sds.
    return {**record, "track": [[float(f"{x:.5g}") if x is not None else None for x in row] for row in track]}


def run_rival(posterior, known, method, seed, budget):
    """A line of the run; of several rates the one whose ELBO on fresh draws is best."""
    import numpy as np

    from peer_methods import Draws, Task
    from peer_problems import Flat, Problem
    from posterior_errors import Judge, errors, number
    from posterior_ours import number6
    from posterior_rivals import RATES, RIVALS

    target = posterior.target()
    flat = Flat(target)
    share = len(RATES) if method == "auto_mvn" else 1
    task = Task(Problem(posterior.name, target), flat, seed, budget / share, True)
    judge = Judge(flat)
    best = None
    for run in RIVALS[method](task):
        last = run.points[-1].approximation if run.points else None
        if last is None:
            elbo, found = (np.nan, np.nan), None
        elif isinstance(last, Draws):
            ratios = judge.values(last.z) - last.log_q
            elbo, found = (ratios.mean(), ratios.std() / len(ratios) ** 0.5), errors(known, *judge.draw_moments(last.z))
        else:
            elbo, found = judge.elbo(last), errors(known, *judge.moments(last))
        record = {
            "outcome": run.outcome, "family": "full rank" if elbo[0] == elbo[0] else "draws", "errors": found,
            "elbo": number6(elbo[0]), "elbo_se": number(elbo[1]), "chosen": run.setting.get("rate"),
            "calls": vars(run.calls), "evaluations": max(run.calls.log_density, run.calls.gradient) + 2 * run.calls.hvp,
            "cold_seconds": run.compile_seconds + run.run_seconds, "warm_seconds": run.run_seconds,
            "num_latents": flat.size,
        }  # fmt: skip
        setting = {key: value for key, value in run.setting.items() if key != "rate"} | {"budget": budget}
        if best is None or (elbo[0] if elbo[0] == elbo[0] else -np.inf) > best[0]:
            best = (elbo[0] if elbo[0] == elbo[0] else -np.inf), run.method, setting, record
    if best is not None:
        yield best[1:]


def _show(name, label, record) -> None:
    found = record["errors"] or {}
    numbers = [found.get(key) for key in ("rms_mean", "max_mean", "median_sd", "worst_sd_factor")]
    shown = "  ".join("-" if x is None else f"{x:.3f}" for x in numbers)
    seconds = f"{record['cold_seconds']:.1f} / {record.get('warm_seconds', 0.0):.2f} s"
    calls = record.get("evaluations", 0)
    print(f"  {name:22s} {label:34s} {shown}  {calls} calls  {seconds}  {record['outcome'][:50]}", flush=True)


if __name__ == "__main__":
    main()
