"""Linear-response covariance: the response of posterior means to a tilt of the log density (Giordano, Broderick and
Jordan 2018).

Mean-field standard deviations ignore correlation and are too small. But if t' g(theta) is added to ln p, the fitted
means move by J (-H)^-1 J' t to first order, with H the Hessian of the ELBO at the optimum and J the derivative of the
means E_q[g] with respect to the variational parameters; for the exact posterior that derivative is its covariance. So

    Cov ~ J (-H)^-1 J',

from the same Hessian that Newton's method uses.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from curvi.diagnostics.elements import labels_of
from curvi.diagnostics.hessian import WhitenedHessian
from curvi.diagnostics.on_draws import everything
from curvi.family import Family
from curvi.model.over_draws import over_draws
from curvi.model.target import AbstractTarget

_STORED = 4_000_000  # numbers in the right-hand sides that are solved at a time


@dataclasses.dataclass(frozen=True)
class Covariance:
    """A joint posterior covariance on the model's supports.

    Attributes
    ----------
    matrix
        Rows and columns in the order of `labels`.
    labels
        One name per element, "beta[3]".
    residual
        Largest relative residual of its linear solves.
    num_products
        Hessian-vector products of the log density behind it, counted per draw; 0 for the covariance of draws.
    """

    matrix: np.ndarray
    labels: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    residual: float
    num_products: int = 0

    def sd(self) -> dict[str, np.ndarray]:
        """Standard deviations by name."""
        return by_name(np.sqrt(np.diag(self.matrix)), self.shapes)


def linear_response(target: AbstractTarget, q: Family, key, names=None, curved=None) -> Covariance:
    """The linear-response covariance of the named latents and outputs, of all by default.

    `curved` is the Hessian where it is known. Raises ValueError if it is not negative definite: q is then not a
    maximum, and its response is meaningless.
    """
    curved = WhitenedHessian(target, q, key) if curved is None else curved
    shapes = _chosen(curved, names)
    parts = list(_mean_rows(curved, shapes))
    size = sum(map(len, parts))
    if curved.forms(size):
        half, residual = curved.solve_half(np.concatenate(parts))
        matrix = half.T @ half
    else:
        matrix, residual, start = np.empty((size, size)), 0.0, 0
        for part in parts:
            solved, left = curved.solve(part, size)
            columns, residual = slice(start, start + len(part)), max(residual, left)
            matrix[:, columns] = np.concatenate([rows @ solved.T for rows in parts])
            start += len(part)
        matrix = (matrix + matrix.T) / 2
    return Covariance(matrix, labels_of(shapes), shapes, residual, curved.num_products)


def response_sd(curved: WhitenedHessian, names=None) -> dict[str, np.ndarray]:
    """The square roots of the diagonal of `linear_response`, part by part: the whole covariance is never stored."""
    shapes = _chosen(curved, names)
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    variances = []
    for rows in _mean_rows(curved, shapes):
        solved, _ = curved.solve(rows, size)
        variances.append(np.sum(rows * solved, 1))
    return by_name(np.sqrt(np.concatenate(variances)), shapes)


def by_name(flat: np.ndarray, shapes) -> dict[str, np.ndarray]:
    """Elements in the order of `labels_of`, as arrays by name."""
    out, start = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        out[name] = flat[start : start + size].reshape(shape)
        start += size
    return out


def _chosen(curved: WhitenedHessian, names) -> dict[str, tuple[int, ...]]:
    """The shapes of the named latents and outputs; ValueError for unknown names."""
    shapes = model_shapes(curved.target, curved.q)
    chosen = tuple(shapes) if names is None else tuple([names] if isinstance(names, str) else names)
    if unknown := sorted(set(chosen) - set(shapes)):
        raise ValueError(f"no latent or output named {', '.join(unknown)}; there are {', '.join(shapes)}")
    return {name: shapes[name] for name in chosen}


def _mean_rows(curved: WhitenedHessian, names):
    """Whitened derivatives of the means, some elements at a time."""
    shapes = model_shapes(curved.target, curved.q)
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    starts = dict(zip(shapes, np.cumsum([0, *sizes])))
    index = np.concatenate([starts[name] + np.arange(int(np.prod(shapes[name]))) for name in names])
    most = max(1, _STORED // curved.q.num_params)
    for at in range(0, len(index), most):
        yield curved.mean_rows(index[at : at + most], sum(sizes))


def model_shapes(target: AbstractTarget, q: Family) -> dict[str, tuple[int, ...]]:
    """The shapes of latents and outputs by name, in the order of the model."""
    example = jax.eval_shape(
        lambda: everything(target, q.to_model(q.follow(q, jnp.zeros(q.noise_size, q.params.dtype)))[0])
    )
    return {name: leaf.shape for name, leaf in example.items()}


def sample_covariance(draws: dict, names=None) -> Covariance:
    """The covariance of draws by name: that of q itself."""
    chosen = tuple(draws) if names is None else tuple([names] if isinstance(names, str) else names)
    if unknown := sorted(set(chosen) - set(draws)):
        raise ValueError(f"no latent or output named {', '.join(unknown)}; there are {', '.join(draws)}")
    flat = np.concatenate([np.asarray(draws[name], dtype=float).reshape(len(draws[name]), -1) for name in chosen], 1)
    shapes = {name: np.shape(draws[name])[1:] for name in chosen}
    return Covariance(np.atleast_2d(np.cov(flat.T)), labels_of(shapes), shapes, 0.0)


def _means_of(target, q: Family, noise, names, before: Family):
    """E_q of latents and outputs on the noise; draws without reparameterisation are those of `before`, with weights."""

    def one(e):
        x = q.follow(before, e)
        theta, _ = q.to_model(x)
        everything = theta if target.outputs is None else {**theta, **target.outputs(theta)}
        weight = jnp.exp(q.weighed_log_prob(x) - before.weighed_log_prob(x))
        chosen = everything if names is None else {name: everything[name] for name in names}
        return {name: weight * value for name, value in chosen.items()}

    return jax.tree.map(lambda leaf: leaf.mean(0), over_draws(target.outputs, len(noise))(one)(noise))


@eqx.filter_jit
def mean_shift(target, q, step, noise=None):
    """The change of the means of latents and outputs for a small step of the parameters."""
    if noise is None:
        noise = jax.random.normal(jax.random.key(0), (256, q.noise_size), q.params.dtype)
    return jax.jvp(lambda params: _means_of(target, q.replace(params), noise, None, q), (q.params,), (step,))[1]
