"""Draws of a normal distribution with skewed marginals on fixed noise: coordinates are the parameters themselves, those
of the normal and then the shapes of the marginals (`curvi.family.skew`).

Steps are measured by the Fisher information of the normal distribution, which the shapes of its marginals change
little, beside that of the shapes, whose scores are orthogonal to those of the normal where marginals are normal.
"""

import jax
import jax.numpy as jnp
import numpy as np

from curvi.family.path import HostPath, HostRootLike
from curvi.family.sinh_arcsinh_host import HostShape

_LARGEST_COUPLED = 200  # coordinates up to which the shapes of different coordinates share a metric


class SkewedRoot:
    """The root of the metric: that of the normal, and of the shapes."""

    def __init__(self, first: int, normal: HostRootLike, blocks: np.ndarray):
        self.first, self.normal = first, normal
        # Of all coordinates together (1, 2 n, 2 n), or of each (n, 2, 2).
        self.inverse = np.linalg.inv(np.linalg.cholesky(blocks))

    def _shapes(self, product: str, v: np.ndarray) -> np.ndarray:
        blocks = len(self.inverse)
        return np.einsum(product, self.inverse, v[self.first :].reshape(-1, blocks)).ravel()

    def solve(self, v: np.ndarray) -> np.ndarray:
        return np.concatenate([self.normal.solve(v[: self.first]), self._shapes("nab,bn->an", v)])

    def solve_transpose(self, v: np.ndarray) -> np.ndarray:
        return np.concatenate([self.normal.solve_transpose(v[: self.first]), self._shapes("nba,bn->an", v)])


class SkewedPath(HostPath):
    """m + s T(u) for the draws m + s u of a path of `first` parameters."""

    gaussian = False
    has_scores = False

    def __init__(self, normal: HostPath, first: int):
        self.normal, self.first, self.size = normal, first, normal.size
        self._units = np.eye(normal.noise_size) if normal.size <= _LARGEST_COUPLED else np.zeros((0, 0))
        self._last: tuple[np.ndarray | None, np.ndarray, HostShape] | None = None

    def __eq__(self, other):
        return type(other) is SkewedPath and other.normal == self.normal

    def __hash__(self):
        return hash((SkewedPath, self.normal))

    # -- in programs --------------------------------------------------------------------------------------------------

    def _draws(self, q, noise):
        return lambda c: jax.vmap(lambda e: q.replace(c).from_normal(e)[0])(noise)

    def gradients(self, q, log_joint, c, noise, each):
        z, pull = jax.vjp(self._draws(q, noise), c)
        values, slopes = each(jax.value_and_grad(lambda x: log_joint(q, (x,))))(z)
        return values, pull(slopes / len(noise))[0], slopes

    def products(self, q, log_joint, c, along, noise, each):
        draws, size = self._draws(q, noise), self.size
        z, moves = jax.jvp(draws, (c,), (along,))
        slope_of = jax.grad(lambda x: log_joint(q, (x,)))

        def one(point_and_move):
            return jnp.concatenate(jax.jvp(slope_of, (point_and_move[:size],), (point_and_move[size:],)))

        found = each(one)(jnp.concatenate([z, moves], 1))
        slopes, bent = found[:, :size], found[:, size:]

        def pulled(c, slopes):
            return jax.vjp(draws, c)[1](slopes / len(noise))[0]

        return jax.jvp(pulled, (c, slopes), (along, bent))[1], bent

    # -- on the host --------------------------------------------------------------------------------------------------

    def _parts(self, params: np.ndarray) -> tuple[np.ndarray, HostShape]:
        """The parameters of the normal, and the shapes. Those of the last parameters are kept, since every part of an
        evaluation asks for them.
        """
        if self._last is None or self._last[0] is not params:
            shape = HostShape(np.array(params[self.first :]).reshape(2, self.size))
            self._last = (params, params[: self.first], shape)
        return self._last[1:]

    def shape(self, params: np.ndarray) -> HostShape:
        return self._parts(params)[1]

    def _normal(self, params: np.ndarray) -> np.ndarray:
        return self._parts(params)[0]

    def product(self, params, direction, gradient, by_coordinates):
        bent = self.shape(params).entropy_hessian()
        shape = np.einsum("abn,bn->an", bent, direction[self.first :].reshape(2, self.size)).ravel()
        normal = self.normal.entropy_product(self._normal(params), direction[: self.first])
        return by_coordinates + np.concatenate([normal, shape])

    def entropy(self, params):
        return self.normal.entropy(self._normal(params)) + float(self.shape(params).entropy().sum())

    def entropy_gradient(self, params):
        normal = self.normal.entropy_gradient(self._normal(params))
        return np.concatenate([normal, self.shape(params).entropy_gradient().ravel()])

    def spreads(self, params):
        own = np.diagonal(self.own_information(params), axis1=1, axis2=2).T.ravel()
        return np.concatenate([self.normal.spreads(self._normal(params)), own**-0.5])

    @property
    def coupled(self) -> bool:
        """Whether the metric of the shapes knows the correlations of all coordinates."""
        return self.size <= _LARGEST_COUPLED

    def information(self, params: np.ndarray) -> np.ndarray:
        """The Fisher information of the shapes, dense."""
        normal = self._normal(params)
        rows = self.normal.away(normal, self._units).T / self.sds(params)[:, None]
        return self.shape(params).information(rows @ rows.T)

    def own_information(self, params: np.ndarray) -> np.ndarray:
        """Its blocks (n, 2, 2) of each coordinate."""
        normal = self._normal(params)
        conditional = self.normal.spreads(normal)[: self.size]
        return self.shape(params).own_information((self.sds(params) / conditional) ** 2)

    def root(self, params):
        normal = self.normal.root(self._normal(params))
        assert normal is not None
        blocks = self.information(params)[None] if self.coupled else self.own_information(params)
        return SkewedRoot(self.first, normal, blocks)

    def sds(self, params):
        return self.normal.sds(self._normal(params))

    def sds_moved(self, params, step):
        """Means and sds do not depend on the shapes."""
        return self.normal.sds_moved(self._normal(params), step[: self.first])

    def away(self, params, noise):
        sds = self.sds(params)
        u = self.normal.away(self._normal(params), noise) / sds
        return sds * self.shape(params).at.forward(u)

    def log_q(self, params, noise):
        normal = self._normal(params)
        u, shape = self.normal.away(normal, noise) / self.sds(params), self.shape(params)
        return self.normal.log_q(normal, noise) - (shape.at.log_slope(u) - shape.entropy()).sum(-1)

    def whitened_scores(self, params, noise):
        raise NotImplementedError("scores of skewed marginals are made by a program")

    @property
    def moment_size(self):
        return self.normal.moment_size

    def match(self, half):
        return self.normal.match(half)
