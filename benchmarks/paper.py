"""Benchmarks of the paper's claims.

Each run appends a line to benchmarks/results/paper.jsonl; docs/benchmarks.md is made of those lines.

python benchmarks/paper.py [--only cost|breast|synthetic|tables] [--quick]
"""

import argparse
import time
from pathlib import Path

import jax
import numpy as np

SEEDS = (1, 2, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("cost", "breast", "synthetic", "tables"), help="one part; all by default")
    parser.add_argument("--quick", action="store_true", help="a small part of everything, kept out of the results")
    parser.add_argument("--match", default="", help="only methods whose name holds this text")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)

    import lines

    path = Path("/tmp/curvi-paper-quick.jsonl") if options.quick else lines.RESULTS
    if options.quick:
        path.unlink(missing_ok=True)
    parts = {"cost": cost_per_step, "breast": breast_cancer, "synthetic": synthetic}
    for name, part in parts.items():
        if options.only in (None, name):
            part(path, options.quick, options.match)
    if options.only in (None, "tables") and not options.quick:
        import tables

        tables.write(path)


def cost_per_step(path: Path, quick: bool, match: str) -> None:
    import cost

    cost.run(path, quick)


def breast_cancer(path: Path, quick: bool, match: str) -> None:
    import entries
    import problems

    chosen = [
        *entries.second_order((64, 128, 256, 512), 256),
        *entries.trust_region_gradient((128, 256, 512)),
        *entries.first_order((8, 32, 128)),
        *entries.literal(512),
        *entries.pathwise((64, 256)),
    ]
    problem = problems.breast_cancer()
    run_races(path, problem, chosen, (1.0, 0.3), 60_000, quick, match)
    run_default(path, problem, (1.0, 0.3), quick, match)
    if not match or match == "Hessian error":
        import noise

        noise.run(path, problem, quick)


def synthetic(path: Path, quick: bool, match: str) -> None:
    import entries
    import lines
    import newton
    import problems

    problem = problems.rotated_gaussian()
    chosen = [
        *entries.second_order((32, 64, 128), 64),
        *entries.trust_region_gradient((32, 64, 128)),
        *entries.first_order((8, 32, 128)),
        *entries.literal(512),
        *entries.pathwise((16, 64)),
    ]
    run_races(path, problem, chosen, (1.0, 0.1), 60_000, quick, match)
    run_default(path, problem, (1.0, 0.1), quick, match)
    if match not in ("", "Newton"):
        return
    objectives = {
        "rotated Gaussian": (lambda params: -problem.gap(params), problem.start.params, 16),
        "logistic regression in two dimensions": (*newton.two_dimensional_elbo(), 7),
    }
    for name, (objective, start, num_steps) in objectives.items():
        errors, gaps, seconds = newton.newton_errors(objective, start, num_steps)
        measured = {"error": errors.tolist(), "gap": gaps.tolist(), "run_seconds": seconds}
        lines.append(path, name, "Newton, exact Hessian", {}, 0, **measured)


def run_races(path, problem, chosen, thresholds, max_calls: int, quick: bool, match: str) -> None:
    """All entries on one problem, one line for each rate and seed."""
    import lines
    from race import race

    for entry in chosen[::6] if quick else chosen:
        if match not in entry.method:
            continue
        result = race(problem, entry, SEEDS, thresholds, 2_000 if quick else max_calls)
        best = best_rate(result.tracks, thresholds[0])
        for track in result.tracks:
            hits = {threshold: track.hit(threshold) for threshold in thresholds}
            measured = {
                "order": entry.order,
                "to_gap": {
                    str(threshold): None
                    if at is None
                    else {
                        "steps": int(track.steps[at]),
                        "log_density": int(track.log_density[at]),
                        "calls": int(track.calls[at]),
                    }
                    for threshold, at in hits.items()
                },
                "steps": int(track.steps[-1]),
                "calls": int(track.calls[-1]),
                "curvature_weight": round(float(track.curvature_weight), 4),
                "accepted": round(float(track.accepted), 4),
                "final_gap": float(f"{track.gap[-1]:.4g}") if np.isfinite(track.gap[-1]) else None,
                "compile_seconds": round(result.compile_seconds, 3),
                "run_seconds": round(result.run_seconds / len(result.tracks), 4),
                "side_by_side": len(result.tracks),
            }
            if track.rate == best:
                measured["track"] = thin(track)
            setting = {**entry.setting, **({} if track.rate is None else {"rate": track.rate})}
            lines.append(path, problem.name, entry.method, setting, track.seed, **measured)
        hits = [(track, track.hit(thresholds[0])) for track in result.tracks if track.rate == best]
        shown = ", ".join("-" if at is None else f"{track.log_density[at]:,}" for track, at in hits)
        seconds = f"{result.compile_seconds:.0f} + {result.run_seconds:.0f} s"
        print(f"{problem.name}: {entry.method} {entry.setting} best {best}: {shown} ({seconds})", flush=True)


def run_default(path, problem, thresholds, quick: bool, match: str) -> None:
    """`curvi.fit` as it comes, cut off after 1, 2, 3 ... steps of one path until it arrives; its draws grow."""
    import curvi
    import lines

    if match not in "curvi.fit default":
        return
    for seed in SEEDS[: 1 if quick else None]:
        hits, calls, gaps, num_steps = {}, [], [], 0
        began = time.perf_counter()
        while True:
            num_steps += 1
            fit = curvi.fit(problem.target, key=jax.random.key(seed), num_steps=num_steps, progress=False)
            if len(fit.history) < num_steps:
                break
            gaps.append(float(problem.gap(fit.q.params)))
            # Every turn of its program computes value, gradient and Hessian product; the certificate is left out.
            log_density = int(fit.history.log_density[-1])
            calls.append(3 * log_density)
            spent = {"steps": num_steps, "log_density": log_density, "calls": 3 * log_density}
            for threshold in thresholds:
                if gaps[-1] <= threshold:
                    hits.setdefault(str(threshold), spent)
            if len(hits) == len(thresholds):
                break
        measured = {
            "order": "pathwise",
            "to_gap": {str(threshold): hits.get(str(threshold)) for threshold in thresholds},
            "steps": len(gaps),
            "calls": calls[-1],
            "final_gap": gaps[-1],
            "compile_seconds": round(fit.seconds.compile, 3),
            "run_seconds": round(time.perf_counter() - began, 4),
            "side_by_side": 1,
            "track": {"calls": calls, "gap": gaps},
        }
        lines.append(path, problem.name, "curvi.fit default", {}, seed, **measured)
        print(f"{problem.name}: curvi.fit default, seed {seed}: {measured['to_gap']}", flush=True)


def best_rate(tracks, threshold: float):
    """The rate with the fewest calls to `threshold`, median over seeds; where none arrives, the least final gap."""

    def score(rate):
        mine = [track for track in tracks if track.rate == rate]
        calls = np.median([np.inf if (at := t.hit(threshold)) is None else t.calls[at] for t in mine])
        gap = np.median([np.inf if np.isnan(t.gap[-1]) else t.gap[-1] for t in mine])
        return calls, gap

    return min({track.rate for track in tracks}, key=score)


def thin(track, num_points: int = 30) -> dict:
    """Calls and gaps at points about evenly spaced on a logarithmic scale."""
    index = np.unique(np.geomspace(1, len(track.steps), num_points).round().astype(int)) - 1
    gaps = [float(f"{g:.4g}") if np.isfinite(g) else None for g in track.gap[index]]
    return {"calls": track.calls[index].tolist(), "gap": gaps}


if __name__ == "__main__":
    main()
