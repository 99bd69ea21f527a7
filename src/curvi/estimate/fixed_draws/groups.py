"""The draws of a chunk in groups, one for each device along the axis `draws` of a mesh.

Each device computes its own group and adds up what it finds; groups are added once, at the end of a sweep. So what
devices exchange are vectors as long as the parameters, and one number per draw. Where the groups hold more draws than
there are, the last ones count for nothing.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from curvi.model.placement import DRAWS, LATENTS, Placement, constrain

CHUNK = 32  # draws per vectorised pass


class Groups(NamedTuple):
    """The groups on a mesh; one, of all draws, without a mesh or an axis `draws`. Part of a program's structure."""

    mesh: Mesh | None = None
    chunk: int = CHUNK

    @property
    def number(self) -> int:
        return 1 if self.mesh is None else self.mesh.shape.get(DRAWS, 1)

    @property
    def size(self) -> int:
        """Draws of a group."""
        return -(-self.chunk // self.number)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what belongs to the draws of a chunk."""
        return (self.chunk,) if self.number == 1 else (self.number, self.size)

    # -- on the host --------------------------------------------------------------------------------------------------

    def of_noise(self, noise: np.ndarray) -> jax.Array:
        """Noise (chunks, CHUNK, n) on the devices of the mesh, in groups."""
        assert self.mesh is not None
        place = Placement(self.mesh)
        if self.number == 1:
            return place.put(noise)
        padded = np.zeros((len(noise), self.number * self.size, noise.shape[-1]), noise.dtype)
        padded[:, :CHUNK] = noise
        return place.put(padded.reshape(len(noise), *self.shape, -1), None, DRAWS)

    # -- in programs --------------------------------------------------------------------------------------------------

    def arranged(self, noise):
        """Noise (chunk, n) that was made in the program, in groups; its columns lie spread over the axis `latents`."""
        if self.number == 1:
            return constrain(noise, self.mesh, None, LATENTS)
        padded = jnp.pad(noise, ((0, self.number * self.size - self.chunk), (0, 0)))
        return constrain(padded.reshape(*self.shape, -1), self.mesh, DRAWS, None, LATENTS)

    def map(self, function: Callable, each: Callable, noise):
        """`function(noise, each)` of every group; its results are means over draws, or belong to single draws."""
        if self.number == 1:
            return function(noise, each)
        if self.number * self.size == self.chunk:
            return jax.vmap(lambda e: function(e, each))(noise)
        counts = (jnp.arange(self.number * self.size) < self.chunk).reshape(self.shape)
        return jax.vmap(lambda e, counts: function(e, _counting(each, counts)))(noise, counts)

    def zeros(self, before: tuple[int, ...], of_draws: bool, after: tuple[int, ...], dtype):
        """Zeros, to which results of groups are added or among which they are put: `of_draws`, or of whole groups."""
        shape = self.shape if of_draws else self.shape[:-1]
        array = jnp.zeros((*before, *shape, *after), dtype)
        if self.number == 1:
            return array
        # How vectors lie along the axis `latents` is left to the compiler.
        free = (PartitionSpec.UNCONSTRAINED,) * (array.ndim - len(before) - 1)
        return constrain(array, self.mesh, *(None for _ in before), DRAWS, *free)

    def total(self, means):
        """The mean over all draws from those over groups."""
        return means if self.number == 1 else means.sum(0) * (self.size / self.chunk)

    def one_axis(self, of_draws):
        """What belongs to the draws of chunks, with one axis for these instead of groups."""
        if self.number == 1:
            return of_draws
        before, (_, _, *after) = of_draws.shape[0], of_draws.shape[1:]
        return of_draws.reshape(before, self.number * self.size, *after)[:, : self.chunk]


ONE_GROUP = Groups()


def _counting(each: Callable, counts) -> Callable:
    """`each`, with results of zero for draws that do not count."""

    def mapped(function):
        def of_draws(*args):
            keep = lambda out: jnp.where(counts.reshape(-1, *(1,) * (out.ndim - 1)), out, 0)  # noqa: E731
            return jax.tree.map(keep, each(function)(*args))

        return of_draws

    return mapped
