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
from jax.flatten_util import ravel_pytree

from curvi.diagnostics.hessian import WhitenedHessian
from curvi.family import Family
from curvi.model.over_draws import over_draws
from curvi.model.target import AbstractTarget


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


def linear_response(target: AbstractTarget, q: Family, key, names=None) -> Covariance:
    """The linear-response covariance of the named latents and outputs, of all by default.

    Raises ValueError if the Hessian is not negative definite: q is then not a maximum, and its response is meaningless.
    The Hessian is dense: P parameters take P Hessian-vector products and O(P^3) operations.
    """
    curved = WhitenedHessian(target, q, key)
    example = jax.eval_shape(lambda: _means_of(target, q, jnp.zeros((1, q.noise_size), q.params.dtype), None, q))
    chosen = tuple(example) if names is None else tuple([names] if isinstance(names, str) else names)
    if unknown := sorted(set(chosen) - set(example)):
        raise ValueError(f"no latent or output named {', '.join(unknown)}; there are {', '.join(example)}")
    rows = curved.whiten(_jacobian(target, q, curved.noise, chosen))
    half, residual = curved.solve_half(rows)
    shapes = {name: example[name].shape for name in chosen}
    return Covariance(half.T @ half, labels_of(shapes), shapes, residual)


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


@eqx.filter_jit
def _jacobian(target, q, noise, names):
    def flat(params):
        means = _means_of(target, q.replace(params), noise, names, q)
        # In the given order: JAX sorts the keys of dicts.
        return ravel_pytree([means[name] for name in names])[0]

    return jax.jacrev(flat)(q.params)


def labels_of(shapes) -> tuple[str, ...]:
    """One name per element, "beta[3]", of quantities with these shapes by name."""
    out = []
    for name, shape in shapes.items():
        if shape == ():
            out.append(name)
        else:
            out.extend(f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape))
    return tuple(out)
