"""What the compiled programs of growing draws share: sweeps over fixed noise, chunk by chunk.

Everything that a fit asks for is such a sweep: a candidate of the trust region, a product for conjugate gradients, the
Hessian at the mean, the checks at the end. There are two programs, each of which serves every number of draws: `slopes`
has value and gradient, `bends` has Hessian products, forward over reverse. What is done with the numbers is a few
operations on vectors, in numpy on the host: as part of the programs it would take longer to compile than the
model itself (docs/design.md). `normal_sweep` has the programs for a q of normal factors, `family_sweep` those for any
other. A program returns one vector, so that there is one transfer from the device; tuples in the place of modules,
since a sweep of a small model takes no longer than making a module does.
"""

import functools
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from curvi.family import MeanField
from curvi.model.minibatch import MinibatchTarget
from curvi.model.target import AbstractTarget

CHUNK = 32  # draws of one vectorised pass
MOST_PARTS = 8


_ARRAY = object()  # stands for an array in a structure


class Buffer(NamedTuple):
    """Noise in a buffer of fixed size, of which the first `num_chunks` chunks are in use."""

    noise: Float[Array, "M chunk n"]
    part: Int[Array, " M"]  # to which of the independent parts of the noise a chunk belongs
    num_chunks: Int[Array, ""]
    rows: Int[Array, "M B"]  # of the minibatch that a chunk sees; B = 0 where the target is not minibatched
    before: Float[Array, " P"]  # where factors that are not reparameterised were drawn


class Slopes(NamedTuple):
    """Value and gradient. Sums over chunks are of the means over their draws.

    For a hybrid q, ln p is less ln q of the factors that stay, and its gradient is that of ln p times the weight.
    """

    values: Float[Array, "M chunk"]  # ln p of each draw
    part_grads: Float[Array, "G P"]  # gradient of ln p, summed over the chunks of each part
    # Of a hybrid q (`curvi.estimate.hybrid`), else None: the weights of the draws, and their gradients as above.
    weights: Float[Array, "M chunk"] | None
    weight_grads: Float[Array, "G P"] | None
    # The entropy of q, or what stands in its place, and the Fisher information.
    exact: Float[Array, ""]
    exact_grad: Float[Array, " P"]
    fisher: tuple[Float[Array, "n k k"], ...]
    scales: Float[Array, " n"] | None = None  # of normal factors, in the place of their Fisher information


class Bends(NamedTuple):
    """Derivatives of the gradients of `Slopes` along a direction, summed over chunks."""

    product: Float[Array, " P"]
    weight_product: Float[Array, " P"] | None
    exact_product: Float[Array, " P"] | None  # None for zero


# For XLA on a CPU. Level 3 takes longer to compile than level 1, and what it makes of wide loops can be slower. Code
# from fusion emitters takes twice as long to compile as code without, and runs no faster in small loops; JAX 0.11 has
# lost the choice. What XLA does not know it refuses, and the next row is tried.
_OPTIONS = ({"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False},)
_OPTIONS += ({"xla_backend_optimization_level": 1}, {})
_row = [0 if jax.__version_info__ < (0, 11) else 1]


def program(*static: int):
    """Compiles a function with these static arguments, for fast compilation where XLA knows how.

    Equinox's filtered jit would do the same at ten times the overhead a call, which counts where a call is short.
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


def split_structure(target: AbstractTarget, q: MeanField):
    """What the programs want of a target and a q: a hashable structure, and arrays.

    The arrays in a plain tuple: modules would be taken apart at every call.
    """
    leaves, tree = jax.tree.flatten((target, q))
    arrays = tuple(leaf for leaf in leaves if eqx.is_array(leaf))
    return (tuple(_ARRAY if eqx.is_array(leaf) else leaf for leaf in leaves), tree), arrays


def combine(structure, arrays) -> tuple[AbstractTarget, MeanField]:
    rest, tree = structure
    given = iter(arrays)
    return jax.tree.unflatten(tree, [next(given) if leaf is _ARRAY else leaf for leaf in rest])


def log_density(target: AbstractTarget, q: MeanField, rows):
    """ln p of a draw in working coordinates; of a minibatched target on these rows."""
    density = target.on_rows(rows) if isinstance(target, MinibatchTarget) else target.full()

    def log_p(x):
        theta, log_det = q.to_model(x)
        return density(theta) + log_det

    return log_p


def at(rows, index):
    return jax.lax.dynamic_index_in_dim(rows, index, 0, keepdims=False)


def put(rows, row, index):
    """`rows` with `row` at `index`, or at the end where that is beyond it: none of these is kept for use then."""
    return jax.lax.dynamic_update_index_in_dim(rows, row, index, 0)


def own_part(buffer: Buffer, index, dtype):
    """A column with a one where the chunk belongs: scatters would compile longer than all of a sweep."""
    return (jnp.arange(MOST_PARTS) == at(buffer.part, index)).astype(dtype)[:, None]


def pack(found):
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(found)])


class Unpack:
    """Takes the vector of a program apart, given the shapes of what was packed."""

    def __init__(self, shapes):
        leaves, self.tree = jax.tree.flatten(shapes, is_leaf=_is_shape)
        ends = np.cumsum([0, *(math.prod(shape) for shape in leaves)])
        self.places = [(slice(start, end), shape) for start, end, shape in zip(ends, ends[1:], leaves)]

    def __call__(self, vector):
        whole = np.asarray(vector).astype(np.float64, copy=False)
        return jax.tree.unflatten(self.tree, [whole[place].reshape(shape) for place, shape in self.places])


def _is_shape(node) -> bool:
    return type(node) is tuple and all(isinstance(size, int) for size in node)
