"""Where the arrays of a fit lie: spread over the devices of a mesh, or copied to each of them.

A mesh has axes with fixed names: `rows` of data, `draws` of q, `latents`. Programs are compiled for all of its devices
at once (`jax.jit` with `NamedSharding`); what lies spread is computed where it lies.
"""

import dataclasses
import math
import zlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

ROWS, DRAWS, LATENTS = AXES = ("rows", "draws", "latents")


@dataclasses.dataclass(frozen=True)
class Placement:
    """A mesh with named axes, compared by value."""

    mesh: Mesh

    @classmethod
    def on(cls, mesh) -> "Placement":
        """The placement on a mesh that a user gave; ValueError unless its axes have the names that curvi knows."""
        if not isinstance(mesh, Mesh):
            raise ValueError(
                f"mesh must be a jax.sharding.Mesh, such as jax.make_mesh((8,), ('draws',)); got {type(mesh).__name__}"
            )
        unknown = [str(name) for name in mesh.axis_names if name not in AXES]
        if unknown or not mesh.axis_names:
            raise ValueError(
                f"the axes of mesh must be named rows, draws or latents, one or more of them; got {mesh.axis_names}. "
                f"Write for example jax.make_mesh({mesh.devices.shape or (1,)}, {AXES[: max(mesh.devices.ndim, 1)]})"
            )
        # Axes of the mesh of a user may be explicit: types of arrays would then carry their sharding.
        return cls(Mesh(mesh.devices, mesh.axis_names))

    def size(self, axis: str) -> int:
        """The number of devices along an axis; 1 where the mesh does not have it."""
        return self.mesh.shape.get(axis, 1)

    @property
    def shape(self) -> tuple[tuple[str, int], ...]:
        """Axes and their sizes."""
        return tuple((str(name), int(size)) for name, size in self.mesh.shape.items())

    def sharding(self, *axes: str | None) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def put(self, array, *axes: str | None) -> jax.Array:
        """An array that every process has, with its dimensions spread over these axes."""
        sharding = self.sharding(*axes)
        if sharding.is_fully_addressable:
            return jax.device_put(array, sharding)
        if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(self.put(jax.random.key_data(array)), impl=jax.random.key_impl(array))
        # Without a comparison between processes, which every call of device_put would make.
        own = np.asarray(array)
        return jax.make_array_from_callback(own.shape, sharding, lambda index: own[index])

    def put_all(self, tree: Any) -> Any:
        """The arrays of a tree copied to every device, except those that lie on the mesh already."""
        return jax.tree.map(lambda leaf: self._with(leaf) if eqx.is_array(leaf) else leaf, tree)

    def _with(self, array) -> jax.Array:
        return array if self.holds(array) else self.put(array)

    def holds(self, array) -> bool:
        """Whether an array lies on the devices of the mesh; ValueError if it lies spread over others."""
        if not isinstance(array, jax.Array):
            return False
        sharding = array.sharding
        devices = sharding.mesh.devices if isinstance(sharding, NamedSharding) else None
        if devices is not None and list(devices.flat) == list(self.mesh.devices.flat):
            return True
        if len(array.sharding.device_set) > 1:
            raise ValueError(
                f"an array of shape {array.shape} lies on {len(array.sharding.device_set)} devices that are not the "
                f"{self.mesh.size} of mesh in their order; place it with NamedSharding(mesh, ...), or give numpy's"
            )
        return False

    def of_all(self, number: int) -> list[int]:
        """A number that each process has its own of, in their order."""
        if jax.process_count() == 1:
            return [number]
        return np.asarray(multihost_utils.process_allgather(np.asarray(number))).tolist()

    def check_same(self, tree: Any) -> None:
        """Raise ValueError where the arrays of a tree that processes have of their own differ between them."""
        if jax.process_count() == 1:
            return
        own = [leaf for leaf in jax.tree.leaves(tree) if eqx.is_array(leaf) and not self.holds(leaf)]
        code = 0
        for leaf in own:
            code = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), zlib.crc32(repr(leaf.shape).encode(), code))
        if len(set(self.of_all(code))) > 1:
            raise ValueError(
                "the arrays of this target differ between processes: an array that is not spread must be the same in "
                "all of them. Where each has rows of its own, give curvi.Rows, or global arrays made by "
                "jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec('rows')), own_rows)"
            )

    def __str__(self) -> str:
        kinds = sorted({device.device_kind for device in self.mesh.devices.flat})
        axes = ", ".join(f"{name} {size}" for name, size in self.shape)
        num_processes = len({device.process_index for device in self.mesh.devices.flat})
        processes = f" in {num_processes} processes" if num_processes > 1 else ""
        return f"{self.mesh.size} x {', '.join(kinds)}{processes} ({axes})"


def constrain(array, mesh: Mesh | None, *axes):
    """In a program: an array that lies spread over those of these axes that a mesh has; the same array without one."""
    if mesh is None:
        return array
    known = (None if isinstance(axis, str) and axis not in mesh.axis_names else axis for axis in axes)
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(*known)))


def is_explicit(array) -> bool:
    """Whether the type of an array carries its sharding, as explicit axes of a mesh ask for."""
    sharding = getattr(array, "sharding", None)
    return isinstance(sharding, NamedSharding) and any(kind != AxisType.Auto for kind in sharding.mesh.axis_types)


def implicit(array: jax.Array) -> jax.Array:
    """The same array where it lies, without its sharding in its type."""
    sharding = array.sharding
    if not is_explicit(array) or not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
        return array
    return jax.device_put(array, NamedSharding(Mesh(sharding.mesh.devices, sharding.mesh.axis_names), sharding.spec))


def bytes_here(array) -> int:
    """Bytes of an array in the memory of one device, or in that of the host where its devices share it."""
    if not isinstance(array, jax.Array) or isinstance(array, Tracer):
        return math.prod(array.shape) * array.dtype.itemsize
    shard = math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
    devices = array.sharding.addressable_devices
    return shard * (len(devices) if next(iter(devices)).platform == "cpu" else 1)


def only_writer() -> bool:
    """Whether this process is the one that writes files and shows progress."""
    return jax.process_index() == 0


def on_host(array) -> np.ndarray:
    """An array of a program as numpy's, on every process."""
    if isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated):
        replicated = NamedSharding(array.sharding.mesh, PartitionSpec())  # pyright: ignore[reportAttributeAccessIssue]
        array = jax.jit(lambda a: a, out_shardings=replicated)(array)
    return np.asarray(array)
