"""Fits on meshes of virtual devices, for `test_mesh.py`: a process of its own, since JAX counts its devices once.

Prints one JSON object. A case is a model and a mesh by the sizes of its axes; a new one is a row.
"""

import json
import re
import sys
import tempfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import curvi
from curvi.estimate.fixed_draws.groups import Groups
from curvi.estimate.fixed_draws.objective import Objective
from curvi.estimate.fixed_draws.sweep import run_gradients, run_products
from curvi.estimate.streamed import programs
from curvi.estimate.streamed.objective import StreamedObjective
from curvi.methods import GrowingDraws, StreamedNewton
from curvi.model.placement import Placement
from curvi.model.spread import place

MANY = 4096  # latents
rng = np.random.default_rng(0)
X = rng.normal(size=(1001, 4))  # no number of devices here divides these rows
Y = (rng.random(1001) < 1 / (1 + np.exp(-X @ np.array([1.0, -0.5, 0.2, 0.0])))).astype(float)


def random_key():
    """The key of all fits; no constant, since processes must find each other before there is an array."""
    return jax.random.key(0)


def mesh_of(**axes) -> Mesh:
    number = int(np.prod(list(axes.values())))
    return Mesh(np.array(jax.devices()[:number]).reshape(tuple(axes.values())), tuple(axes))


def log_prior(t):
    return -0.5 * jnp.sum((t["beta"] / 2) ** 2)


def log_row(t, row):
    logit = row["x"] @ t["beta"]
    return row["y"] * logit - jnp.logaddexp(0.0, logit)


def rows(dtype=float):
    data = {"x": X.astype(dtype), "y": Y.astype(dtype)}
    return curvi.MinibatchTarget(log_prior, log_row, data, len(X), {"beta": np.zeros(4, dtype)})


def many_rows():
    """Without products of matrices, whose operations XLA does not count where a library computes them."""
    x = rng.normal(size=(1600, 4))

    def one(t, row):
        return -sum(jnp.logaddexp(0.0, row[at] + t["beta"][at]) for at in range(4))

    return curvi.MinibatchTarget(log_prior, one, x, len(x), {"beta": np.zeros(4)})


def plate():
    def model(x, y):
        beta = numpyro.sample("beta", dist.Normal(0, 2).expand([4]).to_event(1))
        with numpyro.plate("n", len(y)):
            numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)

    return curvi.from_numpyro(model, X, Y)


def plain():
    """A log density that knows of no rows, and whose data the caller places."""
    mesh = mesh_of(rows=7)
    x = jax.device_put(X, NamedSharding(mesh, PartitionSpec("rows")))  # 1,001 = 7 x 143
    y = jax.device_put(Y, NamedSharding(mesh, PartitionSpec("rows")))
    return curvi.Target(lambda t: log_prior(t) + log_row(t, {"x": x, "y": y}).sum(), {"beta": np.zeros(4)})


def switch():
    """Continuous and discrete latents: draws with weights."""
    y = jnp.asarray([0.3, 1.1, 0.8, 2.0])

    def log_density(t):
        mean = t["m"] + t["on"] * 0.7
        return -0.5 * jnp.sum((y - mean) ** 2) - 0.5 * t["m"] ** 2 + 0.3 * t["on"]

    return curvi.Target(log_density, {"m": np.zeros(()), "on": np.array(0)}, {"on": dist.constraints.boolean})


def chain():
    def log_density(t):
        x = t["x"]
        return -jnp.sum(jnp.logaddexp(0.0, x)) + 0.4 * x.sum() - 0.5 * jnp.sum(jnp.diff(x) ** 2) - 0.05 * x @ x

    return curvi.Target(log_density, {"x": np.zeros(33)})


NEWTON = StreamedNewton(first_draws=32, fresh_draws=256, max_draws=1024)
MEAN_FIELD = {"family": "mean_field"}
CASES = {
    "rows": (rows, {"rows": 8}, {}),
    "rows, float32": (lambda: rows(dtype=np.float32), {"rows": 2}, MEAN_FIELD),
    "draws": (plate, {"draws": 8}, {}),
    "draws that do not divide": (plate, {"draws": 3}, MEAN_FIELD),
    "rows of a plate and draws": (plate, {"rows": 2, "draws": 4}, MEAN_FIELD),
    "rows that the caller placed": (plain, {"rows": 7}, MEAN_FIELD),
    "weighted draws": (switch, {"draws": 3}, {"method": GrowingDraws()}),
    "streamed rows": (rows, {"rows": 8}, {"method": NEWTON}),
    "streamed draws and latents": (chain, {"draws": 2, "latents": 3}, {"method": NEWTON}),
}
SLOW = ("draws", "rows, float32", "rows that the caller placed", "streamed rows", "streamed draws and latents")


def fitted(target, mesh, options):
    fit = curvi.fit(target, key=random_key(), progress=False, mesh=mesh, **options)
    return {
        "converged": fit.converged,
        "elbo": fit.elbo,
        "gain": fit.remaining_gain,
        "params": np.asarray(fit.q.params, float).tolist(),
        "evaluations": fit.counts.evaluations,
        "text": str(fit),
    }


def operations(axis: str, number: int):
    """Operations of two programs on each device, and the largest array that devices exchange."""
    placement = Placement.on(mesh_of(**{axis: number}))
    programs = streamed_programs(placement) if axis == "latents" else stored_programs(placement)
    found, largest = [], 0
    for compiled in programs:
        found.append(compiled.cost_analysis()["flops"])
        for line in compiled.as_text().splitlines():
            moved = re.match(r".*?= (.*?) (all-reduce|all-gather|all-to-all|collective-permute)(-start)?\(", line)
            if moved:
                shapes = re.findall(r"\b[fsu]\d+\[([\d,]*)\]", moved[1])
                sizes = [int(np.prod([int(n) for n in shape.split(",") if n])) for shape in shapes]
                largest = max([largest, *sizes])
    return {"flops": found, "largest": largest}


