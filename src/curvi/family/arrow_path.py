"""Draws m + L e on fixed noise, L in arrow form: coordinates, Fisher information and its root, on the host.

Parameters are the mean, the logarithms of L's diagonal, both in the order of the latents, and the entries below the
diagonal: those of G row by row, then C and the strict triangles of B for each set of blocks. The coordinates of the
program are the mean, G, C and B in block order, with all their zeros. Noise is in block order too.
"""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from curvi.family.arrow import Arrow, ArrowMatrix, root_of_inverse
from curvi.family.arrow_entries import ArrowEntries
from curvi.family.log_scale_path import LogScalePath
from curvi.family.matching import scaled_columns
from curvi.family.path import FixedPoint


class ArrowRoot:
    """The root of the Fisher information at a factor L: steps (delta, A) in the place of steps of the parameters."""

    def __init__(self, path: "ArrowPath", params: np.ndarray):
        self.path, self.factor = path, path.factor(params)

    def solve(self, v: np.ndarray) -> np.ndarray:
        """A gradient in whitened coordinates: L' g of the mean, the entries of L' G in the pattern."""
        mean, matrix = self.path.split(v, self.factor)
        return self.path.join(self.factor.mv_transposed(mean), self.factor.transposed_times(matrix), 2**-0.5)

    def solve_transpose(self, v: np.ndarray) -> np.ndarray:
        """The step of the parameters that a whitened one stands for."""
        path, size = self.path, self.path.size
        a = v.copy()
        a[size : 2 * size] *= 2**-0.5
        delta, step = path.unpack(np.concatenate([v[path.at.order], path.entries(a[size : 2 * size], a)]))
        out = path.join(self.factor.mv(delta), self.factor.times(step), 1.0)
        out[size : 2 * size] = a[size : 2 * size]  # of the logarithms of the diagonal
        return out


