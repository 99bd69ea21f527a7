"""Between host and program: arguments as tuples of arrays, results as one vector.

A program returns one vector, so that there is one transfer from the device. Tuples are used instead of modules, whose
construction takes as long as a sweep of a small model.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

_ARRAY = object()  # placeholder for an array in a structure


def split_structure(target, q):
    """A target and a q as a hashable structure and a tuple of arrays, including the model's data.

    A plain tuple avoids flattening modules at every call.
    """
    leaves, tree = jax.tree.flatten((target, q))
    arrays = tuple(leaf for leaf in leaves if eqx.is_array(leaf))
    return (tuple(_ARRAY if eqx.is_array(leaf) else leaf for leaf in leaves), tree), arrays


def combine(structure, arrays) -> tuple:
    rest, tree = structure
    given = iter(arrays)
    return jax.tree.unflatten(tree, [next(given) if leaf is _ARRAY else leaf for leaf in rest])


def pack(found):
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(found)])


class Unpack:
    """Splits the vector of a program, given a named tuple of the packed shapes: None stays None, and a field that is
    not a shape is a tree of arrays.
    """

    def __init__(self, shapes):
        self.kind, self.places, start = type(shapes), [], 0
        for shape in shapes:
            if shape is None:
                self.places.append(None)
                continue
            if _is_shape(shape):
                # Most fields are a single array and need no tree operations.
                end = start + math.prod(shape)
                self.places.append((slice(start, end), shape))
                start = end
                continue
            leaves, tree = jax.tree.flatten(shape)
            ends = [start + int(end) for end in np.cumsum([0, *(math.prod(leaf.shape) for leaf in leaves)])]
            self.places.append(([(slice(a, b), leaf.shape) for a, b, leaf in zip(ends, ends[1:], leaves)], tree))
            start = ends[-1]

    def __call__(self, vector):
        whole = np.asarray(vector).astype(np.float64, copy=False)
        return self.kind(*[None if place is None else _unpacked(whole, *place) for place in self.places])


def _unpacked(whole: np.ndarray, place, shape):
    if type(place) is slice:
        return whole[place].reshape(shape)
    return jax.tree.unflatten(shape, [whole[part].reshape(size) for part, size in place])


def _is_shape(node) -> bool:
    return type(node) is tuple and all(isinstance(size, int) for size in node)
