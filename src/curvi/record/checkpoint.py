"""What a fit keeps so that it can be resumed as if it had never stopped.

Random numbers come from the key and from counters in the state, never from a generator that moves; so a run is its key
and its state.
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
    """A run at rest.

    Attributes
    ----------
    key
        The key of the fit.
    state
        The state of the method.
    history, counts
        What happened and was spent before.
    tolerance
        Of the call that ended here.
    num_starts
        Starts that the fit was asked to try.
    """

    key: Any
    state: Any
    history: History
    counts: CallCounts
    tolerance: float
    num_starts: int = 1


@dataclasses.dataclass(frozen=True)
class Leaves:
    """The arrays of a state whose classes have no names to be saved by, in the order of its tree."""

    arrays: tuple[Any, ...]

    @classmethod
    def of(cls, state) -> "Leaves":
        return cls(tuple(leaf for leaf in jax.tree.leaves(state) if _is_array(leaf)))

    def into(self, blank) -> Any:
        """A state like `blank` with these arrays; ValueError where they do not fit."""
        leaves, tree = jax.tree.flatten(blank)
        wanted = [(np.shape(leaf), leaf.dtype) for leaf in leaves if _is_array(leaf)]
        if [(np.shape(array), array.dtype) for array in self.arrays] != wanted:
            raise ValueError(
                "the state of this fit does not suit its method and target: the method's settings, the target or the "
                "version of curvi differ. family=fit.q starts anew from its q"
            )
        given = iter(self.arrays)
        return jax.tree.unflatten(tree, [next(given) if _is_array(leaf) else leaf for leaf in leaves])


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