class ArrowPath(LogScalePath):
    """x = m + L e: coordinates are m and the entries of L."""

    has_fixed_point: ClassVar[bool] = True

    def __init__(self, arrow: Arrow):
        self.arrow, self.size, self.at = arrow, arrow.size, ArrowEntries(arrow)
        self._entropy_gradient = np.repeat([0.0, 1.0, 0.0], [self.size, self.size, len(self.at.below)])

    def __eq__(self, other):
        return type(other) is ArrowPath and other.arrow == self.arrow

    def __hash__(self):
        return hash((ArrowPath, self.arrow))

    @property
    def moment_size(self):
        return self.arrow.reach

    def unpack(self, c):
        """The mean in block order and the matrix, from coordinates in numpy or JAX, with any leading axes."""
        return c[..., : self.size], self.at.matrix(c[..., self.size :])

    def entries(self, diagonal, params):
        """All entries of a matrix from its diagonal, in the order of the latents, and those below it of parameters."""
        return self.at.fill(diagonal[self.at.order], params[2 * self.size :])

    def place_draws(self, mean, factor: ArrowMatrix, noise):
        """The draws of this noise, in the order of the latents."""
        return (mean + factor.mv(noise))[..., self.at.place]

    # -- in programs --------------------------------------------------------------------------------------------------

    def gradients(self, q, log_joint, c, noise, each):
        points = self.place_draws(*self.unpack(c), noise)
        values, slopes = each(jax.value_and_grad(lambda x: log_joint(q, (x,))))(points)
        return values, self._pull(slopes, noise), slopes

    def products(self, q, log_joint, c, along, noise, each):
        slope_of = jax.grad(lambda x: log_joint(q, (x,)))
        points, moves = (self.place_draws(*self.unpack(one), noise) for one in (c, along))

        def one(point_and_move):
            return jax.jvp(slope_of, (point_and_move[: self.size],), (point_and_move[self.size :],))[1]

        products = each(one)(jnp.concatenate([points, moves], 1))
        return self._pull(products, noise), products

    def _pull(self, slopes, noise):
        """The gradient in m and the entries of L, averaged over the draws."""
        slopes, num = slopes[:, self.at.order], noise.shape[0]
        like = self.at.matrix(jnp.zeros(self.at.size, slopes.dtype))
        (first, rest), (e, parts) = like.split(slopes), like.split(noise)
        out = [slopes.mean(0), (first.T @ e / num).ravel()]
        for slope, part in zip(rest, parts):
            out.append((jnp.einsum("snk,sg->nkg", slope, e) / num).ravel())
            # Multiply and sum: fused loops are faster than tiny batched matrix products.
            out.append((slope[..., None] * part[..., None, :]).mean(0).ravel())
        return jnp.concatenate(out)

    # -- on the host --------------------------------------------------------------------------------------------------

    def factor(self, params: np.ndarray) -> ArrowMatrix:
        """L."""
        return self.unpack(self.coordinates(params))[1]

    def split(self, v: np.ndarray, factor: ArrowMatrix) -> tuple[np.ndarray, ArrowMatrix]:
        """A gradient in the parameters as those in m and in L, both in block order."""
        scales = self.at.flat(factor)[self.at.diagonal][self.at.place]
        return self.unpack(np.concatenate([v[self.at.order], self.entries(v[self.size : 2 * self.size] / scales, v)]))

    def join(self, mean: np.ndarray, matrix: ArrowMatrix, diagonal: float) -> np.ndarray:
        """A vector like the parameters from a mean in block order and a matrix, its diagonal multiplied."""
        flat = self.at.flat(matrix)
        return np.concatenate(
            [mean[self.at.place], diagonal * flat[self.at.diagonal][self.at.place], flat[self.at.below]]
        )

    def coordinates(self, params):
        return self.at.coordinates(params)

    def tangent(self, params, direction):
        on_diagonal = np.exp(params[self.size : 2 * self.size]) * direction[self.size : 2 * self.size]
        return np.concatenate([direction[self.at.order], self.entries(on_diagonal, direction)])

    def gradient(self, params, by_coordinates):
        flat = by_coordinates[..., self.size :]
        scales = np.exp(params[self.size : 2 * self.size]) * flat[..., self.at.diagonal][..., self.at.place]
        return np.concatenate([by_coordinates[..., self.at.place], scales, flat[..., self.at.below]], -1)

    def spreads(self, params):
        row = self.factor(params).inverse().column_squares() ** -0.5  # of the mean, and of every entry in its row of L
        return np.concatenate([row[self.at.place], np.full(self.size, 2**-0.5), row[self.at.rows]])

    def root(self, params):
        return ArrowRoot(self, params)

    def whitened_scores(self, params, noise):
        own = noise[:, self.at.place]
        return np.concatenate([own, (own**2 - 1) / np.sqrt(2), noise[:, self.at.rows] * noise[:, self.at.columns]], 1)

    def away(self, params, noise):
        return self.place_draws(0.0, self.factor(params), noise)

    def sds(self, params):
        return np.sqrt(self.factor(params).row_squares()[self.at.place])

    def sds_moved(self, params, step):
        """A step (delta, A) in whitened coordinates changes the covariance by L (A + A') L'."""
        factor, sds = self.factor(params), self.sds(params)
        moved = self.unpack(self.tangent(params, step))[1]
        return np.concatenate([step[: self.size] / sds, 2**0.5 * moved.row_products(factor)[self.at.place] / sds**2])

    # -- moments of the noise, and the fixed point --------------------------------------------------------------------

    def match(self, half):
        return self.at.match(half) if len(half) >= self.moment_size else scaled_columns(half)

    def whitened(self, params, slope):
        """L' E[grad] and the entries of -L' E[Hessian] L in the pattern, from a gradient in the coordinates."""
        mean, matrix = self.unpack(slope)
        factor = self.factor(params)
        bend = factor.transposed_times(matrix).symmetrised()
        return factor.mv_transposed(mean), ArrowMatrix(-bend.top, *(tuple(-p for p in parts) for parts in bend[1:]))

    def symmetrised(self, params, slope):
        """L' E[Hessian] L is symmetric, though no average over draws is."""
        mean, matrix = self.unpack(slope)
        factor = self.factor(params)
        even = factor.solve_transposed(factor.transposed_times(matrix).symmetrised())
        return np.concatenate([mean, self.at.flat(even)])

    def fixed_point(self, params, slope, least, resolution):
        """The blocks of the expected Hessian outside of the pattern are taken as zero."""
        gradient, bend = self.whitened(params, slope)
        try:
            root, log_det = root_of_inverse(bend)
        except np.linalg.LinAlgError:
            return None
        along = root.mv_transposed(gradient)
        trace = self.at.flat(bend)[self.at.diagonal].sum()
        predicted = float(along @ along + trace - self.size - log_det) / 2
        factor, mean = self.factor(params), params[self.at.order]

        def at(share: float) -> np.ndarray:
            less = 1 - share
            some = ArrowMatrix(
                share * bend.top + less * np.eye(len(bend.top)),
                tuple(share * side for side in bend.sides),
                tuple(share * block + less * np.eye(block.shape[-1]) for block in bend.blocks),
            )
            own = root if share == 1.0 else root_of_inverse(some)[0]
            moved = factor.times(own)
            shifted = mean + factor.mv(own.mv(own.mv_transposed(share * gradient)))
            out = self.join(shifted, moved, 1.0)
            out[self.size : 2 * self.size] = np.log(out[self.size : 2 * self.size])
            return out

        return FixedPoint(predicted, True, at)


arrow_path = functools.lru_cache(maxsize=32)(ArrowPath)  # large index arrays, made once per pattern
