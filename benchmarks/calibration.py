"""Ranks of true values: a model whose posterior is Gaussian, and a centred hierarchy under independent factors.

    python benchmarks/calibration.py             runs everything, and draws docs/images/ranks.svg
    python benchmarks/calibration.py --tables    writes the table of docs/calibration.md

Lines go to results/calibration.jsonl.
"""

import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "calibration.jsonl"
DOCS = Path(__file__).parent.parent / "docs"
SIMULATIONS = 400


def problems() -> dict:
    import numpy as np
    import numpyro
    import numpyro.distributions as dist

    x = np.random.default_rng(0).normal(size=(12, 3))
    x[:, 1] += 2 * x[:, 0]
    sd = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def linear(x, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)

    def schools(sd, y=None):
        mu, tau = numpyro.sample("mu", dist.Normal(0.0, 5.0)), numpyro.sample("tau", dist.HalfNormal(5.0))
        with numpyro.plate("schools", 8):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            numpyro.sample("y", dist.Normal(theta, sd), obs=y)

    return {"linear, known noise": (linear, x), "eight schools, centred": (schools, sd)}


def run() -> None:
    import jax

    jax.config.update("jax_enable_x64", True)
    import curvi
    import lines

    for name, (model, data) in problems().items():
        for family in ("full_rank", "mean_field"):
            began = time.perf_counter()
            found = curvi.sbc(
                model, data, key=jax.random.key(0), observed="y", family=family, num_simulations=SIMULATIONS
            )
            setting = {"family": family, "simulations": SIMULATIONS}
            common = {"seconds": time.perf_counter() - began, "together": int(found.fits.together.sum())}
            common |= {"converged": int(found.fits.converged.sum())}
            for kind in found.ranks:
                measured = {"p_values": found.p_values(kind), "wrong": found.wrong(kind)}
                lines.append(RESULTS, name, kind, setting, 0, **measured, **common)
            print(name, family, common, found, sep="\n", flush=True)
            if (name, family) == ("eight schools, centred", "mean_field"):
                found.plot(DOCS / "images" / "ranks.svg", names=["mu", "tau", "theta[0]", "theta[1]"])


def main() -> None:
    if sys.argv[1:] != ["--tables"]:
        run()
    import many_tables

    many_tables.write_calibration(RESULTS, DOCS / "calibration.md")


if __name__ == "__main__":
    main()
