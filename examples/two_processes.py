"""A fit by two processes, each with its own files of the data: on a laptop here, on two machines alike.

Run with `python examples/two_processes.py`: it writes two files of rows and starts both processes.
"""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import curvi


def regression(rows: curvi.Rows) -> curvi.MinibatchTarget:
    """A logistic regression on these rows."""

    def log_prior(t):
        return -0.5 * jnp.sum((t["slopes"] / 2) ** 2)

    def log_likelihood_row(t, row):
        logit = row["x1"] * t["slopes"][0] + row["x2"] * t["slopes"][1]
        return row["y"] * logit - jnp.logaddexp(0.0, logit)

    return curvi.MinibatchTarget(log_prior, log_likelihood_row, rows, 1000, {"slopes": np.zeros(2)})


def work(folder: Path) -> None:
    """What every process runs: the same program, with its own files."""
    mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    target = regression(curvi.Rows(str(folder / f"part-{jax.process_index()}-*.csv")))
    fit = curvi.fit(
        target, key=jax.random.key(0), family="full_rank", mesh=mesh, checkpoint=folder / "fit.curvi", progress=False
    )
    # Every process has the whole q. What needs the data, such as this text, all of them compute together.
    text = str(fit)
    if jax.process_index() == 0:
        print(text)


def write_rows(folder: Path) -> None:
    """Files of different lengths for two processes."""
    rng = np.random.default_rng(0)
    for process, num_rows in enumerate((3000, 2001)):
        x = rng.normal(size=(num_rows, 2))
        y = rng.random(num_rows) < 1 / (1 + np.exp(-x @ np.array([1.0, -0.5])))
        table = np.column_stack([x, y])
        np.savetxt(folder / f"part-{process}-0.csv", table, delimiter=",", header="x1,x2,y", comments="", fmt="%.9g")


def start_two(folder: Path) -> None:
    """Start both processes and wait for them."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, __file__, address, str(folder)]
    started = [
        subprocess.Popen(
            [*command, str(i)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for i in range(2)
    ]
    said = [process.communicate()[0] for process in started]
    print(said[0])
    if any(process.returncode for process in started):
        raise RuntimeError("\n".join(said))


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[3].isdigit():
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[3]))
        work(Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as name:
            write_rows(Path(name))
            start_two(Path(name))
            fit = curvi.load(Path(name) / "fit.curvi")
            print(fit.mean()["slopes"])
