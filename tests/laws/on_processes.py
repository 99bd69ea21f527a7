"""Fits by two processes of two virtual devices each, for `test_processes.py`. The first prints one JSON object."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import on_devices
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from on_devices import NEWTON, X, Y, log_prior, log_row, random_key

import curvi

NUM_ROWS = 1000
START = {"beta": np.zeros(4)}
HERE = slice(0, NUM_ROWS)  # of all rows


def mesh_of(**axes) -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(tuple(axes.values())), tuple(axes))


def minibatch(x, y):
    return curvi.MinibatchTarget(log_prior, log_row, {"x": x, "y": y}, NUM_ROWS, START)


def plain(x, y):
    return curvi.Target(lambda t: log_prior(t) + log_row(t, {"x": x, "y": y}).sum(), START)


def numpyro_model(x, y):
    def model(x, y):
        beta = numpyro.sample("beta", dist.Normal(0, 2).expand([4]).to_event(1))
        with numpyro.plate("n", len(y)):
            numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)

    return curvi.from_numpyro(model, x, y)


def chain(x, y):
    return on_devices.chain()


ROWS, STREAMED = {"rows": 4}, {"draws": 2, "latents": 2}
# The target, the axes of the mesh, whether each process has rows of its own, and options.
CASES = {
    "rows of all": (minibatch, ROWS, False, {}),
    "own rows": (minibatch, ROWS, True, {}),
    "own rows, plain": (plain, ROWS, True, {}),
    "own rows, NumPyro": (numpyro_model, ROWS, True, {}),
    "draws": (minibatch, {"draws": 2, "rows": 2}, False, {"family": "mean_field"}),
    "streamed": (chain, STREAMED, False, {"method": NEWTON}),
}


def numbers(fit):
    return {"converged": fit.converged, "elbo": fit.elbo, "params": np.asarray(fit.q.params, float).tolist()}


def main(process: int, address: str, folder: Path):
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, num_processes=2, process_id=process)
    own = slice(process * NUM_ROWS // 2, (process + 1) * NUM_ROWS // 2)
    found = {}
    for name, (make, axes, apart, options) in CASES.items():
        mesh = mesh_of(**axes)
        data = (X[HERE], Y[HERE])
        if apart:
            sharding = NamedSharding(mesh, PartitionSpec("rows"))
            data = [jax.make_array_from_process_local_data(sharding, array[own]) for array in (X, Y)]
        fit = curvi.fit(make(*data), key=random_key(), progress=False, mesh=mesh, **options)
        found[name] = {**numbers(fit), "text": str(fit)}
    settings = {"progress": False, "mesh": mesh_of(**ROWS), "tolerance": 1e-9}
    target, path = minibatch(X[HERE], Y[HERE]), folder / "fit.curvi"
    whole = curvi.fit(target, key=random_key(), num_steps=6, **settings)
    curvi.fit(target, key=random_key(), num_steps=3, checkpoint=path, checkpoint_seconds=0.0, **settings)
    part = curvi.fit(target, start=path, num_steps=3, **settings)
    try:
        other = curvi.MinibatchTarget(log_prior, log_row, {"x": X[own], "y": Y[own]}, 500, START)
        curvi.fit(other, key=random_key(), **settings)
        words = "none"
    except ValueError as error:
        words = str(error)
    short = curvi.fit(target, key=random_key(), max_seconds=1e-6, **settings)
    if process == 0:
        more = {"whole": numbers(whole), "part": numbers(part), "words": words, "short": short.outcome.name}
        print(json.dumps({"fits": found, **more}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
