"""Calls of the log density to within 0.1 nat, from values alone: regression, Adam on the score gradient, NumPyro.

    python benchmarks/discrete.py              all runs, lines to results/discrete.jsonl, then docs/discrete.md
    python benchmarks/discrete.py --tables     docs/discrete.md alone

The gap of any parameters is exact, by enumeration or in closed form. Its reference is the lowest of the local optima
that regression ended in over its seeds, the same for all methods: where a model has several, reaching any counts.
Adam and NumPyro are tuned over rates and numbers of draws; a setting's score is the median over seeds, and the best
setting counts. Regression runs as `curvi.fit` runs it, with no setting given.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from numpyro.infer import SVI, TraceGraph_ELBO

import discrete_tables
import lines
from curvi import MeanField, examples
from curvi.clock import Clock
from curvi.estimate import AnchoredScore
from curvi.examples.exact import basin, change_point_elbo, enumerated_elbo
from curvi.methods import BBVI, PooledRegression
from curvi.pooled import PooledRun
from curvi.progress import Silent
from problems import Problem
from race import LOOK, Entry, race

RESULTS = Path(__file__).parent / "results" / "discrete.jsonl"
THRESHOLD = 0.1
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
DRAWS = (2, 4, 16, 64)
SEEDS = range(10)
RIVAL_SEEDS = range(5)
TOLERANCE = 0.05


def models() -> dict:
    """Target, start and exact ELBO by name."""
    found = {
        "spike and slab": examples.spike_and_slab(),
        "finite mixture": examples.finite_mixture(),
        "noisy or": examples.noisy_or(),
    }
    found = {name: (target, MeanField(target), enumerated_elbo(target)) for name, target in found.items()}
    return {**found, "change point": (*examples.change_point(), change_point_elbo())}


def run_regression(name, target, start, elbo) -> None:
    """Lines of regression with and without correction."""
    value = jax.jit(elbo)
    for correction in (True, False):
        for seed in SEEDS:
            method = PooledRegression(correction=correction)
            run = PooledRun(method, target, start, jax.random.key(seed), Clock(), Silent())
            outcome = run.until(100, TOLERANCE)
            best = basin(elbo, run.q.params)[1]
            path = [(spent, float(value(params))) for spent, params in run.path]
            lines.append(
                RESULTS,
                name,
                "regression" if correction else "regression, main effects only",
                {"correction": correction},
                seed,
                track=path,
                optimum=best,
                outcome=outcome.name,
                total_calls=run.counts.log_density,
                final_elbo=float(value(run.q.params)),
                curvature_weight=[round(float(row["curvature_weight"]), 3) for row in run.rows],
                num_params=start.num_params,
            )
            print(name, correction, seed, outcome.name, run.counts.log_density, flush=True)


def run_adam(problem: Problem) -> None:
    for num_draws in DRAWS:
        entry = Entry("Adam", {}, lambda rate, S=num_draws: BBVI(optax.adam(rate), AnchoredScore(S)), RATES)
        done = race(problem, entry, RIVAL_SEEDS, (THRESHOLD,), max_calls=400_000, max_seconds=40.0)
        for track in done.tracks:
            hit = track.hit(THRESHOLD)
            lines.append(
                RESULTS,
                problem.name,
                "Adam on the leave-one-out score gradient",
                {"num_draws": num_draws, "rate": track.rate},
                track.seed,
                calls=None if hit is None else int(track.calls[hit]),
                spent=int(track.calls[-1]),
            )
        print(problem.name, "Adam", num_draws, f"{done.run_seconds:.0f}s", flush=True)


def numpyro_program(target, start: MeanField):
    """Model and guide of a target with factors as in `start`, for NumPyro; the guide's parameters in curvi's order."""
    density = target.full()

    def sites(read):
        theta = {}
        for index, slot in enumerate(start.layout.slots):
            latent, factor = slot.latent, start.layout.factors[slot.group]
            with numpyro.plate(f"rows_{index}", slot.count):
                theta[latent.name] = read(latent, factor, slot)
        return theta

    def model():
        def read(latent, factor, slot):
            like = factor.distribution(jnp.zeros((slot.count, factor.num_params)))
            return numpyro.sample(latent.name, like)

        theta = sites(read)
        prior = sum(
            factor_of(slot)
            .distribution(jnp.zeros((slot.count, factor_of(slot).num_params)))
            .log_prob(theta[slot.latent.name])
            .sum()
            for slot in start.layout.slots
        )
        shaped = {
            slot.latent.name: (theta[slot.latent.name] + getattr(factor_of(slot), "lowest", 0))
            .reshape(slot.latent.shape)
            .astype(slot.latent.dtype)
            for slot in start.layout.slots
        }
        # The sites' own densities are taken back: what counts is the target's.
        numpyro.factor("target", density(shaped) - prior)

    def factor_of(slot):
        return start.layout.factors[slot.group]

    slices = start.parameter_slices()

    def guide():
        def read(latent, factor, slot):
            first = start.params[slices[latent.name]].reshape(slot.count, factor.num_params)
            params = numpyro.param(f"params_{latent.name}", first)
            return numpyro.sample(latent.name, factor.distribution(params))

        sites(read)

    def flat(params):
        out = jnp.zeros(start.num_params)
        for name, place in slices.items():
            out = out.at[place].set(params[f"params_{name}"].reshape(-1))
        return out

    return model, guide, flat


def run_numpyro(problem: Problem) -> None:
    model, guide, flat = numpyro_program(problem.target, problem.start)
    lanes = [(rate, seed) for rate in RATES for seed in RIVAL_SEEDS]
    rates = jnp.asarray([rate for rate, _ in lanes])
    keys = jnp.stack([jax.random.key(seed) for _, seed in lanes])
    for num_draws in DRAWS:

        def svi(rate, S=num_draws):
            return SVI(model, guide, numpyro.optim.Adam(rate), TraceGraph_ELBO(num_particles=S))

        with numpyro.validation_enabled(False):
            template = svi(RATES[0])
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
            state, steps, hits = init(rates, keys), 0, {}
            limit = 400_000 // num_draws
            clock = Clock()
            while steps < limit and clock.seconds().run < 60:
                more = max(1, int(np.ceil(LOOK * steps)))
                state, gap = side_by_side(rates, state, jnp.int32(more))
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
                "NumPyro, TraceGraph_ELBO, Adam",
                {"num_draws": num_draws, "rate": rate},
                seed,
                calls=hits.get(lane),
                spent=steps * num_draws,
            )
        print(problem.name, "NumPyro", num_draws, steps * num_draws, len(hits), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", action="store_true", help="write docs/discrete.md from the lines that are there")
    parser.add_argument("--only", help="one model")
    parser.add_argument("--part", choices=("regression", "numpyro"), help="these runs alone, the others being there")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if not arguments.tables:
        for name, (target, start, elbo) in models().items():
            if arguments.only in (None, name):
                if arguments.part != "numpyro":
                    run_regression(name, target, start, elbo)
                found = [line for line in lines.read(RESULTS) if line["problem"] == name and "optimum" in line]
                reference = min(line["optimum"] for line in found)
                problem = Problem(name, target, start, lambda p, e=elbo, r=reference: r - e(p), None, reference)
                if arguments.part is None:
                    run_adam(problem)
                if arguments.part != "regression":
                    run_numpyro(problem)
    discrete_tables.write(RESULTS)


if __name__ == "__main__":
    main()
