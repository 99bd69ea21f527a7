"""The Hessian of the ELBO on fixed noise, in the coordinates where the Fisher information of q is the identity.

There -H is the identity if q is the posterior, so that its eigenvalues can be read directly: along an eigenvector with
eigenvalue c a posterior that is locally normal is 1 / sqrt(c) times as wide as q.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from curvi.estimate.fixed_draws.noise import matched_noise
from curvi.estimate.pathwise import PathwiseProduct
from curvi.family import Family
from curvi.model.over_draws import map_draws
from curvi.model.target import AbstractTarget
from curvi.solve import CG, SolveOutcome

_DRAWS = 512
_CHUNK = 32
DENSE = 2048  # parameters up to which the whole matrix is formed
_NO_MAXIMUM = (
    "the Hessian of the ELBO is not negative definite here: the fit is no maximum and has no linear response; "
    "see fit.outcome"
)


class WhitenedHessian:
    """-H in whitened coordinates, dense or given by its products.

    Raises ValueError, naming `purpose`, where the target or the factors are not twice differentiable.
    """

    def __init__(self, target: AbstractTarget, q: Family, key, purpose: str = "linear response"):
        if target.order < 2 or not q.reparameterised:
            raise ValueError(
                f"{purpose} needs the Hessian of a twice differentiable target under Normal or LogNormal factors"
            )
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).astype(np.uint32))
        self.q = q
        self.noise = jnp.asarray(matched_noise(rng, _DRAWS, q.noise_size), q.params.dtype)
        parts = self.noise.reshape(-1, _CHUNK, self.noise.shape[-1])
        self.product_of = PathwiseProduct(target, q, parts, jax.random.split(key, _DRAWS // _CHUNK))
        self.factor = q.fisher().factorise()

    def whiten(self, rows) -> np.ndarray:
        """Gradients, one per row, in whitened coordinates."""
        return np.asarray(jax.vmap(self.factor.solve)(rows), dtype=np.float64)

    def unwhiten(self, steps):
        """Steps of the parameters, one per row, from whitened coordinates."""
        return jax.vmap(self.factor.solve_transpose)(jnp.asarray(steps, self.q.params.dtype))

    @functools.cached_property
    def dense(self) -> np.ndarray:
        """The whole matrix: P products."""
        white = self.whiten(self.whiten(-_dense(self.product_of)).T)
        return (white + white.T) / 2

    def product(self, v: np.ndarray) -> np.ndarray:
        """The matrix times a vector."""
        return np.asarray(_white_product(self.product_of, self.factor, jnp.asarray(v, self.q.params.dtype)), np.float64)

    @functools.cached_property
    def _cholesky(self) -> np.ndarray:
        try:
            return np.linalg.cholesky(self.dense)
        except np.linalg.LinAlgError:
            raise ValueError(_NO_MAXIMUM) from None

    def solve_half(self, rows: np.ndarray) -> tuple[np.ndarray, float]:
        """L^-1 rows' with L L' the matrix, one column per row, and the largest relative residual of the full solves."""
        half = np.linalg.solve(self._cholesky, rows.T)
        solution = np.linalg.solve(self._cholesky.T, half)
        left = np.linalg.norm(self.dense @ solution - rows.T, axis=0)
        return half, float((left / np.maximum(np.linalg.norm(rows, axis=1), 1e-300)).max())

    def solve(self, rows: np.ndarray) -> np.ndarray:
        """The matrix's inverse times each row: dense for few parameters, conjugate gradients for many."""
        if self.q.num_params <= DENSE:
            half, _ = self.solve_half(rows)
            return np.linalg.solve(self._cholesky.T, half).T
        given = jnp.asarray(rows, self.q.params.dtype)
        solutions, codes = _solve_by_products(self.product_of, self.factor, given)
        if np.any(np.asarray(codes) == SolveOutcome.NEGATIVE_CURVATURE):
            raise ValueError(_NO_MAXIMUM)
        return np.asarray(solutions, np.float64)


@eqx.filter_jit
def _dense(product: PathwiseProduct):
    """Hessian of the ELBO, one column at a time."""
    columns = map_draws(product.target, product, jnp.eye(product.q.num_params, dtype=product.q.params.dtype), 8)
    return (columns + columns.T) / 2


@eqx.filter_jit
def _white_product(product: PathwiseProduct, factor, v):
    return product.operator().whiten(factor).scale(-1.0).mv(v)


@eqx.filter_jit
def _solve_by_products(product: PathwiseProduct, factor, rows):
    operator = product.operator().whiten(factor).scale(-1.0)
    solver = CG(tolerance=1e-6 if rows.dtype == jnp.float64 else 1e-3, max_steps=1000)

    def one(row):
        solution = solver(operator, row)
        return solution.x, solution.code

    return jax.lax.map(one, rows)