def stored_programs(placement: Placement):
    target = place(many_rows(), placement)
    q = curvi.MeanField(target)
    objective = Objective(target, q, random_key(), 256, Groups(placement.mesh))
    noise = objective.noise(np.asarray(q.params, float), (0,), 64)
    sweeps, c = objective.sweeps, objective.path.coordinates(np.asarray(q.params, float))
    for run, vectors in ((run_gradients, (c,)), (run_products, (c, c))):
        program = jax.jit(run.__wrapped__, static_argnums=(0, 1))
        yield program.lower(sweeps.structure, sweeps.plan, sweeps.arrays, noise.buffer, *vectors).compile()


def streamed_programs(placement: Placement):
    target = curvi.Target(lambda t: -jnp.sum(jnp.cosh(t["x"])), {"x": np.zeros(MANY)})
    objective = StreamedObjective.of(target, curvi.MeanField(target), random_key(), 16, 1024, placement)
    q, mesh, draws = objective.placed(curvi.MeanField(target)), placement.mesh, np.int32(128)
    key, v = objective.seed((0,)), q.params
    sweep = lambda q: programs.sweep(target, q, key, draws, num_parts=8, chunk=16, mesh=mesh)  # noqa: E731
    solve = lambda q: programs.solve(target, q, key, draws, v, v, 1.0, 0.1, np.int32(9), chunk=16, mesh=mesh)  # noqa: E731
    for program in (sweep, solve):
        yield jax.jit(program).lower(q).compile()


def explicit_axes():
    """ln p of rows that the caller placed on a mesh with explicit axes, and what is said of a closure over them."""
    mesh = jax.make_mesh((7,), ("rows",), axis_types=(AxisType.Explicit,))
    x, y = (jax.device_put(array, NamedSharding(mesh, PartitionSpec("rows"))) for array in (X, Y))
    target = place(
        curvi.MinibatchTarget(log_prior, log_row, {"x": x, "y": y}, 1001, {"beta": np.zeros(4)}), Placement.on(mesh)
    )
    value = eqx.filter_jit(lambda t: t.full()({"beta": jnp.full(4, 0.3)}))(target)
    closed = curvi.Target(lambda t: log_prior(t) + log_row(t, {"x": x, "y": y}).sum(), {"beta": np.zeros(4)})
    try:
        place(closed, Placement.on(mesh))
    except ValueError as error:
        return [float(value), str(error)]
    return [float(value), ""]


def streamed():
    """The gradient and a solve of streamed draws at one q: on one device, and with both spread unevenly."""
    found = []
    for axes in ({}, {"draws": 3, "latents": 2}):
        placement = Placement.on(mesh_of(**axes)) if axes else None
        target = place(chain(), placement) if placement else chain()
        q = curvi.MeanField(target)
        objective = StreamedObjective.of(target, q, random_key(), 8, 64, placement)
        look = objective.look(q, (0,), 64, parts=True)
        step = objective.solve(look, ((1,), 16), look.gradient, 10.0, 1e-6)
        numbers = [look.value, *np.asarray(look.gradient), *np.asarray(step.x), float(step.predicted)]
        found.append(np.asarray(numbers, float).tolist())
    return found


def resumed():
    """The parameters of a fit in one piece, and of one that was saved, loaded and resumed; what other meshes say."""
    target, settings = rows(), {"progress": False, "tolerance": 1e-9}
    two = mesh_of(rows=2)
    whole = curvi.fit(target, key=random_key(), mesh=two, num_steps=6, **settings)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fit.curvi"
        curvi.fit(target, key=random_key(), mesh=two, num_steps=3, checkpoint=path, **settings)
        part = curvi.fit(target, start=path, mesh=two, num_steps=3, **settings)
        words = []
        for other in (None, mesh_of(rows=8)):
            try:
                curvi.fit(target, start=path, mesh=other, num_steps=3, **settings)
            except ValueError as error:
                words.append(str(error))
    return {"whole": whole.q.params.tolist(), "part": part.q.params.tolist(), "words": words}


def rows_that_fill_up():
    """ln p on a mesh, and where rows that only fill up are counted as well: the mistake that the laws must see."""
    target = rows()
    spread = place(target, Placement.on(mesh_of(rows=8)))
    wrong = eqx.tree_at(lambda t: t.counts, spread, jnp.ones_like(spread.counts))
    theta = {"beta": jnp.full(4, 0.3)}
    return [float(eqx.filter_jit(lambda t: t.full()(theta))(one)) for one in (target, spread, wrong)]


def main(names):
    jax.config.update("jax_enable_x64", True)
    found = {}
    for name in names:
        make, axes, options = CASES[name]
        one = make() if make is not plain else rows()
        found[name] = {
            "one": fitted(one, None, {"method": GrowingDraws(), **options}),
            "mesh": fitted(make(), mesh_of(**axes), options),
        }
    numbers = [(axis, number) for axis in ("rows", "draws", "latents") for number in (1, 2, 8)]
    cost = {f"{axis} {number}": operations(axis, number) for axis, number in numbers}
    more = {"resumed": resumed(), "fill": rows_that_fill_up(), "streamed": streamed(), "explicit": explicit_axes()}
    print(json.dumps({"fits": found, "cost": cost, **more}))


if __name__ == "__main__":
    main(sys.argv[1:])
