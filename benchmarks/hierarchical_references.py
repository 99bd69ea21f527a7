"""What the coefficients and scales of the hierarchical problems are known to be: integrated exactly, or long NUTS runs.

    python benchmarks/hierarchical_references.py [--problems NAME ...] [--seconds 600]

Linear mixed models are integrated (`mixed_references.py`), to the effective sample size that is said. The other models
are left to NumPyro's NUTS, four chains, with effects written as the table below says; a run is kept where split R-hat
of all coefficients and scales is at most 1.01 and their effective sample size at least 400. Lines go to
results/hierarchical_references.jsonl.
"""

import argparse
import time
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import numpyro  # noqa: E402
from numpyro.infer.reparam import LocScaleReparam  # noqa: E402

import curvi  # noqa: E402
import hierarchical_problems as problems  # noqa: E402
import lines  # noqa: E402
import mixed_references  # noqa: E402
import posterior_references  # noqa: E402
from posterior_nuts import Chains, quality  # noqa: E402
from posterior_problems import Posterior  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "hierarchical_references.jsonl"
MAX_RHAT, MIN_ESS, WANTED_ESS = 1.01, 400.0, 1_000.0
NUM_CHAINS, NUM_WARMUP, BLOCK = 4, 1_000, 10
# Effects that chains take non-centred: little is known of each of them.
NON_CENTRED = {
    "cbpp": ("herd",),
    "grouseticks": ("chick", "location"),
    "contraception": ("district", "district_urban"),
    "flights": tuple(f"effect_{name}" for name in problems.FLIGHT_GROUPS),
    "flights_50000": ("effect_origin", "effect_dest", "effect_carrier"),
}


def reference(name: str) -> dict[str, dict[str, float]]:
    """Mean, sd and effective sample size by scalar; empty where none are known yet."""
    for line in lines.read(RESULTS):
        if line["problem"] == name:
            return {scalar: dict(zip(("mean", "sd", "ess"), row)) for scalar, row in line["scalars"].items()}
    # The same model and rows as there, with its effects written non-centred.
    known = {line["problem"]: line["scalars"] for line in lines.read(posterior_references.RESULTS)}.get(name, {})
    scalars = {scalar: row for scalar, row in known.items() if not scalar.startswith("effect_")}
    return {scalar: {"mean": row[0], "sd": row[1], "ess": row[-1]} for scalar, row in scalars.items()}


def integrate(name: str) -> None:
    _, arguments = problems.model(name)
    began = time.perf_counter()
    rows, effective = mixed_references.moments(mixed_references.MODELS[name](**arguments))
    seconds = round(time.perf_counter() - began, 2)
    setting = {"num_draws": mixed_references.NUM_DRAWS}
    print(f"{name}: integrated in {seconds:.0f} s, effective size {effective:.0f}", flush=True)
    if effective >= MIN_ESS:
        lines.append(
            RESULTS, name, "exact integration", setting, 0, smallest_ess=effective, run_seconds=seconds, scalars=rows
        )


def sample(name: str, seconds: float) -> None:
    model, arguments = problems.model(name)
    wanted = problems.scalars(curvi.from_numpyro(model, **arguments))
    reparam = {effect: LocScaleReparam(0.0) for effect in NON_CENTRED.get(name, ())}
    written = numpyro.handlers.reparam(model, config=lambda site: reparam.get(site["name"]))
    chains = Chains(
        Posterior(name, "mixed model", written, arguments),
        seed=20_262, num_warmup=NUM_WARMUP, num_chains=NUM_CHAINS,
    )  # fmt: skip
    chains.warm_up()
    scalars, ess, worst, smallest = {}, {}, float("inf"), 0.0
    while (chains.seconds.wall < seconds or not scalars) and not (worst <= MAX_RHAT and smallest >= WANTED_ESS):
        for _ in range(BLOCK):
            chains.advance(keep=True)
        scalars = {scalar: draws for scalar, draws in chains.scalars().items() if scalar in wanted}
        rhat, ess = quality(scalars)
        worst, smallest = max(rhat.values()), min(ess.values())
        said = f"{name}: {chains.seconds.wall:.0f} s, R-hat {worst:.4f}, effective size {smallest:.0f}"
        print(f"{said}, {chains.divergences} divergences", flush=True)
    if worst > MAX_RHAT or smallest < MIN_ESS:
        print(f"{name}: not kept", flush=True)
        return
    rows = {
        scalar: [float(f"{x:.6g}") for x in (draws.mean(), draws.std(ddof=1), ess[scalar])]
        for scalar, draws in scalars.items()
    }
    num_draws = len(chains.draws[0]) * chains.draws[0][0].shape[0]
    setting = {"num_chains": NUM_CHAINS, "num_warmup": NUM_WARMUP, "num_draws": num_draws}
    lines.append(
        RESULTS, name, "NumPyro NUTS", setting, chains.seed, rhat=worst, smallest_ess=smallest,
        divergences=chains.divergences, leapfrogs=chains.leapfrogs, run_seconds=round(chains.seconds.wall, 2),
        run_cpu_seconds=round(chains.seconds.cpu, 2), num_latents=chains.size, scalars=rows,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=problems.NAMES, default=problems.NAMES)
    parser.add_argument("--seconds", type=float, default=600.0, help="of a run of NUTS, after which it is judged")
    parser.add_argument("--force", action="store_true", help="also where a line is there already")
    given = parser.parse_args()
    for name in given.problems:
        if given.force or not reference(name):
            if name in mixed_references.MODELS:
                integrate(name)
            else:
                sample(name, given.seconds)


if __name__ == "__main__":
    main()
