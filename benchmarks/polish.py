"""Does NUTS from q beat NUTS from scratch? Gradients until every element has 400 effective draws.

    python benchmarks/polish.py [PROBLEM ...]

For each problem and seed: a fit by each family with `fit.polish`, and NumPyro's NUTS with its own warm-up; all with
four chains and 1,000 draws each. What precedes the draws (fit, starts, adaptation, warm-up) is paid once; the draws are
scaled to 400 effective ones of the element with the fewest, in bulk or tail. Chains with an R-hat above 1.05 have no
such figure. A Hessian-vector product of the fit counts as two gradients. Lines go to results/polish.jsonl.
"""

import sys
from pathlib import Path

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

import curvi  # noqa: E402
import lines  # noqa: E402
import peer_problems  # noqa: E402
from curvi.mcmc.convergence import diagnose  # noqa: E402
from curvi.mcmc.polish import NUM_ADAPTATION  # noqa: E402
from curvi.record.clock import Clock  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "polish.jsonl"
PROBLEMS = ("eight_schools_centered", "radon", "irt_2pl")
SEEDS = (0, 1, 2)
FAMILIES = ("mean_field", "full_rank")
CHAINS, DRAWS, WARMUP, WANTED = 4, 1000, 500, 400
MOST_R_HAT = 1.05


def judged(draws: dict, reference: dict, before: int, during: int) -> dict:
    """Diagnostics of draws by name, their errors against the reference, and the gradients to 400 effective draws."""
    found = [np.concatenate([np.ravel(part) for part in parts]) for parts in zip(*map(diagnose, draws.values()))]
    r_hat, smallest = float(np.nanmax(found[0])), float(np.nanmin(found[1:]))
    shifts, ratios = [], []
    for name, truth in reference.items():
        if (values := peer_problems.pick(draws, name, 2)) is not None:
            shifts.append((values.mean() - truth["mean"]) / truth["sd"])
            ratios.append(values.std() / truth["sd"])
    mixed = r_hat <= MOST_R_HAT
    return {
        "r_hat": r_hat,
        "effective": smallest,
        "gradients_before": before,
        "gradients_of_draws": during,
        "gradients_to_wanted": before + during * WANTED / smallest if mixed else None,
        "rms_mean_error": float(np.sqrt(np.mean(np.square(shifts)))),
        "sd_ratio": float(np.median(ratios)),
    }


def polished(problem, family: str, seed: int) -> dict:
    """A fit and its polish."""
    fit = curvi.fit(problem.target, key=jax.random.key(seed), family=family, progress=False)
    found = fit.polish(jax.random.key(100 + seed), DRAWS, CHAINS)
    during = int(found.num_leapfrogs.sum())
    before = fit.counts.evaluations + found.counts.gradient - during
    return {
        **judged(found.draws, problem.reference, before, during),
        "outcome": fit.outcome.name,
        "evaluations_of_fit": fit.counts.evaluations,
        "divergences": found.num_divergences,
        "seconds": {
            "compile": fit.seconds.compile + found.seconds.compile,
            "run": fit.seconds.run + found.seconds.run,
        },
    }


def from_scratch(problem, seed: int) -> dict:
    """NumPyro's NUTS with its own starts and warm-up."""
    from numpyro.infer import MCMC, NUTS

    model, arguments, _ = peer_problems.posteriordb_model(peer_problems.full_name(problem.name))
    chains = MCMC(
        NUTS(model),
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    with Clock() as clock:
        chains.warmup(jax.random.key(seed), **arguments, collect_warmup=True, extra_fields=("num_steps",))
        before = int(np.asarray(chains.get_extra_fields()["num_steps"]).sum())
        chains.run(jax.random.key(1000 + seed), **arguments, extra_fields=("num_steps", "diverging"))
        draws = {name: np.asarray(values) for name, values in chains.get_samples(group_by_chain=True).items()}
    seconds, extra = clock.seconds(), chains.get_extra_fields()
    return {
        **judged(draws, problem.reference, before, int(np.asarray(extra["num_steps"]).sum())),
        "divergences": int(np.asarray(extra["diverging"]).sum()),
        "seconds": {"compile": seconds.compile, "run": seconds.run},
    }


def main() -> None:
    for name in sys.argv[1:] or PROBLEMS:
        problem = peer_problems.catalogue()[name]()
        for seed in SEEDS:
            for family in (*FAMILIES, None):
                found = from_scratch(problem, seed) if family is None else polished(problem, family, seed)
                method = "NumPyro NUTS" if family is None else f"{family}, polish"
                setting = {"chains": CHAINS, "draws": DRAWS, "warmup": WARMUP if family is None else NUM_ADAPTATION}
                lines.append(RESULTS, name, method, setting, seed, **found)
                print(name, method, seed, found, flush=True)


if __name__ == "__main__":
    main()
