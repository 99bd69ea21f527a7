"""Targets whose data lie spread over the devices of a mesh."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Bool

from curvi.model.latents import Latent
from curvi.model.location_scale import LocationScale
from curvi.model.minibatch import MinibatchTarget
from curvi.model.placement import ROWS, Placement, constrain, implicit, is_explicit
from curvi.model.row_sample import block_rows
from curvi.model.row_sums import sum_rows
from curvi.model.rows.rows import Rows
from curvi.model.target import AbstractTarget, LogDensity, Target


def place(target: AbstractTarget, placement: Placement) -> AbstractTarget:
    """The target with its arrays on a mesh: rows of data spread over the axis `rows`, all else copied to each device.

    Arrays that lie on the mesh already stay where they are.
    """
    if target.black_box or (target.streamed and ROWS not in placement.mesh.axis_names):
        return target  # for the method to refuse
    placement.check_same(target)
    if ROWS in placement.mesh.axis_names:
        if isinstance(target, MinibatchTarget):
            target = SpreadRows.of(target, placement)
        elif isinstance(target, Target) and target.data_rows is not None:
            target = _spread_constants(target, placement, target.data_rows)
    if any(map(is_explicit, jax.tree.leaves(target))):
        raise ValueError(
            "the log density closes over an array on a mesh with explicit axes, the default of jax.make_mesh, and was "
            "traced with them; place it with NamedSharding on jax.sharding.Mesh(numpy.array(jax.devices()), ('rows',))"
        )
    target = placement.put_all(target)
    if ROWS in placement.mesh.axis_names and not any(map(_is_spread, jax.tree.leaves(target))):
        raise ValueError(
            "mesh has an axis 'rows', but the rows of this target cannot be seen. Use a MinibatchTarget, a NumPyro "
            "model with a plate, or Target(..., data_rows=number of rows); or place the arrays of the log density with "
            "jax.device_put(array, NamedSharding(mesh, PartitionSpec('rows')))"
        )
    return target


def _is_spread(leaf) -> bool:
    sharding = getattr(leaf, "sharding", None)
    return (isinstance(sharding, NamedSharding) and not sharding.is_fully_replicated) or _alone(sharding)


def _alone(sharding) -> bool:
    """Whether the mesh has a single device, where nothing can be spread."""
    return isinstance(sharding, NamedSharding) and sharding.mesh.size == 1


def _padded(leaf: Array, size: int) -> Array:
    """An array with copies of its last row up to `size` rows, which are to count for nothing."""
    more = size - leaf.shape[0]
    return leaf if not more else jnp.concatenate([leaf, jnp.repeat(leaf[-1:], more, 0)])


class SpreadRows(AbstractTarget):
    """A prior plus a sum over all rows of data, which lie spread over the axis `rows` of a mesh.

    Every device adds up its own rows, block by block. Rows that only fill the last device up have weight zero.

    Attributes
    ----------
    data
        The rows, with those that fill up; the first axis of every leaf is spread.
    counts
        Which of them count, spread alike.
    num_rows
        The number of rows that count.
    batch_size
        Rows for which the model is computed at a time on each device.
    mesh
        The mesh.
    """

    latents: tuple[Latent, ...] = eqx.field(static=True)
    init: dict[str, Array]
    order: int = eqx.field(static=True)
    outputs: Callable | None
    prior: LogDensity
    likelihood_row: Callable
    location_scale: tuple[LocationScale, ...]
    data: Any
    counts: Bool[Array, " N"]
    num_rows: int = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)
    mesh: Mesh = eqx.field(static=True)

    @classmethod
    def of(cls, target: MinibatchTarget, placement: Placement) -> "SpreadRows":
        """The rows of a target on a mesh."""
        data, counts, num_rows = (
            own_rows(target.data, placement) if isinstance(target.data, Rows) else _rows_of(target, placement)
        )
        return cls(
            target.latents,
            target.init,
            target.order,
            target.outputs,
            target.prior,
            target.likelihood_row,
            target.location_scale,
            data,
            counts,
            num_rows,
            block_rows(target),
            placement.mesh,
        )

    def batch(self, key):
        return self.full()

    def full(self):
        num_groups = self.mesh.shape[ROWS]
        in_groups = lambda leaf: leaf.reshape(num_groups, -1, *leaf.shape[1:])  # noqa: E731
        spread = jax.tree.map(lambda leaf: constrain(in_groups(leaf), self.mesh, ROWS), (self.data, self.counts))

        def log_density(theta):
            def one(pair):
                row, counts = pair
                return jnp.where(counts, self.likelihood_row(theta, row), 0)

            return self.prior(theta) + jax.vmap(lambda *own: sum_rows(one, own, self.batch_size))(*spread).sum()

        return log_density

    def terms(self, theta):
        """The prior, and the log likelihood of each row."""
        each = jax.vmap(lambda row: self.likelihood_row(theta, row))(self.data)
        return {"prior": self.prior(theta), "rows": jnp.where(self.counts, each, 0)}


def _rows_of(target: MinibatchTarget, placement: Placement) -> tuple[Any, jax.Array, int]:
    """The data of a target on a mesh, which of the rows count, and how many do."""
    num_rows, num_groups = target.num_rows, placement.size(ROWS)
    size = -(-num_rows // num_groups) * num_groups

    def put(leaf):
        return placement.put(_padded(leaf, size), ROWS)

    leaves = jax.tree.leaves(target.data)
    placed = [placement.holds(leaf) for leaf in leaves]
    if any(placed) and (not all(placed) or size != num_rows):
        raise ValueError(
            f"some of the data lie on the mesh already: place all {len(leaves)} arrays there, with a number of rows "
            f"that {num_groups} devices divide (these are {num_rows:,}), or give numpy arrays"
        )
    counts = placement.put(np.arange(size) < num_rows, ROWS)
    return jax.tree.map(implicit if any(placed) else put, target.data), counts, num_rows


def own_rows(rows: Rows, placement: Placement) -> tuple[dict[str, jax.Array], jax.Array, int]:
    """The rows that each process has of its own, read into the memory of its devices."""
    sharding = placement.sharding(ROWS)
    size = placement.size(ROWS)
    places = {
        index[0].start for index in sharding.addressable_devices_indices_map((size,)).values() if index is not None
    }
    if len(places) * jax.process_count() != size:
        raise ValueError(
            f"every process reads its own Rows, so that the axis rows of mesh must have {jax.process_count()} equal "
            "parts, one with the devices of each; order the devices of mesh by process along that axis"
        )
    numbers = placement.of_all(rows.num_rows)
    most = -(-max(numbers) // len(places)) * len(places)
    columns, _ = rows.take(np.arange(rows.num_rows))
    whole = most * jax.process_count()

    def put(own):
        own = np.concatenate([own, np.repeat(own[-1:], most - len(own), 0)])
        return jax.make_array_from_process_local_data(sharding, own, (whole, *own.shape[1:]))

    counts = jax.make_array_from_process_local_data(sharding, np.arange(most) < rows.num_rows, (whole,))
    return {name: put(column) for name, column in columns.items()}, counts, sum(numbers)


class SpreadConstants(eqx.Module):
    """A traced function, some of whose arrays lie spread by their first axis.

    Attributes
    ----------
    traced
        The function; its arrays may have rows that only fill the last device up.
    which
        The indices of the arrays that are spread.
    num_rows
        Their number of rows that count.
    mesh
        The mesh.
    """

    traced: Any
    which: tuple[int, ...] = eqx.field(static=True)
    num_rows: int = eqx.field(static=True)
    mesh: Mesh = eqx.field(static=True)

    def __call__(self, *args):
        consts = list(self.traced.consts)
        for at in self.which:
            consts[at] = constrain(consts[at][: self.num_rows], self.mesh, ROWS)
        return eqx.tree_at(lambda traced: traced.consts, self.traced, consts)(*args)


def _spread_constants(target: Target, placement: Placement, num_rows: int) -> Target:
    size = -(-num_rows // placement.size(ROWS)) * placement.size(ROWS)

    def spread(traced):
        if traced is None or isinstance(traced, SpreadConstants):
            return traced
        which = tuple(at for at, const in enumerate(traced.consts) if const.ndim and const.shape[0] == num_rows)
        free = tuple(at for at in which if not placement.holds(traced.consts[at]))
        consts = list(traced.consts)
        for at in free:
            consts[at] = placement.put(_padded(consts[at], size), ROWS)
        return SpreadConstants(eqx.tree_at(lambda t: t.consts, traced, consts), free, num_rows, placement.mesh)

    parts = lambda t: (t.function, t.outputs)  # noqa: E731
    return eqx.tree_at(parts, target, tuple(map(spread, parts(target))), is_leaf=lambda node: node is None)
