"""Compiled sweeps over fixed noise, chunk by chunk: all evaluations of the model in a fit on fixed draws.

Trust-region candidates, products for conjugate gradients, the Hessian at the mean and the final checks are all sweeps.
There are two programs, each for any number of draws: `gradients` computes values and gradients, `products` computes
Hessian-vector products, forward over reverse. The remaining vector operations run in numpy on the host: inside the
programs they would take longer to compile than the model itself. The family defines how draws depend on the parameters
(`curvi.family.path`).

On a mesh of devices the draws of a chunk are spread over its axis `draws`, in groups, one for each device
(`curvi.estimate.fixed_draws.groups`).
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from curvi.estimate.fixed_draws.groups import CHUNK, ONE_GROUP, Groups
from curvi.estimate.hybrid import weighed
from curvi.family import Family
from curvi.model.minibatch import MinibatchTarget
from curvi.model.over_draws import over_draws
from curvi.model.placement import Placement, constrain, on_host
from curvi.model.target import AbstractTarget
from curvi.record.packed import Unpack, combine, pack, split_structure

# For XLA on a CPU. Level 3 takes longer to compile than level 1, and its code for wide loops can be slower. Fusion
# emitters double the compilation time and do not speed up small loops; JAX 0.11 removed the option. XLA raises an error
# for unknown options, and the next row is tried.
_OPTIONS = ({"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False},)
_OPTIONS += ({"xla_backend_optimization_level": 1}, {})
_row = [0 if jax.__version_info__ < (0, 11) else 1]


def program(*static: int):
    """A decorator that compiles a function with these static arguments, with XLA options for fast compilation.

    Equinox's `filter_jit` would have ten times the overhead per call, which matters for short calls.
    """

    def compiled(function):
        @functools.cache
        def version(row: int):
            return jax.jit(function, static_argnums=static, compiler_options=_OPTIONS[row])

        @functools.wraps(function)
        def run(*arguments):
            try:
                return version(_row[0])(*arguments)
            except jax.errors.JaxRuntimeError as error:
                if "No such compile option" not in str(error):
                    raise
            _row[0] += 1
            return run(*arguments)

        return run

    return compiled


MOST_PARTS, LEAST_PARTS = 8, 4  # independent parts of the noise, for standard errors


class Buffer(NamedTuple):
    """Noise in a buffer of fixed size, of which the first `num_chunks` chunks are in use."""

    noise: Float[Array, "M *chunk n"]
    part: Int[Array, " M"]  # index of the independent part of the noise of each chunk
    num_chunks: Int[Array, ""]
    rows: Int[Array, "M B"]  # minibatch of each chunk; B = 0 where the target is not minibatched
    before: Float[Array, " P"]  # parameters at which factors without reparameterisation were drawn


class Gradients(NamedTuple):
    """Value and gradient in the coordinates of the path. Sums over chunks are sums of means over their draws.

    For a hybrid q, ln q of the weighted factors is subtracted from ln p, and the gradient is that of this difference
    times the importance weight.
    """

    values: Any  # (M, chunk), ln p of each draw
    part_grads: Any  # (G, C), gradient of ln p, summed over the chunks of each part
    # For a hybrid q, else None: the weights of the draws, and their gradients as above.
    weights: Any = None
    weight_grads: Any = None
    # The entropy of q or its substitute, its gradient and the Fisher information; None where the host computes them.
    exact: Any = None
    exact_grad: Any = None
    fisher: Any = None


class Products(NamedTuple):
    """Derivatives of the gradients along a direction, summed over chunks."""

    product: Any
    weight_product: Any = None
    exact_product: Any = None


class Plan(NamedTuple):
    """What else a program is compiled for: how many chunks have their single draws kept, the groups of draws, and how
    many draws memory has room for at a time.
    """

    num_kept: int
    groups: Groups = ONE_GROUP
    at_once: int = CHUNK


class Sweeps:
    """The two programs for one target and family, as functions of numpy vectors.

    Each also returns results at single draws for the first chunks (`Plan.num_kept`), which give rows of a Hessian.
    """

    def __init__(self, target: AbstractTarget, q: Family, size: int, plan: Plan):
        self.plan = plan
        self.structure, self.arrays = self.inputs(target, q)
        self._dtype = np.dtype(q.params.dtype)
        path, hybrid = q.path, not q.reparameterised
        length = path.coordinates(np.asarray(q.params, np.float64)).size
        each, summed, vector = (size, CHUNK), (MOST_PARTS, length), (length,)
        weights = (each, summed) if hybrid else (None, None)
        exact = (None, None, None) if path.known_to_host else ((), vector, jax.eval_shape(q.fisher))
        self._gradients = Unpack(Gradients(each, summed, *weights, *exact))
        exact_product = None if path.known_to_host else vector
        self._products = Unpack(Products(vector, vector if hybrid else None, exact_product))

    def inputs(self, target: AbstractTarget, q: Family) -> tuple:
        """The structure and the arrays of a target and a q, on the devices of the mesh."""
        structure, arrays = split_structure(target, q)
        mesh = self.plan.groups.mesh
        return structure, arrays if mesh is None else Placement(mesh).put_all(arrays)

    def gradients(self, c: np.ndarray, buffer: Buffer) -> Gradients:
        return self.gradients_and_kept(c, buffer)[0]

    def gradients_and_kept(self, c: np.ndarray, buffer: Buffer) -> tuple[Gradients, jax.Array]:
        """`Gradients`, and the gradients in x at the draws that are kept, which stay on the device (`rows_of`)."""
        packed, kept = self._run(run_gradients, buffer, c)
        return self._gradients(packed), kept

    def gradients_at(self, c: np.ndarray, buffer: Buffer) -> np.ndarray:
        """The gradient in x at each draw."""
        return rows_of(self._run(run_gradients, buffer, c)[1])

    def products(self, c: np.ndarray, along: np.ndarray, buffer: Buffer) -> Products:
        return self._products(self._run(run_products, buffer, c, along)[0])

    def products_at(self, c: np.ndarray, along: np.ndarray, buffer: Buffer) -> np.ndarray:
        """The derivative of the gradient in x along the direction in which each draw moves."""
        return rows_of(self._run(run_products, buffer, c, along)[1])

    def _run(self, run, buffer: Buffer, *vectors):
        cast = (vector.astype(self._dtype) for vector in vectors)
        return run(self.structure, self.plan, self.arrays, buffer, *cast)


def rows_of(kept) -> np.ndarray:
    """One row per kept draw."""
    rows = on_host(kept).astype(np.float64, copy=False)
    if rows.ndim == 4:  # in groups, of which the last may have draws that do not count
        rows = rows.reshape(len(rows), -1, rows.shape[-1])[:, :CHUNK]
    return rows.reshape(-1, rows.shape[-1])


@program(0, 1)
def run_gradients(structure, plan: Plan, arrays, buffer: Buffer, c):
    """`Gradients` as one vector, and the gradients in x of the draws that are kept."""
    target, q = combine(structure, arrays)
    num_kept, groups, at_once = plan
    path, hybrid, each = q.path, not q.reparameterised, over_draws(target, groups.size, at_once)

    def add(index, sums):
        values, grads, weights, weight_grads, kept = sums
        density, noise = _density(target, _at(buffer.rows, index)), _at(buffer.noise, index)
        own = _own_part(buffer, index, c.dtype)
        if hybrid:
            one = weighed(density, q, buffer.before)

            def means(noise, each):
                value, weight, grad, weight_grad = each(lambda e: one(e)(c))(noise)
                return value, weight, grad.mean(0), weight_grad.mean(0)

            value, weight, grad, weight_grad = groups.map(means, each, noise)
            weights = _put(weights, weight, index)
            weight_grads = weight_grads + own * weight_grad[..., None, :]
            return _put(values, value, index), grads + own * grad[..., None, :], weights, weight_grads, kept

        def slopes_of(noise, each):
            return path.gradients(q, lambda q, x: q.log_joint(density, x), c, noise, each)

        value, grad, slopes = groups.map(slopes_of, each, noise)
        kept = _put(kept, slopes, index) if num_kept else kept
        return _put(values, value, index), grads + own * grad[..., None, :], weights, weight_grads, kept

    each_draw = groups.zeros((len(buffer.noise),), True, (), c.dtype)
    summed = groups.zeros((), False, (MOST_PARTS, c.size), c.dtype)
    weights = (each_draw, summed) if hybrid else (None, None)
    zero = (each_draw, summed, *weights, _nothing_kept(buffer, plan, c.dtype))
    values, grads, weight, weight_grads, kept = jax.lax.fori_loop(0, buffer.num_chunks, add, zero)
    found = Gradients(groups.one_axis(values), groups.total(grads))
    if hybrid:
        found = found._replace(weights=groups.one_axis(weight), weight_grads=groups.total(weight_grads))
    if not path.known_to_host:
        exact, exact_grad = jax.value_and_grad(_exact(q, buffer))(c)
        found = found._replace(exact=exact, exact_grad=exact_grad, fisher=q.replace(c).metric())
    return constrain(pack(found), groups.mesh), kept


@program(0, 1)
def run_products(structure, plan: Plan, arrays, buffer: Buffer, c, along):
    """`Products` as one vector, and the products at the draws that are kept."""
    target, q = combine(structure, arrays)
    num_kept, groups, at_once = plan
    path, hybrid, each = q.path, not q.reparameterised, over_draws(target, groups.size, at_once)

    def add(index, sums):
        product, weight_product, kept = sums
        density, noise = _density(target, _at(buffer.rows, index)), _at(buffer.noise, index)
        if hybrid:
            one = weighed(density, q, buffer.before)

            def means(noise, each):
                moved, turned = each(lambda e: jax.jvp(one(e), (c,), (along,))[1][2:])(noise)
                return moved.mean(0), turned.mean(0)

            moved, turned = groups.map(means, each, noise)
            return product + moved, weight_product + turned, kept

        def bent_by(noise, each):
            return path.products(q, lambda q, x: q.log_joint(density, x), c, along, noise, each)

        found, bent = groups.map(bent_by, each, noise)
        return product + found, weight_product, _put(kept, bent, index) if num_kept else kept

    zero = groups.zeros((), False, (c.size,), c.dtype)
    start = (zero, zero if hybrid else None, _nothing_kept(buffer, plan, c.dtype))
    product, weight_product, kept = jax.lax.fori_loop(0, buffer.num_chunks, add, start)
    exact = None if path.known_to_host else jax.jvp(jax.grad(_exact(q, buffer)), (c,), (along,))[1]
    turned = groups.total(weight_product) if hybrid else None
    return constrain(pack(Products(groups.total(product), turned, exact)), groups.mesh), kept


def _density(target: AbstractTarget, rows):
    """The log density; for a minibatched target, on these rows."""
    return target.on_rows(rows) if isinstance(target, MinibatchTarget) else target.full()


def _exact(q: Family, buffer: Buffer):
    if q.reparameterised:
        return lambda params: q.replace(params).entropy()
    return lambda params: q.replace(params).exact_part(q.replace(buffer.before))


def _nothing_kept(buffer: Buffer, plan: Plan, dtype):
    return plan.groups.zeros((plan.num_kept,), True, buffer.noise.shape[-1:], dtype)


def _at(rows, index):
    return jax.lax.dynamic_index_in_dim(rows, index, 0, keepdims=False)


def _put(rows, row, index):
    """`rows` with `row` at `index`, or at the last index if that is smaller; such rows are not used."""
    return jax.lax.dynamic_update_index_in_dim(rows, row, index, 0)


def _own_part(buffer: Buffer, index, dtype):
    """A one-hot column for the part of the chunk; a scatter would take longer to compile than the whole sweep."""
    return (jnp.arange(MOST_PARTS) == _at(buffer.part, index)).astype(dtype)[:, None]
