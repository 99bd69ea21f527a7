"""Calls of the log density to within 0.1 nat, from values alone: regression, Adam on the score gradient, NumPyro.

    python benchmarks/discrete.py              all runs, lines to results/discrete.jsonl, then docs/discrete.md
    python benchmarks/discrete.py --tables     docs/discrete.md alone

The gap of any parameters is exact, by enumeration or in closed form. Its reference is the lowest of the local optima
that regression ended in over its seeds, the same for all methods: where a model has several, reaching any counts.
Adam and NumPyro are tuned over rates and numbers of draws; a setting's score is the median over seeds, and the best
setting counts. A setting that has spent what the best so far needed has lost and is given up, and settings that have
their lines are not run again. Regression runs as `curvi.fit` runs it, with no setting given.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from numpyro.infer import SVI, TraceGraph_ELBO

import curvi
import discrete_tables
import held_out
import lines
import reference_models as examples
from curvi import MeanField
from curvi.estimate import AnchoredScore
from curvi.methods import BBVI, PooledRegression
from curvi.methods.base import Budget
from curvi.methods.base import Problem as FitProblem
from curvi.model.target import AbstractTarget
from discrete_tables import ADAM, CENTRED, NUMPYRO
from numpyro_program import numpyro_program
from problems import Problem
from race import LOOK, Entry, race
from reference_models.exact import basin, change_point_elbo, enumerated_elbo

RESULTS = Path(__file__).parent / "results" / "discrete.jsonl"
THRESHOLD = 0.1
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
# The likeliest first: what they need is all that the others get. Leaving one out takes two draws at least.
ADAM_DRAWS = (4, 16, 64, 2)
NUMPYRO_DRAWS = (4, 16, 64, 2, 1, 256)
MAX_CALLS = 400_000
SEEDS = range(10)
RIVAL_SEEDS = range(5)
TOLERANCE = 0.05
NUM_STARTS = 30


class Model(NamedTuple):
    target: AbstractTarget
    start: MeanField
    elbo: Callable
    held_out: bool  # whether no default was chosen on it


def models() -> dict[str, Model]:
    """The models by name."""
    found = {
        "spike and slab": examples.spike_and_slab(),
        "finite mixture": examples.finite_mixture(),
        "noisy or": examples.noisy_or(),
    }
    found = {name: (target, MeanField(target), enumerated_elbo(target)) for name, target in found.items()}
    found["change point"] = (*examples.change_point(), change_point_elbo())
    known = {name: Model(*parts, held_out=False) for name, parts in found.items()}
    return known | {name: Model(*parts, held_out=True) for name, parts in held_out.models().items()}


def best_known(start: MeanField, elbo) -> float:
    """The highest of the local optima of the exact ELBO that random starts lead to."""
    rng = np.random.default_rng(0)
    near = [np.asarray(start.params) + 2 * rng.normal(size=start.num_params) for _ in range(NUM_STARTS)]
    return max(value for value in (basin(elbo, params)[1] for params in near) if np.isfinite(value))


def climb(method, target, start, key, num_steps) -> tuple[list[tuple[int, np.ndarray]], curvi.Fit]:
    """The parameters after each step with the calls that were spent before it was judged; and the fit itself."""
    problem, spent, path = FitProblem(target, start), 0, []
    state = method.init(problem, key)
    for _ in range(num_steps):
        state, news = method.advance(problem, state, key, Budget(1, TOLERANCE))
        path.append((spent, np.asarray(state.q.params)))
        spent += news.counts.log_density
        if news.outcome is not None or (news.gain is not None and news.gain.within(TOLERANCE)):
            break
    fit = curvi.fit(
        target, family=start, method=method, key=key, num_steps=num_steps, tolerance=TOLERANCE, progress=False
    )
    return path, fit


def run_regression(name, target, start, elbo, held_out) -> None:
    """Lines of regression with and without correction."""
    value = jax.jit(elbo)
    highest = best_known(start, elbo)
    for correction in (True, False):
        for seed in SEEDS:
            method = PooledRegression(correction=correction)
            path, fit = climb(method, target, start, jax.random.key(seed), 100)
            outcome, best = fit.outcome, basin(elbo, fit.q.params)[1]
            path = [(spent, float(value(params))) for spent, params in path]
            lines.append(
                RESULTS,
                name,
                "regression" if correction else "regression, main effects only",
                {"correction": correction},
                seed,
                track=path,
                optimum=best,
                best_known=max(highest, best),
                held_out=held_out,
                outcome=outcome.name,
                total_calls=fit.counts.log_density,
                final_elbo=float(value(fit.q.params)),
                curvature_weight=[round(float(weight), 3) for weight in fit.history.shrinkage],
                num_params=start.num_params,
            )
            print(name, correction, seed, outcome.name, fit.counts.log_density, flush=True)


def unrun(name: str, method: str, draws, rates):
    """Numbers of draws, the rates that have no lines with them, and the calls that the best setting so far needs."""
    for num_draws in draws:
        found = lines.read(RESULTS)
        own = [line["setting"] for line in found if line["problem"] == name and line["method"] == method]
        there = {setting["rate"] for setting in own if setting["num_draws"] == num_draws}
        best, _ = discrete_tables.tuned(found, name, method)
        if wanted := tuple(rate for rate in rates if rate not in there):
            yield num_draws, wanted, int(min(best, MAX_CALLS)) if best > 0 else MAX_CALLS


def run_adam(problem: Problem, rates) -> None:
    for num_draws, grid, max_calls in unrun(problem.name, ADAM, ADAM_DRAWS, rates):
        entry = Entry("Adam", {}, lambda rate, S=num_draws: BBVI(optax.adam(rate), AnchoredScore(S)), grid)
        done = race(problem, entry, RIVAL_SEEDS, (THRESHOLD,), max_calls=max_calls, max_seconds=40.0)
        for track in done.tracks:
            hit = track.hit(THRESHOLD)
            lines.append(
                RESULTS,
                problem.name,
                ADAM,
                {"num_draws": num_draws, "rate": track.rate},
                track.seed,
                calls=None if hit is None else int(track.calls[hit]),
                spent=int(track.calls[-1]),
                reference=problem.best_elbo,
            )
        print(problem.name, "Adam", num_draws, f"{done.run_seconds:.0f}s", flush=True)


def run_numpyro(problem: Problem, method: str, rates) -> None:
    # A score gradient without a baseline pays for a constant in the log density. The best constant that could be taken
    # off is the optimum itself: no user knows it, but what is left then is the method's own doing.
    offset = problem.best_elbo if method == CENTRED else 0.0
    model, guide, flat = numpyro_program(problem.target, problem.start, offset)
    for num_draws, grid, max_calls in unrun(problem.name, method, NUMPYRO_DRAWS, rates):
        lanes = [(rate, seed) for rate in grid for seed in RIVAL_SEEDS]
        lane_rates = jnp.asarray([rate for rate, _ in lanes])
        keys = jnp.stack([jax.random.key(seed) for _, seed in lanes])

        def svi(rate, S=num_draws):
            return SVI(model, guide, numpyro.optim.Adam(rate), TraceGraph_ELBO(num_particles=S))

        with numpyro.validation_enabled(False):
            template = svi(grid[0])
            template.init(jax.random.key(0))

        def ready(rate, svi=svi, template=template):
            made = svi(rate)
            made.constrain_fn = template.constrain_fn  # set by the `init` of each instance
            return made

        init = jax.jit(jax.vmap(lambda rate, key: svi(rate).init(key)))

        def advance(rate, state, num_steps):
            state = jax.lax.fori_loop(0, num_steps, lambda _, s: ready(rate).update(s)[0], state)
            return state, problem.gap(flat(ready(rate).get_params(state)))

        side_by_side = jax.jit(jax.vmap(advance, in_axes=(0, 0, None)))
        with numpyro.validation_enabled(False):
            state, steps, hits = init(lane_rates, keys), 0, {}
            limit = max_calls / num_draws
            began = time.perf_counter()
            while steps < limit and time.perf_counter() - began < 60:
                more = max(1, int(np.ceil(LOOK * steps)))
                state, gap = side_by_side(lane_rates, state, jnp.int32(more))
                steps += more
                for lane, value in enumerate(np.asarray(gap)):
                    if value <= THRESHOLD:
                        hits.setdefault(lane, steps * num_draws)
                share = [
                    sum(lane in hits for lane in range(i, i + len(RIVAL_SEEDS)))
                    for i in range(0, len(lanes), len(RIVAL_SEEDS))
                ]
                if max(share) > len(RIVAL_SEEDS) / 2:
                    break
        for lane, (rate, seed) in enumerate(lanes):
            lines.append(
                RESULTS,
                problem.name,
                method,
                {"num_draws": num_draws, "rate": rate},
                seed,
                calls=hits.get(lane),
                spent=steps * num_draws,
                reference=problem.best_elbo,
            )
        print(problem.name, method, num_draws, steps * num_draws, len(hits), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", action="store_true", help="write docs/discrete.md from the lines that are there")
    parser.add_argument("--only", help="one model")
    parser.add_argument("--part", choices=("regression", "adam", "numpyro", "centred"), help="these runs alone")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="the rates of the rivals")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if not arguments.tables:
        for name, model in models().items():
            if arguments.only in (None, name):
                if arguments.part in (None, "regression"):
                    run_regression(name, *model)
                reference = discrete_tables.reference(lines.read(RESULTS), name)
                gap = lambda params, elbo=model.elbo, reference=reference: reference - elbo(params)  # noqa: E731
                problem = Problem(name, model.target, model.start, gap, None, reference)
                if arguments.part in (None, "adam"):
                    run_adam(problem, arguments.rates)
                if arguments.part in (None, "numpyro"):
                    run_numpyro(problem, NUMPYRO, arguments.rates)
                if arguments.part in (None, "centred") and model.start.num_rare_draws > 0:  # all else is pathwise there
                    run_numpyro(problem, CENTRED, arguments.rates)
    discrete_tables.write(RESULTS)


if __name__ == "__main__":
    main()
