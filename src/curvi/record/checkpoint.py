"""What a fit keeps so that it can go on as if it had never stopped.

Random numbers come from the key and the index of a step or round, never from a generator that moves; so a run is its
key, its counters and the arrays of its state. They are kept as plain numpy arrays, in memory as on disk.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from curvi.record.counts import CallCounts
from curvi.record.history import History
from curvi.results import Fit


@dataclasses.dataclass(frozen=True)
class Paused:
    """A run at rest.

    Attributes
    ----------
    key
        The words of the fit's key, and the name of its generator.
    state
        Arrays by name, packed by the run.
    history, counts
        What happened and was spent before.
    tolerance
        Of the call that ended here.
    """

    key: np.ndarray
    key_kind: str
    state: dict[str, np.ndarray]
    history: History
    counts: CallCounts
    tolerance: float

    def random_key(self):
        return jax.random.wrap_key_data(jnp.asarray(self.key), impl=self.key_kind)


def pause(run, key, counts: CallCounts, tolerance: float) -> Paused:
    """What a run leaves behind to go on from."""
    words, kind = key_words(key)
    return Paused(words, kind, run.pack(), run.history(), counts, float(tolerance))


def going_on(target, start, key, family, method, num_starts) -> tuple:
    """Key, q, method and state of a run that goes on from a fit; ValueError where it could not be the same run."""
    if not isinstance(start, Fit):
        raise ValueError(f"start must be a fit, as curvi.fit or curvi.load returns it; got {type(start).__name__}")
    if start.paused is None:
        raise ValueError("start carries no state to go on from; family=start.q starts anew from its q")
    if family is not None or num_starts != 1:
        raise ValueError("start has its own family and starts; leave family and num_starts out")
    own = start.paused.random_key()
    if key is not None and not _same_key(key, own):
        raise ValueError("start goes on with its own random key; leave key out")
    if start.method is None and method is None:
        raise ValueError("the method of this fit could not be saved; pass method= with the settings that it had")
    if method is not None and start.method is not None and not eqx.tree_equal(method, start.method):
        raise ValueError(
            f"start goes on with its own method, {type(start.method).__name__}; leave method out. "
            "To go on with another one, pass family=start.q instead of start"
        )
    q = start.q.onto(target)
    return own, q, start.method if method is None else method, start.paused


def _same_key(key, own) -> bool:
    if not _is_key(key) or key.shape != () or jax.random.key_impl(key) != jax.random.key_impl(own):
        return False
    return np.array_equal(jax.random.key_data(key), jax.random.key_data(own))


def key_words(key) -> tuple[np.ndarray, str]:
    """A typed key as numbers and the name of its generator."""
    return np.asarray(jax.random.key_data(key)), str(jax.random.key_impl(key))


def as_numbers(leaf) -> np.ndarray:
    """An array as numpy has it; the words of a key."""
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def from_numbers(values: np.ndarray, like):
    """The array that `as_numbers` took, of the kind of `like`."""
    array = jnp.asarray(values)
    return jax.random.wrap_key_data(array, impl=jax.random.key_impl(like)) if _is_key(like) else array


def is_any_array(leaf) -> bool:
    """Whether a leaf is an array of JAX or of numpy."""
    return eqx.is_array(leaf) or isinstance(leaf, np.ndarray)


def check_leaves(packed: dict[str, np.ndarray], leaves: list) -> None:
    """Raise ValueError unless the packed leaves have the shapes and types of these."""
    kept = [packed[name] for name in packed if name.startswith("leaf ")]
    given, wanted = [(p.shape, p.dtype) for p in kept], [(w.shape, w.dtype) for w in map(as_numbers, leaves)]
    if given != wanted:
        raise ValueError(
            "the state of this fit does not suit its method and target: the method's settings, the target or the "
            "version of curvi differ. family=fit.q starts anew from its q"
        )


def _is_key(leaf) -> bool:
    return eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
