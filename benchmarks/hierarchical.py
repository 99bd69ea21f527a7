"""Fits of hierarchical models on real data: the family they choose, what they cost, and how right coefficients and
scales are.

    python benchmarks/hierarchical.py [--problems ...] [--methods ...] [--seeds ...] [--tables]

Every method has a process of its own on every problem and seed, in which it finds nothing compiled. Runs that have a
line of the same package already are left out. Lines go to results/hierarchical.jsonl; the tables of docs/families.md
are made of those lines, and of the references (`hierarchical_references.py`).

- `default`: what `curvi.fit` does; `as_written` the same with `centering="off"`, `normal` with `marginals="normal"`.
- `polished`: NUTS from the default's q.
- a family by name: with `centering="off"`, so that gains can be held against those that `as_written` predicts; where
  the problem has at most 60 latents its ELBO is held against a long climb by L-BFGS on many draws, too.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "hierarchical.jsonl"
FAMILIES = ("mean_field", "bordered", "banded", "low_rank", "full_rank")
METHODS = ("default", "as_written", "normal", "polished", *FAMILIES)
MAX_SECONDS, PATIENCE = 300.0, 1_200.0
MOST_REFINED = 60
_WARM_BELOW = 60.0  # seconds of the first fit, up to which a second one is timed


def main() -> None:
    import hierarchical_problems as problems

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=problems.NAMES, default=problems.NAMES)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS[:1])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--force", action="store_true", help="run what has a line already")
    parser.add_argument("--tables", action="store_true", help="run nothing, only make the tables of the page")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        return run_here(options.problems[0], options.methods[0], options.seeds[0])
    if not options.tables:
        run_all(options)
    import hierarchical_tables

    return hierarchical_tables.write()


def run_all(options) -> None:
    import lines
    import peers

    done = {
        (line["problem"], line["method"], line["seed"])
        for line in lines.read(RESULTS)
        if line["curvi_source"] == peers.source_hash()
    }
    for seed in options.seeds:
        for name in options.problems:
            for method in options.methods:
                if not options.force and (name, method, seed) in done:
                    continue
                command = [sys.executable, __file__, "--here", "--problems", name, "--methods", method]
                began = time.perf_counter()
                try:
                    failed = subprocess.run([*command, "--seeds", str(seed)], timeout=PATIENCE).returncode
                except subprocess.TimeoutExpired:
                    failed = True
                said = f"{name}, {method}, seed {seed}: {time.perf_counter() - began:.0f} s"
                print(said + (" FAILED" if failed else ""), flush=True)


def run_here(name: str, method: str, seed: int) -> None:
    """One method on one problem with one seed, in this process."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import curvi
    import hierarchical_problems as problems
    import lines
    import peers
    import posterior_clock as clock
    from hierarchical_best import elbo_values, mean_and_error, refined
    from posterior_ours import number6

    model, arguments = problems.model(name)
    settings: dict = {} if method in ("default", "polished", "normal") else {"centering": "off"}
    settings |= {"marginals": "normal"} if method == "normal" else {}
    settings |= {"family": method} if method in FAMILIES else {}

    def once():
        target = curvi.from_numpyro(model, **arguments)
        found = curvi.fit(target, key=jax.random.key(seed), progress=False, max_seconds=MAX_SECONDS, **settings)
        jax.block_until_ready(found.q.params)
        return found

    began = clock.now()
    try:
        fit = once()
    except ValueError as error:
        print(f"{name}, {method}: {error}", flush=True)
        return
    cold = clock.now() - began
    wanted = problems.scalars(fit.target)
    record = {"num_rows": len(arguments["y"]), "num_latents": int(fit.q.noise_size), **_said(fit)}
    if method == "polished":
        record |= _polished(fit, wanted, seed)
    else:
        warm = clock.repeated(lambda: curvi.fit(
            fit.target, key=jax.random.key(seed), progress=False, max_seconds=MAX_SECONDS, **settings
        )) if cold.wall < _WARM_BELOW else None  # fmt: skip
        record |= clock.fields(cold, warm) if warm else {"cold_seconds": cold.wall, "cold_cpu_seconds": cold.cpu}
        elbo = mean_and_error(elbo_values(fit, fit.q, record["num_rows"]))
        record |= dict(zip(("elbo", "elbo_se"), map(number6, elbo)))
        record["scalars"] = _scalars(wanted, fit.mean(), fit.sd())
    if method in FAMILIES and record["num_latents"] <= MOST_REFINED:
        record["refined_gain"] = [number6(x) for x in refined(fit, seed, record["num_rows"])]
    lines.append(
        RESULTS, name, method, settings, seed, **record, curvi_source=peers.source_hash(), num_cpus=os.cpu_count(),
        load=round(os.getloadavg()[0], 1),
    )  # fmt: skip
    seconds = record.get("warm_seconds", record.get("cold_seconds"))
    print(
        f"  {name:14s} {method:11s} {record['outcome']} {record['family']} {seconds and round(seconds, 2)} s",
        flush=True,
    )


def _said(fit) -> dict:
    from posterior_errors import number
    from posterior_ours import _plain, verdict_warns

    counts = fit.counts
    return {
        "outcome": fit.outcome.name,
        "family": next((row.name for row in fit.families if row.chosen), ""),
        "num_params": int(fit.q.num_params),
        "evaluations": counts.evaluations,
        "calls": {"log_density": counts.log_density, "gradient": counts.gradient, "hvp": counts.hvp},
        "remaining_gain": [number(fit.remaining_gain), number(fit.remaining_gain_se)],
        "khat": number(fit.khat),
        "warns": verdict_warns(fit),
        "families": [_plain(row) for row in fit.families],
        "centering": {row.name: [number(row.amount.min()), number(row.amount.max())] for row in fit.centering},
    }


def _scalars(wanted, mean: dict, sd: dict) -> dict[str, list]:
    from peer_problems import pick
    from posterior_errors import number

    return {name: [number(pick(mean, name)), number(pick(sd, name))] for name in wanted}


def _polished(fit, wanted, seed: int) -> dict:
    import jax

    from posterior_errors import moments, number

    found = fit.polish(jax.random.key(seed))
    draws = {name: x.reshape(-1, *x.shape[2:]) for name, x in found.draws.items()}
    return {
        "scalars": _scalars(wanted, *moments(draws)),
        "largest_r_hat": number(found.largest_r_hat),
        "smallest_ess": number(found.smallest_effective_size),
        "leapfrogs": int(found.num_leapfrogs.sum()),
        "divergences": found.num_divergences,
        "polish_evaluations": found.counts.evaluations,
    }


if __name__ == "__main__":
    main()
