"""Second moments of regressions along a chain, and the root of their Fisher information, on the host."""

import functools
from typing import TYPE_CHECKING

import numpy as np

from curvi.family.chain import ChainMatrix, before, inside, window_covariances

if TYPE_CHECKING:
    from curvi.family.chain_path import ChainPath


class ChainRoot:
    """The root of the Fisher information: scores of the mean become e, those of coefficients e_i times whitened z."""

    def __init__(self, path: "ChainPath", params: np.ndarray):
        self.path, self.at = path, path.moments(params)
        self.top, self.windows = self.at.roots()

    def solve(self, v: np.ndarray) -> np.ndarray:
        """A gradient in whitened coordinates."""
        path, n = self.path, self.path.size
        top, border, band = path.coefficients(v)
        g = len(top)
        scale = self.at.scale
        top = np.tril(top @ self.top.T, -1) * scale[:g, None]
        rows = np.einsum("nij,nj->ni", self.windows, np.concatenate([border, band], 1)) * scale[g:, None]
        mean = self.at.root.solve_transposed(v[path.order])[path.place]
        return path.join(mean, v[n : 2 * n] * 2**-0.5, top, rows)

    def solve_transpose(self, v: np.ndarray) -> np.ndarray:
        """The step of the parameters that a whitened one stands for."""
        path, n = self.path, self.path.size
        top, border, band = path.coefficients(v)
        g = len(top)
        scale = self.at.scale
        top = np.tril(top @ self.top, -1) * scale[:g, None]
        rows = np.einsum("nij,ni->nj", self.windows, np.concatenate([border, band], 1)) * scale[g:, None]
        mean = self.at.root.solve(v[path.order])[path.place]
        return path.join(mean, v[n : 2 * n] * 2**-0.5, top, rows)


class ChainMoments:
    """What follows from parameters: U, and the covariances of what each element is regressed on."""

    def __init__(self, path: "ChainPath", params: np.ndarray):
        found = path.regressions(params)
        self.scale, self.num_global = np.asarray(found.scale), path.chain.num_global
        g = self.num_global
        top = (np.eye(g) - found.top) / self.scale[:g, None]
        band = np.concatenate([np.ones((len(found.band), 1)), -found.band], 1) / self.scale[g:, None]
        self.root = ChainMatrix(top, -np.asarray(found.border) / self.scale[g:, None], band)
        self.found, self.path = found, path

    @functools.cached_property
    def lower(self) -> np.ndarray:
        """The lower triangular scale of the globals."""
        return np.linalg.inv(self.root.top)

    @functools.cached_property
    def on_globals(self) -> np.ndarray:
        """E[z_t | globals] = M_t z_g: M times the scale of the globals (n, g)."""
        right = np.concatenate([np.zeros_like(self.lower), self.found.border / self.scale[self.num_global :, None]])
        return self.root.solve(right)[self.num_global :] @ self.lower

    @functools.cached_property
    def given_globals(self) -> np.ndarray:
        """Covariances (n, w, w) of the elements before each one, given the globals."""
        return window_covariances(np.asarray(self.found.band), self.scale[self.num_global :])

    @functools.cached_property
    def windows(self) -> np.ndarray:
        """Covariances of what each element of the chain is regressed on: globals, then elements nearest first; the
        identity in the place of elements that do not exist.
        """
        g, width = self.num_global, self.path.chain.width
        shared = np.concatenate(
            [np.broadcast_to(self.lower, (len(self.on_globals), g, g)), before(self.on_globals, width)], 1
        )
        out = shared @ shared.swapaxes(1, 2)
        out[:, g:, g:] += self.given_globals
        near = np.arange(g, g + width)
        out[:, near, near] += ~inside(len(out), width)
        return out

    def roots(self) -> tuple[np.ndarray, np.ndarray]:
        """Inverse Cholesky factors of the covariances of the globals and of the windows."""
        return self.root.top, np.linalg.inv(np.linalg.cholesky(self.windows))

    @functools.cached_property
    def sds(self) -> np.ndarray:
        """Marginal sds in chain order."""
        g, band = self.num_global, self.found.band
        own = np.einsum("ti,tij,tj->t", band, self.given_globals, band) + self.scale[g:] ** 2
        shared = (np.sum(part**2, 1) for part in (self.lower, self.on_globals))
        return np.sqrt(np.concatenate(list(shared)) + np.concatenate([np.zeros(g), own]))
