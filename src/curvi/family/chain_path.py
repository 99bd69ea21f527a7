"""Draws along a chain on fixed noise: coordinates, Fisher information and its root, on the host.

Parameters are the mean and the logarithms of the conditional sds s, both in the order of the latents, and the
coefficients of the regressions: of globals on earlier ones row by row, of the chain on the globals, and along the
chain. The coordinates of the program are those of `Regressions`, in chain order, with all their zeros. Noise is in
chain order too.

The Fisher information has one block for the mean, the precision; 2 for each ln s_i; and for the coefficients of each
element the covariance of what it is regressed on, over s_i^2: innovations e_i are independent of all that came before.
"""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from curvi.family.chain import Chain, ChainMatrix, before, gram, gram_step, inside, root_of_gram
from curvi.family.chain_moments import ChainMoments, ChainRoot
from curvi.family.chain_program import Regressions
from curvi.family.log_scale_path import LogScalePath
from curvi.family.matching import scaled_columns, windowed_columns
from curvi.family.path import FixedPoint

_SHORT = 1e-4  # of a step in sds: where the derivative of the sds is a difference


class ChainPath(LogScalePath):
    """x = m + z: coordinates are m, s and the coefficients."""

    has_fixed_point: ClassVar[bool] = True

    def __init__(self, chain: Chain):
        self.chain, self.size = chain, chain.size
        self.order = chain.order()
        self.place = np.argsort(self.order)
        g, n, width = chain.num_global, chain.length, chain.width
        self._tril, self._inside = np.tril_indices(g, -1), inside(n, width)
        self._sizes = np.cumsum([len(self._tril[0]), n * g])
        self._entropy_gradient = np.repeat([0.0, 1.0, 0.0], [self.size, self.size, chain.num_below])
        self._last: tuple[np.ndarray | None, ChainMoments | None] = (None, None)

    def __eq__(self, other):
        return type(other) is ChainPath and other.chain == self.chain

    def __hash__(self):
        return hash((ChainPath, self.chain))

    @property
    def moment_size(self):
        return self.chain.reach

    @functools.cached_property
    def entries(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the coefficients, as places of the chain order."""
        g, n = self.chain.num_global, self.chain.length
        rows, back = np.nonzero(self._inside)
        shared = np.repeat(np.arange(n), g), np.tile(np.arange(g), n)
        return (
            np.concatenate([self._tril[0], g + shared[0], g + rows]),
            np.concatenate([self._tril[1], shared[1], g + rows - 1 - back]),
        )

    def unpack(self, c) -> Regressions:
        """The coordinates by name, in numpy or JAX, with any leading axes."""
        g, n, width = self.chain.num_global, self.chain.length, self.chain.width
        parts, start, lead = [], 0, c.shape[:-1]
        for shape in ((self.size,), (self.size,), (g, g), (n, g), (n, width)):
            stop = start + int(np.prod(shape))
            parts.append(c[..., start:stop].reshape(*lead, *shape))
            start = stop
        return Regressions(*parts)

    def coefficients(self, v) -> tuple:
        """The matrices of coefficients of a vector like the parameters, in numpy or JAX."""
        g, n, width = self.chain.num_global, self.chain.length, self.chain.width
        below = v[2 * self.size :]
        if isinstance(v, np.ndarray):
            top, band = np.zeros((g, g)), np.zeros((n, width))
            top[self._tril], band[self._inside] = below[: self._sizes[0]], below[self._sizes[1] :]
        else:
            top = jnp.zeros((g, g), v.dtype).at[self._tril].set(below[: self._sizes[0]])
            band = jnp.zeros((n, width), v.dtype).at[np.nonzero(self._inside)].set(below[self._sizes[1] :])
        return top, below[self._sizes[0] : self._sizes[1]].reshape(n, g), band

    def join(self, mean, log_scale, top, rows) -> np.ndarray:
        """A vector like the parameters, with mean and ln s in the order of the latents, the coefficients of the chain
        side by side; with any leading axes.
        """
        g, lead = self.chain.num_global, mean.shape[:-1]
        border = rows[..., :g].reshape(*lead, -1)
        return np.concatenate([mean, log_scale, top[..., *self._tril], border, rows[..., g:][..., self._inside]], -1)

    def regressions(self, params) -> Regressions:
        """The regressions of parameters, in numpy or JAX."""
        xp = np if isinstance(params, np.ndarray) else jnp
        order, size = self.order, self.size
        mean, scale = params[order], xp.exp(params[size : 2 * size][order])
        return Regressions(mean, scale, *self.coefficients(params))  # pyright: ignore

    def moments(self, params: np.ndarray) -> ChainMoments:
        """Those of the last parameters are kept, since every part of an evaluation asks for them."""
        last, found = self._last
        if found is None or params is not last:
            found = ChainMoments(self, params)
            self._last = (params, found)
        return found

    # -- in programs --------------------------------------------------------------------------------------------------

    def points(self, c, noise):
        """The draws of this noise in the order of the latents."""
        found = self.unpack(c)
        return (found.mean + found.draws(noise))[:, self.place]

    def pulled(self, c, noise, slopes):
        """The gradient in the coordinates of the mean of ln p, from its slopes at the draws."""
        found = self.unpack(c)
        pulled = found.pull(noise, found.draws(noise), slopes[:, self.order])
        return jnp.concatenate([part.ravel() for part in pulled])

    def gradients(self, q, log_joint, c, noise, each):
        values, slopes = each(jax.value_and_grad(lambda x: log_joint(q, (x,))))(self.points(c, noise))
        return values, self.pulled(c, noise, slopes), slopes

    def products(self, q, log_joint, c, along, noise, each):
        slope_of = jax.grad(lambda x: log_joint(q, (x,)))
        points, moves = jax.jvp(lambda c: self.points(c, noise), (c,), (along,))

        def one(point_and_move):
            return jax.jvp(slope_of, (point_and_move[: self.size],), (point_and_move[self.size :],))

        slopes, products = each(one)(jnp.concatenate([points, moves], 1))
        pulled = jax.jvp(lambda c, slopes: self.pulled(c, noise, slopes), (c, slopes), (along, products))[1]
        return pulled, products

    # -- on the host --------------------------------------------------------------------------------------------------

    def coordinates(self, params):
        return np.concatenate([part.ravel() for part in self.regressions(params)])

    def tangent(self, params, direction):
        size = self.size
        scale = (np.exp(params[size : 2 * size]) * direction[size : 2 * size])[self.order]
        coefficients = (part.ravel() for part in self.coefficients(direction))
        return np.concatenate([direction[self.order], scale, *coefficients])

    def gradient(self, params, by_coordinates):
        by = self.unpack(by_coordinates)
        scales = np.exp(params[self.size : 2 * self.size]) * by.scale[..., self.place]
        return self.join(by.mean[..., self.place], scales, by.top, np.concatenate([by.border, by.band], -1))

    def spreads(self, params):
        at, size = self.moments(params), self.size
        g, root = self.chain.num_global, at.root
        precision = gram(root)
        mean = np.concatenate([np.diag(precision.top), precision.band[:, 0]]) ** -0.5
        sds = at.sds
        near = before(sds[g:], self.chain.width) + ~self._inside
        shared = np.broadcast_to(sds[:g], (len(near), g))
        rows = at.scale[g:, None] / np.concatenate([shared, near], 1)
        return self.join(mean[self.place], np.full(size, 2**-0.5), at.scale[:g, None] / sds[:g], rows)

    def root(self, params):
        return ChainRoot(self, params)

    def whitened_scores(self, params, noise):
        at, g, width = self.moments(params), self.chain.num_global, self.chain.width
        z = at.root.solve(noise.T).T
        top, windows = at.roots()
        near = np.stack([before(row[g:], width) for row in z])
        parents = np.concatenate([np.broadcast_to(z[:, None, :g], (len(z), near.shape[1], g)), near], 2)
        rows = noise[:, g:, None] * np.einsum("nij,snj->sni", windows, parents)
        first = np.tril(noise[:, :g, None] * (z[:, :g] @ top.T)[:, None], -1)
        own = noise[:, self.place]
        return self.join(own, (own**2 - 1) / np.sqrt(2), first, rows)

    def away(self, params, noise):
        rows = noise.reshape(-1, self.size)
        return self.moments(params).root.solve(rows.T).T[:, self.place].reshape(noise.shape)

    def sds(self, params):
        return self.moments(params).sds[self.place]

    def sds_moved(self, params, step):
        """The change of the ln sds is a difference over a short way."""
        sds = self.sds(params)
        share = _SHORT / max(np.max(np.abs(step / self.spreads(params))), 1e-300)
        ahead, behind = (ChainMoments(self, params + side * share * step).sds[self.place] for side in (1, -1))
        return np.concatenate([step[: self.size] / sds, 2**0.5 * (np.log(ahead) - np.log(behind)) / (2 * share)])

    # -- moments of the noise, and the fixed point --------------------------------------------------------------------

    def match(self, half):
        """Innovations that are uncorrelated with the globals' and with those shortly before them: what is further away
        matters less, as far as the chain forgets.
        """
        return windowed_columns(half, self.chain.num_global) if len(half) >= self.moment_size else scaled_columns(half)

    def fixed_point(self, params, slope, least, resolution):
        """The unit step along the natural gradient in the entries of the precision, and of the mean with the precision
        that it ends at: exact where ln p is quadratic with a Hessian of the pattern.
        """
        at, size = self.moments(params), self.size
        gradient = self.gradient(params, slope)
        root = ChainRoot(self, params)
        natural = root.solve_transpose(root.solve(gradient + self._entropy_gradient))
        by_mean = gradient[:size][self.order]
        g, scale = self.chain.num_global, at.scale
        top, border, band = self.coefficients(natural)
        changed = natural[size : 2 * size][self.order]
        rows = ChainMatrix(-top, -border, np.concatenate([np.zeros((len(band), 1)), -band], 1))
        step = ChainMatrix(
            *(
                a / s[:, None] - d[:, None] * u
                for a, s, d, u in zip(
                    rows, (scale[:g], scale[g:], scale[g:]), (changed[:g], changed[g:], changed[g:]), at.root
                )
            )
        )
        precision, bent = gram(at.root), gram_step(at.root, step)
        try:
            ended = root_of_gram(precision.plus(bent))
        except np.linalg.LinAlgError:
            return None
        white = ended.solve_transposed(by_mean)
        # tr(step of the precision, covariance) = 2 sum dU_ii / U_ii
        log_det = 2 * (ended.log_det() - at.root.log_det())
        predicted = float(white @ white - 2 * changed.sum() - log_det) / 2

        def at_share(share: float) -> np.ndarray:
            moved = ended if share == 1.0 else root_of_gram(precision.plus(bent, share))
            mean = params[self.order] + share * moved.solve(moved.solve_transposed(by_mean))
            own = np.concatenate([np.diag(moved.top), moved.band[:, 0]])
            coefficients = np.concatenate([-moved.border, -moved.band[:, 1:]], 1) / own[g:, None]
            return self.join(mean[self.place], -np.log(own)[self.place], -moved.top / own[:g, None], coefficients)

        return FixedPoint(predicted, True, at_share)


chain_path = functools.lru_cache(maxsize=32)(ChainPath)  # large index arrays, made once per pattern
