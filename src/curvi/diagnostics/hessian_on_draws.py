"""-H of the ELBO on given fixed noise, in the coordinates where the Fisher information of q is the identity."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from curvi.diagnostics import on_draws
from curvi.diagnostics.dense_curvature import DenseCurvature
from curvi.estimate.fixed_draws.local import HostRoot
from curvi.estimate.fixed_draws.noise import matched_noise
from curvi.family import Family
from curvi.family.normal_path import NormalPath
from curvi.family.path import HostPath
from curvi.model.over_draws import widest_array
from curvi.model.target import AbstractTarget
from curvi.record.packed import split_structure

DENSE = 2048  # parameters up to which a matrix without structure is formed
LARGEST_BLOCK = 4608  # normal factors up to which the three blocks are formed: 510 MB
_KEPT_BLOCK = 1024  # and up to which they are kept beside their factors
_AT_ONCE = 4_000_000  # numbers in an array of directions
_IN_CACHE = 64_000  # numbers in the largest array of a pass through the model: beyond, it takes several times as long
_BATCHES = 16  # batches of rows behind the Hessian of a minibatched target, at least
_ROWS, _CHUNK = 8, 32  # directions per product, and draws, at most


class HessianOnDraws:
    """The matrix -H, given by its products or formed from those of each draw; vectors are rows.

    Where the second moments of the noise are not those of the normal, the Hessian of ln p serves as control variate in
    the block of the scales (`curvi.estimate.fixed_draws.expansion`).
    """

    def __init__(self, target: AbstractTarget, q: Family, key, num_draws: int):
        self.target, self.q, self.key, self.num_draws = target, q, key, num_draws
        self.path = q.path
        self.params = np.asarray(q.params, np.float64)
        self.num_products = 0
        self.structure, self.arrays = split_structure(target, q)
        self.values = self.noise_values(num_draws)
        most = max(1, _IN_CACHE // (_ROWS * max(widest_array(target), q.noise_size)))
        most = min(most, num_draws // _BATCHES if target.minibatched else _CHUNK)
        chunk = next(size for size in (32, 16, 8, 4, 2, 1) if size <= most and num_draws % size == 0)
        self.noise = self._on_device(self.values.reshape(-1, chunk, q.noise_size))
        self.keys = jax.random.split(key, num_draws // chunk)
        self.coordinates = self._on_device(self.path.coordinates(self.params))

    def noise_values(self, num_draws: int) -> np.ndarray:
        """So many draws of fixed noise with matched moments."""
        rng = np.random.default_rng(np.asarray(jax.random.key_data(self.key)).astype(np.uint32))
        size = self.q.noise_size
        return matched_noise(rng, num_draws, size, 2 if num_draws >= 4 * size else 1)

    def _on_device(self, values):
        return jnp.asarray(values, self.q.params.dtype)

    def _run(self, program, *arguments) -> np.ndarray:
        return np.asarray(
            program(self.structure, self.arrays, self.noise, self.keys, self.coordinates, *arguments), float
        )

    # -- coordinates --------------------------------------------------------------------------------------------------

    @functools.cached_property
    def root(self):
        """The root of the Fisher information."""
        if not isinstance(self.path, HostPath):
            return HostRoot(self.path, None, eqx.filter_jit(lambda q: q.metric())(self.q), None)
        own = self.path.root(self.params)
        return HostRoot(self.path, self.path.spreads(self.params), None, None) if own is None else own

    def whiten(self, rows) -> np.ndarray:
        """Gradients in the parameters, in whitened coordinates."""
        return np.stack([self.root.solve(row) for row in np.asarray(rows, np.float64)])

    def unwhiten(self, steps: np.ndarray) -> np.ndarray:
        """Steps of the parameters, from whitened coordinates."""
        return np.stack([self.root.solve_transpose(step) for step in steps])

    def mean_rows(self, index: np.ndarray, num_draws: int, own: bool = False) -> np.ndarray:
        """Derivatives of the means of elements of latents and outputs, or of q's own coordinates, whitened."""
        noise = self._on_device(self.values if num_draws == self.num_draws else self.noise_values(num_draws))
        width = max(1, min(64, _AT_ONCE // (num_draws * self.q.noise_size), _AT_ONCE // self.q.num_params))
        found = []
        for part, count in _parts(index, width):
            rows = on_draws.mean_rows(self.structure, own, self.arrays, noise, self.coordinates, part)
            found.append(self.path.gradient(self.params, np.asarray(rows, np.float64)[:count]))
        return self.whiten(np.concatenate(found))

    # -- products -----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _plain_gradient(self) -> np.ndarray:
        """The gradient of E_q[ln p] in the parameters."""
        return self.path.gradient(self.params, self._run(on_draws.gradient))

    @functools.cached_property
    def _gradient(self) -> np.ndarray:
        """The same less the control variate."""
        gradient = self._plain_gradient
        if isinstance(self.path, NormalPath) and self._excess is not None:
            gradient = gradient.copy()
            self.path.log_scale_entries(gradient)[:] += 2 * self._excess.sum(1)
        return gradient

    @functools.cached_property
    def at_mean(self) -> np.ndarray | None:
        """-H of ln p at the mean of q, whitened; None where it would be too large."""
        if not isinstance(self.path, NormalPath) or self.q.noise_size > LARGEST_BLOCK:
            return None
        zero = self._on_device(np.zeros((1, 1, self.q.noise_size)))
        (found,) = self._hessian_rows(self.path, zero, self.keys[:1], 1)
        found = (found + found.T) / 2
        return found if np.all(np.isfinite(found)) else np.zeros_like(found)

    @functools.cached_property
    def _excess(self) -> np.ndarray | None:
        """What the draws add to the block of the scales."""
        if self.num_draws >= 2 * self.q.noise_size or self.at_mean is None:
            return None
        return self.at_mean * self._moments_off() / 2

    def _moments_off(self) -> np.ndarray:
        return self.values.T @ self.values / self.num_draws - np.eye(self.q.noise_size)

    def product(self, rows: np.ndarray) -> np.ndarray:
        """The matrix times each row."""
        most = max(1, _AT_ONCE // self.q.num_params)
        return np.concatenate([self._product(rows[at : at + most]) for at in range(0, len(rows), most)])

    def _product(self, rows: np.ndarray) -> np.ndarray:
        path, params = self.path, self.params
        steps = self.unwhiten(rows)
        alongs = np.stack([path.tangent(params, step) for step in steps])
        found = []
        for part, count in _parts(alongs, _ROWS):
            self.num_products += count * self.num_draws
            found.append(self._run(on_draws.products, self._on_device(part))[:count])
        gradient = self._gradient
        moved = zip(steps, np.concatenate(found))
        out = np.stack([path.product(params, step, gradient, c) for step, c in moved])
        if not isinstance(path, HostPath):
            along = self._on_device(steps)
            out += np.asarray(on_draws.entropy_products(self.structure, self.arrays, along), np.float64)
        out = -self.whiten(out)
        if isinstance(path, NormalPath) and self._excess is not None:
            path.log_scale_entries(out)[:] -= path.log_scale_entries(rows) @ self._excess
        return out

    # -- the matrix ---------------------------------------------------------------------------------------------------

    @property
    def formable(self) -> bool:
        """Whether the matrix is small enough to be formed."""
        if isinstance(self.path, NormalPath):
            return self.q.noise_size <= LARGEST_BLOCK
        return self.q.num_params <= DENSE

    @property
    def num_columns(self) -> int:
        """Directions whose products at each draw make the whole matrix."""
        return self.q.noise_size if isinstance(self.path, NormalPath) else self.q.num_params

    def split(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The entries of rows in the two blocks: locations and scales, or everything and nothing."""
        if isinstance(self.path, NormalPath):
            return self.path.location(rows), self.path.log_scale_entries(rows)
        return rows, rows[:, :0]

    def join(self, locations: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Rows from their entries in the two blocks."""
        if not isinstance(self.path, NormalPath):
            return locations
        out = np.empty((len(locations), self.q.num_params))
        self.path.location(out)[:], self.path.log_scale_entries(out)[:] = locations, scales
        return out

    def form(self) -> DenseCurvature:
        """The matrix, block by block."""
        if isinstance(self.path, NormalPath):
            return self._normal_blocks(self.path)
        found = self.product(np.eye(self.q.num_params))
        return DenseCurvature.whole((found + found.T) / 2)

    def _normal_blocks(self, path: NormalPath) -> DenseCurvature:
        size = self.q.noise_size
        locations, cross, scales = self._hessian_rows(path, self.noise, self.keys, 3)
        _symmetrise(locations)
        _symmetrise(scales)
        # The Hessian that the draws see is its own control variate.
        excess = self._moments_off()
        excess *= locations
        scales -= excess
        scales[np.diag_indices(size)] -= path.log_scale_entries(self._plain_gradient) + excess.sum(1)
        scales /= 2
        cross *= 2**-0.5
        return DenseCurvature(locations, cross.T, scales, keep=size <= _KEPT_BLOCK)

    def _hessian_rows(self, path: NormalPath, noise, keys, num_blocks: int) -> tuple[np.ndarray, ...]:
        """-S E[h] S, -S E[h e] S and -S E[h e e'] S by rows, with S the scales; the first `num_blocks` of them."""
        size, scale = self.q.noise_size, path.scale(self.params)
        out = tuple(np.empty((size, size)) for _ in range(num_blocks))
        for part, count in _parts(np.arange(size), _ROWS):
            found = on_draws.hessian_rows(self.structure, self.arrays, noise, keys, self.coordinates, part)
            self.num_products += count * noise.shape[0] * noise.shape[1]
            rows = np.asarray(part)[:count]
            for block, values in zip(out, found):
                block[rows] = -scale[rows, None] * scale * np.asarray(values)[:count]
        return out


def _symmetrise(matrix: np.ndarray, width: int = 512) -> None:
    """Replace a matrix by its symmetric part, some rows at a time."""
    for at in range(0, len(matrix), width):
        rows = slice(at, at + width)
        part = (matrix[rows, at:] + matrix[at:, rows].T) / 2
        matrix[rows, at:], matrix[at:, rows] = part, part.T


def _parts(rows: np.ndarray, width: int):
    """Parts of equal length, the last one padded with its first row, so that a program is compiled once; and the
    number of rows that count.
    """
    width = min(width, 1 << (len(rows) - 1).bit_length())
    for start in range(0, len(rows), width):
        part = rows[start : start + width]
        count = len(part)
        if count < width:
            part = np.concatenate([part, np.repeat(part[:1], width - count, 0)])
        yield jnp.asarray(part), count
