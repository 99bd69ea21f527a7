"""Linear-response covariance: how posterior means answer to a tilt of the log density (Giordano, Broderick and Jordan
2018).

Mean-field standard deviations ignore correlation and come out too small. But add t' g(theta) to ln p, and the fitted
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
from jax.flatten_util import ravel_pytree

from curvi.estimate.design import matched_noise
from curvi.estimate.pathwise import path_log_density
from curvi.family import MeanField
from curvi.target import AbstractTarget

_DRAWS = 512
_CHUNK = 32


@dataclasses.dataclass(frozen=True)
class Covariance:
    """A joint posterior covariance on the model's supports.

    Attributes
    ----------
    matrix
        Rows and columns in the order of `labels`.
    labels
        One name an element, "beta[3]".
    residual
        Largest relative residual of the solves behind it.
    """

    matrix: np.ndarray
    labels: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    residual: float

    def sd(self) -> dict[str, np.ndarray]:
        """Standard deviations by name."""
        flat = np.sqrt(np.diag(self.matrix))
        out, start = {}, 0
        for name, shape in self.shapes.items():
            size = int(np.prod(shape))
            out[name] = flat[start : start + size].reshape(shape)
            start += size
        return out


def linear_response(target: AbstractTarget, q: MeanField, key, names=None) -> Covariance:
    """The linear-response covariance of the named latents and outputs, of all by default.

    Raises ValueError where the Hessian is not negative definite: q is then no maximum, and its response means nothing.
    """
    if target.order < 2 or not q.reparameterised:
        raise ValueError(
            "linear response needs the Hessian of a twice differentiable target under Normal or LogNormal factors; "
            'use kind="mean_field"'
        )
    example = jax.eval_shape(lambda: _means_of(target, q, jnp.zeros((1, q.num_factors), q.params.dtype), None))
    chosen = tuple(example) if names is None else tuple([names] if isinstance(names, str) else names)
    if unknown := sorted(set(chosen) - set(example)):
        raise ValueError(f"no latent or output named {', '.join(unknown)}; there are {', '.join(example)}")
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).astype(np.uint32))
    noise = jnp.asarray(matched_noise(rng, _DRAWS, q.num_factors), q.params.dtype)
    hessian = _dense_hessian(target, q, noise, jax.random.split(key, _DRAWS // _CHUNK))
    jacobian = _jacobian(target, q, noise, chosen)
    factor = q.fisher().factorise()
    # In whitened coordinates -H is the identity where q is the posterior, and well scaled elsewhere.
    whiten = jax.vmap(factor.solve)
    white = np.asarray(whiten(whiten(-hessian).T), dtype=np.float64)
    rows = np.asarray(whiten(jacobian), dtype=np.float64)
    white = (white + white.T) / 2
    try:
        lower = np.linalg.cholesky(white)
    except np.linalg.LinAlgError:
        raise ValueError(
            "the Hessian of the ELBO is not negative definite here: the fit is no maximum and has no linear response; "
            "see fit.outcome"
        ) from None
    half = np.linalg.solve(lower, rows.T)
    solution = np.linalg.solve(lower.T, half)
    residual = np.linalg.norm(white @ solution - rows.T, axis=0) / np.maximum(np.linalg.norm(rows, axis=1), 1e-300)
    shapes = {name: example[name].shape for name in chosen}
    return Covariance(half.T @ half, labels_of(shapes), shapes, float(residual.max()))


def sample_covariance(draws: dict, names=None) -> Covariance:
    """The covariance of draws by name: that of q itself."""
    chosen = tuple(draws) if names is None else tuple([names] if isinstance(names, str) else names)
    if unknown := sorted(set(chosen) - set(draws)):
        raise ValueError(f"no latent or output named {', '.join(unknown)}; there are {', '.join(draws)}")
    flat = np.concatenate([np.asarray(draws[name], dtype=float).reshape(len(draws[name]), -1) for name in chosen], 1)
    shapes = {name: np.shape(draws[name])[1:] for name in chosen}
    return Covariance(np.atleast_2d(np.cov(flat.T)), labels_of(shapes), shapes, 0.0)


def _means_of(target, q: MeanField, noise, names):
    """E_q of latents and outputs on the noise."""

    def one(e):
        theta, _ = q.to_model(q.from_normal(e))
        everything = theta if target.outputs is None else {**theta, **target.outputs(theta)}
        return everything if names is None else {name: everything[name] for name in names}

    return jax.tree.map(lambda leaf: leaf.mean(0), jax.vmap(one)(noise))


@eqx.filter_jit
def mean_shift(target, q, step):
    """How a small step of the parameters moves the means of latents and outputs."""
    noise = jax.random.normal(jax.random.key(0), (256, q.num_factors), q.params.dtype)
    return jax.jvp(lambda params: _means_of(target, q.replace(params), noise, None), (q.params,), (step,))[1]


@eqx.filter_jit
def _jacobian(target, q, noise, names):
    def flat(params):
        means = _means_of(target, q.replace(params), noise, names)
        # In the order asked for: JAX sorts the keys of dicts.
        return ravel_pytree([means[name] for name in names])[0]

    return jax.jacrev(flat)(q.params)


@eqx.filter_jit
def _dense_hessian(target, q, noise, keys):
    """Hessian of the ELBO on the noise, P products forward over reverse, `_CHUNK` draws and one column at a time."""
    parts = noise.reshape(-1, _CHUNK, noise.shape[-1])

    def product(v):
        def chunk(total, part):
            values, key = part
            density = target.batch(key)

            def mean(params):
                moved = q.replace(params)
                return jax.vmap(lambda e: path_log_density(density, moved, e))(values).mean()

            return total + jax.jvp(jax.grad(mean), (q.params,), (v,))[1] / parts.shape[0], None

        return jax.lax.scan(chunk, jnp.zeros_like(v), (parts, keys))[0]

    columns = jax.lax.map(product, jnp.eye(q.num_params, dtype=q.params.dtype), batch_size=8)
    return (columns + columns.T) / 2 + q.entropy_hessian().dense()


def labels_of(shapes) -> tuple[str, ...]:
    """One name an element, "beta[3]", of quantities with these shapes by name."""
    out = []
    for name, shape in shapes.items():
        if shape == ():
            out.append(name)
        else:
            out.extend(f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape))
    return tuple(out)
