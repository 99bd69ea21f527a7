"""The state from which a fit can be resumed as if it had never stopped.

Random numbers are determined by the key and by counters in the state, never by a stateful generator; so a run is
determined by its key and its state.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from curvi.record.counts import CallCounts
from curvi.record.history import History


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The state of a run between two calls of `fit`.

    Attributes
    ----------
    key
        The key of the fit.
    state
        The state of the method.
    history, counts
        History and evaluations so far.
    tolerance
        The tolerance of the call that ended here.
    num_starts
        Number of starts of the fit.
    families
        Names of the families that it may choose from.
    mesh
        Axes and sizes of the mesh of devices; empty on one device.
    """

    key: Any
    state: Any
    history: History
    counts: CallCounts
    tolerance: float
    num_starts: int = 1
    families: tuple[str, ...] = ()
    mesh: tuple[tuple[str, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Leaves:
    """The arrays of a state whose classes are not registered, in the order of its tree."""

    arrays: tuple[Any, ...]

    @classmethod
    def of(cls, state) -> "Leaves":
        return cls(tuple(leaf for leaf in jax.tree.leaves(state) if _is_array(leaf)))

    def into(self, blank) -> Any:
        """A state like `blank` with these arrays; ValueError if they do not match."""
        leaves, tree = jax.tree.flatten(blank)
        wanted = [(np.shape(leaf), leaf.dtype) for leaf in leaves if _is_array(leaf)]
        if [(np.shape(array), array.dtype) for array in self.arrays] != wanted:
            raise ValueError(
                "the state of this fit does not suit its method and target: the method's settings, the target or the "
                "version of curvi differ. family=fit.q starts anew from its q"
            )
        given = iter(self.arrays)
        return jax.tree.unflatten(tree, [next(given) if _is_array(leaf) else leaf for leaf in leaves])


def check_mesh(before: Checkpoint | None, now: tuple[tuple[str, int], ...]) -> None:
    """Raise ValueError where a fit is resumed on another mesh than its own."""
    if before is None or before.mesh == now:
        return
    own, new = (", ".join(f"{name} {size}" for name, size in mesh) or "no mesh" for mesh in (before.mesh, now))
    raise ValueError(
        f"start was run on another number of devices ({own}; now {new}): the same bits are promised on the same mesh "
        "alone. Pass mesh= of that shape, or begin anew from its q on this one: family=start.q in place of start"
    )


def _is_array(leaf) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def same_key(key, own) -> bool:
    """Whether two keys give the same random numbers."""
    if not is_key(key) or key.shape != () or jax.random.key_impl(key) != jax.random.key_impl(own):
        return False
    return np.array_equal(jax.random.key_data(key), jax.random.key_data(own))


def is_key(value) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def check_key(key) -> None:
    """Raise ValueError unless `key` is one typed random key."""
    if key is None:
        raise ValueError("fit needs a random key: pass key=jax.random.key(0)")
    if not is_key(key):
        raise ValueError(
            "key must be a typed key from jax.random.key(seed); "
            "old-style jax.random.PRNGKey arrays and integers are not taken"
        )
    if key.shape != ():
        raise ValueError(f"key must be a single key; got an array of keys of shape {key.shape}")
