"""What the scalars of a posterior are known to be: posteriordb's reference draws, or a long NUTS run kept as a line.

    python benchmarks/posterior_references.py [--problems NAME ...]

A run goes on until split R-hat is at most 1.01 and the smallest effective sample size at least 1,000; it is kept from
400 on. Lines go to results/posterior_references.jsonl.
"""

import argparse
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402

import lines  # noqa: E402
import posterior_problems  # noqa: E402
from posterior_nuts import Chains, quality  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "posterior_references.jsonl"
MOMENTS = ("mean", "sd", "q5", "q50", "q95", "ess")
MAX_RHAT, MIN_ESS, WANTED_ESS = 1.01, 400.0, 1_000.0
NUM_CHAINS, NUM_WARMUP, BLOCK, MAX_BLOCKS = 4, 1_000, 20, 12


def reference(posterior) -> dict[str, dict[str, float]]:
    """Moments by scalar; empty where none are known yet."""
    if posterior.known is not None:
        return posterior.known
    for line in lines.read(RESULTS):
        if line["problem"] == posterior.name:
            return {name: dict(zip(MOMENTS, row)) for name, row in line["scalars"].items()}
    return {}


def run(posterior, output: Path) -> None:
    """A line with the moments of every scalar; none where the run does not reach what a reference must."""
    chains = Chains(posterior, seed=20_262, num_warmup=NUM_WARMUP, num_chains=NUM_CHAINS)
    chains.warm_up()
    scalars, ess, worst, smallest = {}, {}, np.inf, 0.0
    for _ in range(MAX_BLOCKS):
        for _ in range(BLOCK):
            chains.advance(keep=True)
        scalars = chains.scalars()
        rhat, ess = quality(scalars)
        worst, smallest = max(rhat.values()), min(ess.values())
        print(
            f"{posterior.name}: {chains.seconds.wall:.0f} s, R-hat {worst:.4f}, effective size {smallest:.0f}",
            flush=True,
        )
        if worst <= MAX_RHAT and smallest >= WANTED_ESS:
            break
    if worst > MAX_RHAT or smallest < MIN_ESS:
        print(f"{posterior.name}: not kept", flush=True)
        return
    rows = {name: _moments(draws.ravel(), ess[name]) for name, draws in scalars.items()}
    num_draws = len(chains.draws[0]) * chains.draws[0][0].shape[0]
    setting = {"num_chains": NUM_CHAINS, "num_warmup": NUM_WARMUP, "num_draws": num_draws}
    lines.append(
        output, posterior.name, "NumPyro NUTS", setting, chains.seed, num_latents=chains.size, rhat=worst,
        smallest_ess=smallest, divergences=chains.divergences, leapfrogs=chains.leapfrogs,
        run_seconds=round(chains.seconds.wall, 2), scalars=rows,
    )  # fmt: skip


def _moments(draws: np.ndarray, ess: float) -> list[float]:
    numbers = [draws.mean(), draws.std(ddof=1), *np.quantile(draws, [0.05, 0.5, 0.95]), ess]
    return [float(f"{number:.6g}") for number in numbers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", metavar="NAME", choices=posterior_problems.POSTERIORS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--force", action="store_true", help="also where a line is there already")
    given = parser.parse_args()
    for name in given.problems or posterior_problems.POSTERIORS:
        try:
            posterior = posterior_problems.POSTERIORS[name]()
        except posterior_problems.UnavailableError as reason:
            print(f"{name}: skipped, {reason}", flush=True)
            continue
        if posterior.known is None and (given.force or not reference(posterior)):
            run(posterior, given.output)


if __name__ == "__main__":
    main()
