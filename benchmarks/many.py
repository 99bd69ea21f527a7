"""A thousand small regressions together, beside a loop of single fits.

    python benchmarks/many.py             runs everything, in processes of their own
    python benchmarks/many.py --tables    writes the table of docs/many.md

Data: 50 rows, three covariates and an intercept; a normal response whose sd is a latent, or a binary one. The loops fit
the same data by `curvi.fit` of the same family, as the model is written:

- *new targets*: `from_numpyro` and `fit` for each data set, which compiles for each; the first 30, times 1,000 / 30.
- *warm*: the arrays in one target replaced, so that nothing is compiled after the first fits; all 1,000. No loop of
  single fits is faster.

Seconds of `fit_many` are those of one call, its tracing and compiling included; *again* is a second call in the
process, which traces and compiles again. Seconds of the processor tell more where a machine is shared.
Lines go to results/many.jsonl.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "many.jsonl"
PAGE = Path(__file__).parent.parent / "docs" / "many.md"
PROBLEMS, FAMILIES = ("linear", "logistic"), ("full_rank", "mean_field")
SEEDS = {"together": (0, 1, 2), "warm": (0,), "new targets": (0,)}
COUNT, NEW = 1000, 30


def data(problem: str, seed: int):
    """Covariates (data sets, rows, 3) and responses."""
    import numpy as np

    rng = np.random.default_rng(seed)
    x = rng.normal(size=(COUNT, 50, 3))
    fitted = 0.3 + np.einsum("nij,j->ni", x, [1.0, -1.0, 0.5])
    if problem == "linear":
        return x, fitted + rng.normal(size=fitted.shape)
    return x, (rng.uniform(size=fitted.shape) < 1 / (1 + np.exp(-fitted))).astype(float)


def model(problem: str):
    import numpyro
    import numpyro.distributions as dist

    def regression(x, y):
        intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
        slopes = numpyro.sample("slopes", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
        fitted = intercept + x @ slopes
        if problem == "linear":
            numpyro.sample("y", dist.Normal(fitted, numpyro.sample("sd", dist.HalfNormal(2.0))), obs=y)
        else:
            numpyro.sample("y", dist.Bernoulli(logits=fitted), obs=y)

    return regression


def child(problem: str, family: str, method: str, seed: int) -> dict:
    import jax
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    import curvi

    (x, y), regression, keys = data(problem, seed), model(problem), jax.random.split(jax.random.key(seed), COUNT)
    options = {"family": family, "centering": "off", "marginals": "normal", "progress": False}
    if method == "together":
        runs, walls, processors = [], [], []
        for _ in range(2):
            began, used = time.perf_counter(), time.process_time()
            runs.append(curvi.fit_many(regression, x, y, key=keys[0], family=family))
            walls.append(time.perf_counter() - began)
            processors.append(time.process_time() - used)
        many = runs[-1]
        counts = {"gradients": many.counts.gradient / COUNT, "fits": COUNT}
        found = {"seconds": walls[0], "again": walls[1], **counts}
        found |= {"processor": processors[0], "processor_again": processors[1]}
        found |= {"converged": int(many.converged.sum()), "singly": int((~many.together).sum())}
        return found | {"elbo": many.elbo[:NEW].tolist(), "elbo_se": many.elbo_se[:NEW].tolist()}
    target = curvi.from_numpyro(regression, x[0], y[0])
    if method == "new targets":
        targets = lambda i: curvi.from_numpyro(regression, x[i], y[i])  # noqa: E731
    else:
        targets = lambda i: with_data(target, (x[0], y[0]), (x[i], y[i]))  # noqa: E731
        for i in range(3):
            curvi.fit(targets(i), key=keys[i], **options)
    number = NEW if method == "new targets" else COUNT
    began, used = time.perf_counter(), time.process_time()
    fits = [curvi.fit(targets(i), key=keys[i], **options) for i in range(number)]
    seconds, processor = time.perf_counter() - began, time.process_time() - used
    calls = np.mean([fit.counts.gradient for fit in fits])
    found = {"seconds": seconds * COUNT / number, "processor": processor * COUNT / number}
    found |= {"fits": number, "gradients": calls}
    found |= {"converged": sum(fit.converged for fit in fits)}
    return found | {"elbo": [f.elbo for f in fits[:NEW]], "elbo_se": [f.elbo_se for f in fits[:NEW]]}


def with_data(target, before, after):
    """The target with other data: programs that were compiled for it serve again."""
    import equinox as eqx
    import jax.numpy as jnp
    import numpy as np

    consts = list(target.function.consts)
    for old, new in zip(before, after):
        at = next(i for i, const in enumerate(consts) if np.array_equal(const, old))
        consts[at] = jnp.asarray(new)
    return eqx.tree_at(lambda t: t.function.consts, target, consts)


def run(problem: str, family: str, method: str, seed: int) -> None:
    import lines

    command = [sys.executable, __file__, "--child", problem, family, method, str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    lines.append(RESULTS, problem, method, {"family": family, "data_sets": COUNT}, seed, **found)
    print(problem, family, method, seed, {k: v for k, v in found.items() if k not in ("elbo", "elbo_se")}, flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        problem, family, method, seed = sys.argv[2:]
        print(json.dumps(child(problem, family, method, int(seed)), default=float))
        return
    if sys.argv[1:] != ["--tables"]:
        for method, seeds in SEEDS.items():
            for problem in PROBLEMS:
                for family in FAMILIES:
                    for seed in seeds:
                        run(problem, family, method, seed)
    import many_tables

    many_tables.write(RESULTS, PAGE)


if __name__ == "__main__":
    main()
