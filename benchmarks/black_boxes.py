"""Correlated black boxes: calls of the log density until the sds are right, and whole fits.

    python benchmarks/black_boxes.py --references [--only PROBLEM]
    python benchmarks/black_boxes.py --ours [--seeds 0 10] [--only PROBLEM]
    python benchmarks/black_boxes.py --rivals [--only PROBLEM]
    python benchmarks/black_boxes.py --tables

A line per run in results/black_boxes.jsonl, or one for all seeds of a setting of a rival; docs/black-boxes.md is made
of these lines. All work in the same unconstrained coordinates from the same means. Right means: every sd within 15 % of
the reference, every mean within a quarter of an sd, in these coordinates. References are chains of NUTS on the
differentiable density without noise.
"""

import argparse
import itertools
import time
from pathlib import Path

import jax
import numpy as np

import curvi
import lines
from black_box_problems import BlackBox, problems
from black_box_rivals import importance_sampling, score_adam
from black_box_tables import write
from curvi.certify.gain import default_tolerance
from curvi.methods import PooledRegression
from curvi.methods.base import Budget
from curvi.methods.base import Problem as FitProblem
from curvi.methods.first_family import names_of

RESULTS = Path(__file__).parent / "results" / "black_boxes.jsonl"
WITHIN, NEAR = 0.15, 0.25  # of an sd: errors of sds, and of means
MAX_STEPS, MAX_CALLS, RIVAL_SEEDS = 200, {"importance sampling": 12_000, "Adam": 200_000}, 5
SAMPLING = {
    "size": (20, 40, 60, 90, 120, 250),
    "rate": (0.5, 1.0),
    "window": (8, 16, 32),
    "share": (0.3, 0.6),
    "start": (float(np.exp(-2)), 1.0),
}
ADAM = {"num_draws": (4, 8, 16, 64, 256), "start": (float(np.exp(-2)), 1.0)}
OURS = ((None, None), (None, 0.2), ("full_rank", None), ("mean_field", None))  # by name for one seed alone
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)


def reference(name: str, problem: BlackBox) -> None:
    """Means and sds in unconstrained coordinates."""
    target = problem.differentiable()
    fit = curvi.fit(target, key=jax.random.key(0), progress=False)
    chains = fit.polish(jax.random.key(1), num_draws=10_000)
    assert not chains.problems, chains.problems
    slots = sorted(curvi.MeanField(target).layout.slots, key=lambda slot: slot.start)
    parts = [np.asarray(chains.draws[slot.latent.name], np.float64).reshape(40_000, -1) for slot in slots]
    draws = np.concatenate([np.log(part) if slot.pushed else part for slot, part in zip(slots, parts)], 1)
    mean, sd = (list(map(float, of)) for of in (draws.mean(0), draws.std(0)))
    effective = float(chains.smallest_effective_size)
    lines.append(RESULTS, name, "NUTS", {}, 1, mean=mean, sd=sd, effective_draws=effective, r_hat=chains.largest_r_hat)


def found_reference(name: str) -> tuple[np.ndarray, np.ndarray]:
    found = [line for line in lines.read(RESULTS) if line["problem"] == name and line["method"] == "NUTS"]
    return np.array(found[-1]["mean"]), np.array(found[-1]["sd"])


def errors(reference, mean, sd) -> tuple[float, float]:
    """The largest error of an sd, as a share of it, and of a mean, in sds."""
    return float(np.max(np.abs(sd / reference[1] - 1))), float(np.max(np.abs(mean - reference[0]) / reference[1]))


def right(reference, mean, sd) -> bool:
    of_sd, of_mean = errors(reference, mean, sd)
    return of_sd <= WITHIN and of_mean <= NEAR


def moments(q) -> tuple[np.ndarray, np.ndarray]:
    mean, covariance = (np.asarray(part) for part in q.moments())
    return mean, np.sqrt(np.diag(covariance) if covariance.ndim == 2 else covariance)


