"""Linear response of named elements where q has so many latents that draws and rows are not stored.

Each element costs one gradient of its mean and one solve, on stratified draws that are made where they are used.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from curvi.diagnostics.elements import Shapes, chosen_elements, label_of
from curvi.diagnostics.linear_response import Covariance, model_shapes
from curvi.diagnostics.moments import MOST_LATENTS
from curvi.diagnostics.on_draws import everything
from curvi.estimate.sampling import at_once
from curvi.estimate.strata import column_words, part_seed, stratified_noise
from curvi.estimate.streamed import programs
from curvi.family import Family
from curvi.family.on_device import NormalOnDevice, normal_on_device
from curvi.model.over_draws import over_draws
from curvi.model.target import AbstractTarget

_DRAWS = 64
MOST_ELEMENTS = 256
_RESIDUAL, _PRODUCTS = 1e-3, 500
_SEED = np.array([0x72657370, 0x6F6E7365], np.uint32)


def is_large(target: AbstractTarget, q: Family) -> bool:
    """Whether linear response is solved on the device, element by element."""
    return q.noise_size > MOST_LATENTS and normal_on_device(q) and target.order >= 2 and not target.minibatched


def streamed_response(target: AbstractTarget, q: Family, names) -> Covariance:
    """The linear-response covariance of the named quantities and elements ("x[3]")."""
    shapes = model_shapes(target, q)
    chosen = chosen_elements(shapes, names)
    size = sum(map(len, chosen.values()))
    if size > MOST_ELEMENTS:
        raise ValueError(
            f"linear response of {q.noise_size:,} latents is solved element by element, {MOST_ELEMENTS} at most; "
            f'{size:,} were asked for: choose with fit.covariance(names=("x[3]", "x[4]"))'
        )
    chunk = min(at_once(target, q), 32)
    gradient = programs.sweep(target, q, _SEED, np.int32(_DRAWS), num_parts=1, chunk=chunk).grads[0]
    dtype, rows, solved, residual, products = gradient.dtype, [], [], 0.0, 0
    limits = np.asarray(np.finfo(dtype).max / 8, dtype), np.asarray(_RESIDUAL, dtype), np.int32(_PRODUCTS)
    for position in _positions(shapes, chosen):
        row = _mean_row(target, q, _SEED, np.int32(position), chunk)
        found = programs.solve(target, q, _SEED, np.int32(_DRAWS), gradient, row, *limits, chunk=chunk)
        if not bool(found.definite):
            raise ValueError(
                "the Hessian of the ELBO is not negative definite here: the fit is no maximum and has no linear "
                "response; see fit.outcome"
            )
        rows.append(row)
        solved.append(found.x)
        products += int(found.num_products) * _DRAWS
        residual = max(residual, _RESIDUAL if int(found.num_products) < _PRODUCTS else np.inf)
    matrix = np.array([[float(jnp.sum(row * x)) for x in solved] for row in rows])
    return Covariance((matrix + matrix.T) / 2, *_labels(shapes, chosen), residual, products)


def _positions(shapes: Shapes, chosen) -> list[int]:
    """Positions among all elements, in the order in which JAX returns dicts."""
    starts = dict(zip(sorted(shapes), np.cumsum([0, *(int(np.prod(shapes[name])) for name in sorted(shapes))])))
    return [int(starts[name] + i) for name, index in chosen.items() for i in index]


def _labels(shapes: Shapes, chosen):
    whole = {name: shapes[name] for name in chosen if len(chosen[name]) == int(np.prod(shapes[name]))}
    labels, out = [], {}
    for name, index in chosen.items():
        own = [label_of(name, shapes[name], i) for i in index]
        labels += own
        out |= {name: whole[name]} if name in whole else {label: () for label in own}
    return tuple(labels), out


@eqx.filter_jit
def _mean_row(target, q, seed, position, chunk: int):
    """The whitened derivative of the mean of one element."""
    normal = NormalOnDevice.of(q)
    c, each = normal.coordinates, over_draws(target.outputs, chunk)
    words = column_words(part_seed(seed, 0), jnp.arange(q.noise_size))

    def element(q, x):
        found = everything(target, q.to_model(x)[0])
        return jnp.concatenate([jnp.ravel(found[name]).astype(c.dtype) for name in sorted(found)])[position]

    def add(index, total):
        draws = (index * chunk + jnp.arange(chunk)).astype(jnp.uint32)
        noise = stratified_noise(words, draws, _DRAWS, c.dtype)
        return total + q.path.gradients(q, element, c, noise, each)[1]

    total = jax.lax.fori_loop(0, _DRAWS // chunk, add, jnp.zeros_like(c)) / (_DRAWS // chunk)
    # Without the entropy, of which `gradient` adds the derivative in ln scale.
    zero = normal.gradient(jnp.zeros_like(c))
    return normal.gradient(total) - zero
