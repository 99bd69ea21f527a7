"""What an old q saves when data are added: the same fit from the default start and from q of the fit to the old data.

    python benchmarks/new_data.py             runs everything
    python benchmarks/new_data.py --tables    writes the table of docs/many.md

A tenth of new rows is added. Both fits end by the same certificate; `difference` is the ELBO of the update less that of
the new fit, on common draws. Lines go to results/new_data.jsonl.
"""

import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "new_data.jsonl"
PAGE = Path(__file__).parent.parent / "docs" / "many.md"
SEEDS = (0, 1, 2)
ROWS, MORE = 2000, 200


def problems() -> dict:
    """Model and data by name, all rows."""
    import jax.numpy as jnp
    import numpy as np
    import numpyro
    import numpyro.distributions as dist

    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS + MORE, 10)) @ (np.eye(10) + 0.5)
    group = rng.integers(0, 30, ROWS + MORE)
    slopes = rng.normal(size=10) / 3

    def logistic(x, y):
        b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([10]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)

    def poisson(x, y):
        b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([10]).to_event(1))
        numpyro.sample("y", dist.Poisson(jnp.exp(0.3 * x @ b)), obs=y)

    def groups(group, y):
        mu, tau = numpyro.sample("mu", dist.Normal(0.0, 5.0)), numpyro.sample("tau", dist.HalfNormal(2.0))
        sd = numpyro.sample("sd", dist.HalfNormal(2.0))
        with numpyro.plate("groups", 30):
            a = numpyro.sample("a", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(jnp.take(a, group), sd), obs=y)

    binary = (rng.uniform(size=ROWS + MORE) < 1 / (1 + np.exp(-x @ slopes))).astype(float)
    counts = rng.poisson(np.exp(0.3 * x @ slopes))
    effects = np.take(rng.normal(size=30), group) + rng.normal(size=ROWS + MORE)
    return {
        "logistic, 10 latents": (logistic, (x, binary)),
        "Poisson, 10 latents": (poisson, (x, counts)),
        "30 groups, 33 latents": (groups, (group, effects)),
    }


def run() -> None:
    import jax

    jax.config.update("jax_enable_x64", True)
    import curvi
    import lines

    for name, (model, data) in problems().items():
        old = curvi.from_numpyro(model, *(part[:ROWS] for part in data))
        target = curvi.from_numpyro(model, *data)
        for seed in SEEDS:
            keys = jax.random.split(jax.random.key(seed), 3)
            before = curvi.fit(old, key=keys[0], progress=False)
            anew = curvi.fit(target, key=keys[1], progress=False)
            update = curvi.fit(target, key=keys[2], family=before.q.onto(target), progress=False)
            difference = curvi.compare(update, anew)
            for method, fit in (("anew", anew), ("from the old q", update)):
                found = {"gradients": fit.counts.evaluations, "steps": len(fit.history), "compile": fit.seconds.compile}
                found |= {"outcome": fit.outcome.name, "family": type(fit.q).__name__, "run": fit.seconds.run}
                found |= {"difference": difference.difference, "difference_se": difference.difference_se}
                lines.append(RESULTS, name, method, {"rows": ROWS, "new": MORE}, seed, **found)
                print(name, method, seed, found, flush=True)


def main() -> None:
    if sys.argv[1:] != ["--tables"]:
        run()
    import many_tables

    many_tables.write_new_data(RESULTS, PAGE)


if __name__ == "__main__":
    main()