def ours(name: str, problem: BlackBox, family: str | None, tolerance: float | None, seed: int) -> None:
    """A whole fit, a step at a time, and the calls until q was right."""
    target, known, key = problem.target(), found_reference(name), jax.random.key(seed)
    q = curvi.FullRank(target) if family == "full_rank" else curvi.MeanField(target)
    method, fit = PooledRegression(), FitProblem(target, q, families=names_of(family))
    nats = default_tolerance(q.noise_size) if tolerance is None else tolerance
    state, calls, first, done, began = method.init(fit, key), 0, None, False, time.perf_counter()
    for _ in range(MAX_STEPS):
        state, news = method.advance(fit, state, key, Budget(1, nats))
        calls += news.counts.log_density
        if first is None and right(known, *moments(state.q)):
            first = calls
        done = news.gain is not None and news.gain.within(nats)
        if done or news.outcome is not None:
            break
    of_sd, of_mean = errors(known, *moments(state.q))
    lines.append(
        RESULTS,
        name,
        "PooledRegression",
        {"family": family or "auto", "tolerance": tolerance},
        seed,
        first_right=first,
        total_calls=calls,
        converged=bool(done),
        ended_with=type(state.q).__name__,
        sd_error=of_sd,
        mean_error=of_mean,
        noise=problem.noise,
        run_seconds=time.perf_counter() - began,
    )


def compiled(problem: BlackBox):
    """ln p at rows of unconstrained coordinates with noise from a generator: compiled, so that rivals can be tuned."""
    target = problem.differentiable()
    q, full = curvi.MeanField(target), target.full()
    values = jax.jit(jax.vmap(lambda row: q.log_joint(full, (row,))))

    def density(x, rng):
        size = 1 << (len(x) - 1).bit_length()
        padded = np.concatenate([x, np.repeat(x[-1:], size - len(x), 0)])
        return np.asarray(values(padded))[: len(x)] + problem.noise * rng.normal(size=len(x))

    return density


def rivals(name: str, problem: BlackBox) -> None:
    """Every setting of both, over seeds: calls until the answer was right for the first time. A seed is given up after
    twice the calls that the best setting so far needs in the median.
    """
    known, start_mean = found_reference(name), moments(curvi.MeanField(problem.target()))[0]
    density, most = compiled(problem), MAX_CALLS["importance sampling"]
    note = lambda method, setting, first: lines.append(  # noqa: E731
        RESULTS, name, method, setting, 0, first_right=first, noise=problem.noise
    )
    for values in itertools.product(*SAMPLING.values()):
        setting, found = dict(zip(SAMPLING, values)), []
        for seed in range(RIVAL_SEEDS):
            rng = np.random.default_rng(seed)
            path = importance_sampling(lambda x, rng=rng: density(x, rng), start_mean, rng=rng, most=most, **setting)
            found.append(_first(path, lambda mean, sd: right(known, mean, sd)))
        note("importance sampling", setting, found)
        most = min([most, *(2 * int(calls) for calls in [_median(found)] if calls is not None)])
    most = MAX_CALLS["Adam"]
    for values in itertools.product(*ADAM.values()):
        setting, found = dict(zip(ADAM, values)), []
        for seed in range(RIVAL_SEEDS):
            rng, first = np.random.default_rng(seed), dict.fromkeys(RATES)
            path = score_adam(
                lambda x, rng=rng: density(x, rng), start_mean, rates=RATES, rng=rng, most=most, **setting
            )
            for calls, means, sds in path:
                hit = [rate for rate, mean, sd in zip(RATES, means, sds) if right(known, mean, sd)]
                first |= {rate: calls for rate in hit if first[rate] is None}
                if len(hit) and calls > 2 * min(calls for calls in first.values() if calls is not None):
                    break  # the others are no better
            found.append(first)
        for rate in RATES:
            note("Adam", {**setting, "rate": rate}, [first[rate] for first in found])
        best = [_median([first[rate] for first in found]) for rate in RATES]
        most = min([most, *(2 * int(calls) for calls in best if calls is not None)])


def _median(found: list) -> float | None:
    """The median of calls, None where fewer than half came there."""
    middle = float(np.median([np.inf if calls is None else calls for calls in found]))
    return middle if np.isfinite(middle) else None


def _first(path, holds) -> int | None:
    try:
        return next((calls for calls, *answer in path if holds(*answer)), None)
    except np.linalg.LinAlgError:
        return None  # the covariance has collapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("references", "ours", "rivals", "tables"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--only", nargs="+", help="these problems alone")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 10), help="first seed, and the one after the last")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for name, make in problems().items():
        if arguments.only is not None and name not in arguments.only:
            continue
        if arguments.references:
            reference(name, make(0))
        for seed in range(*arguments.seeds) if arguments.ours else ():
            for family, tolerance in OURS:
                if family is None or seed == arguments.seeds[0]:
                    ours(name, make(seed), family, tolerance, seed)
        if arguments.rivals:
            with np.errstate(all="ignore"):
                rivals(name, make(0))
        print(name, flush=True)
    if arguments.tables:
        write(RESULTS)


if __name__ == "__main__":
    main()
