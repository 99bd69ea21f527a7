"""Least squares of r = ln p - ln q on scores and on products of scores of different factors.

With s~ = L^-1 s the scores whitened by the Fisher information F = L L' of each factor, the functions

    1,   s~_a,   s~_a s~_b   (a, b parameters of different factors)

are orthonormal under q, and the coefficients of r on them are, in whitened coordinates, the ELBO, its gradient (the
natural gradient) and the off-diagonal blocks of its Hessian:

    r = L + b' s~ + s~' B s~ / 2 + residual,        L = E[r],  b = E[s~ r],  B_ab = E[s~_a s~_b r].

The covariance form of the score estimator replaces the Gram matrix of the features by its expectation, the identity.
Least squares uses that of the draws, so that the part explained by the features adds no noise: a log density in their
span is fitted exactly. Products outnumber draws in all but small models. They have a ridge penalty, chosen by
leave-one-out in closed form from one eigendecomposition, of the Gram matrix of the products or, where these outnumber
the draws, of their kernel

    K_ij = (s~_i . s~_j)^2 / 2 - sum over factors (s~_i . s~_j restricted to the factor)^2 / 2.

The same code runs in numpy (on the host) and in JAX (inside a program): `xp` is the array module.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from curvi.estimate.main_effects import MainEffects, main_effects

# Ridges in units of the number of draws, from no penalty to almost no products.
_RIDGES = np.concatenate([[1e-12, 1e-9, 1e-6, 1e-4], np.geomspace(1e-3, 1e3, 19)])
_NO_INFORMATION = 1e-3  # draws with a leverage above one minus this have no informative residual


@dataclasses.dataclass(frozen=True)
class PairLayout:
    """The factor of each parameter, which defines the products that count as pairs."""

    owner: np.ndarray  # factor of each parameter

    @property
    def num_pairs(self) -> int:
        sizes = np.bincount(self.owner)
        return int((len(self.owner) ** 2 - np.sum(sizes**2)) // 2)

    @property
    def across(self) -> np.ndarray:
        """(P, P) mask of the entries outside the diagonal blocks."""
        return self.owner[:, None] != self.owner[None, :]

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = np.nonzero(np.triu(self.across, 1))
        return rows, columns

    def inside(self) -> tuple[np.ndarray, np.ndarray]:
        """Pairs a < b within one factor."""
        rows, columns = np.nonzero(np.triu(~self.across, 1))
        return rows, columns


class PairFit(NamedTuple):
    """The result of the regression, in whitened coordinates.

    Attributes
    ----------
    value, value_se
        The intercept, an estimate of the ELBO with scores and products as control variates, and its standard error.
    linear
        Coefficients b of the scores.
    influence
        (P, S): b as a linear map of the responses.
    left_out
        Residual of each draw when it is left out, times the root of its weight.
    leverage
        How far each draw determines its own fit, from 0 to 1.
    pairs
        B, with zero blocks on its diagonal; None without products.
    draw_weights
        Where the kernel was used: B = sum_i draw_weights_i s~_i s~_i' off the block diagonal; else None.
    ridge
        In units of the number of draws; infinite where leave-one-out shows no benefit from products.
    residual_variance
        Mean square of `left_out`.
    complete
        Whether every score varies over the draws and no draw determines its own fit. If not, something has hardly been
        drawn (a rare value of a discrete latent), and residuals do not show it.
    """

    value: Any
    value_se: Any
    linear: Any
    influence: Any
    left_out: Any
    leverage: Any
    pairs: Any
    draw_weights: Any
    ridge: Any
    residual_variance: Any
    complete: Any

    def covariance(self):
        """Covariance of `linear` by left-out residuals (MacKinnon and White 1985, HC3)."""
        with np.errstate(invalid="ignore"):  # infinite residuals give an infinite or NaN covariance
            return (self.influence * self.left_out**2) @ self.influence.T


def uses_kernel(num_draws: int, layout: PairLayout) -> bool:
    return layout.num_pairs > num_draws


def fit_pairs(scores, response, weights, layout: PairLayout, xp=np, *, products: bool = True, ridge=None) -> PairFit:
    """The regression on whitened `scores` (S, P) with importance weights; `ridge` in units of S is chosen if None."""
    main = main_effects(xp, scores, response, weights)
    if not products or layout.num_pairs == 0:
        return _finish(xp, main, main.to_linear, main.residual, main.leverage, None, xp.inf, 0.0)
    basis = _kernel_basis if uses_kernel(scores.shape[0], layout) else _product_basis
    values, vectors, features, raw, back = basis(xp, main, layout)
    # Fitted values for each ridge: features (values + ridge)^-1 features' residual.
    seen = features.T @ main.residual
    if ridge is None:
        ridge = _choose_ridge(xp, main, values, features, seen)
    amount = xp.where(xp.isfinite(ridge), ridge, 1.0) * scores.shape[0]
    # Directions that the draws do not span contain only rounding errors.
    spanned = values > 1e-12 * xp.max(values)
    inverse = xp.where(xp.isfinite(ridge) & spanned, 1 / (values + amount), 0.0)
    coefficients = inverse * (back.T @ main.residual)
    pairs = _pairs_of(xp, main, layout, vectors @ coefficients)
    influence = main.to_linear - ((main.to_linear @ raw) * inverse) @ back.T
    residual = main.residual - features @ (inverse * seen)
    leverage = main.leverage + features**2 @ inverse
    return _finish(xp, main, influence, residual, leverage, pairs, ridge, xp.mean(main.root * (raw @ coefficients)))


def _kernel_basis(xp, main: MainEffects, layout: PairLayout):
    """Eigenvalues and eigenvectors of the projected kernel, its root, and the maps from and to draw coefficients."""
    whole = main.root[:, None] * pair_kernel(main.scores, layout, xp) * main.root[None, :]
    values, vectors = xp.linalg.eigh(main.project(main.project(whole).T))
    values = xp.maximum(values, 0.0)
    return values, vectors, vectors * xp.sqrt(values), whole @ vectors, main.project(vectors)


def _product_basis(xp, main: MainEffects, layout: PairLayout):
    """The same from the Gram matrix of the products."""
    a, b = layout.pairs()
    whole = main.root[:, None] * main.scores[:, a] * main.scores[:, b]
    projected = main.project(whole)
    values, vectors = xp.linalg.eigh(projected.T @ projected)
    features = projected @ vectors
    return xp.maximum(values, 0.0), vectors, features, whole @ vectors, features


def _choose_ridge(xp, main: MainEffects, values, features, seen):
    """The ridge with the least mean square of left-out residuals, infinite where omitting products is better."""
    grid = xp.asarray(_RIDGES)
    inverse = 1 / (values[:, None] + main.root.shape[0] * grid)
    residuals = main.residual[:, None] - features @ (seen[:, None] * inverse)
    losses = xp.mean(_leave_out(xp, residuals, main.leverage[:, None] + features**2 @ inverse) ** 2, 0)
    best = xp.argmin(losses)
    without = xp.mean(_leave_out(xp, main.residual[:, None], main.leverage[:, None]) ** 2)
    return xp.where(losses[best] < without, grid[best], xp.inf)


def _finish(xp, main: MainEffects, influence, residual, leverage, pairs, ridge, mean_pair_part) -> PairFit:
    left_out = _leave_out(xp, residual[:, None], leverage[:, None])[:, 0]
    linear = influence @ main.y
    return PairFit(
        value=xp.mean(main.weights * main.response) - main.mean_score @ linear - mean_pair_part,
        value_se=xp.sqrt(xp.sum(main.weights * left_out**2)) / xp.sum(main.weights),
        linear=linear,
        influence=influence,
        left_out=left_out,
        leverage=leverage,
        pairs=None if pairs is None else pairs[0],
        draw_weights=None if pairs is None else pairs[1],
        ridge=ridge,
        residual_variance=xp.mean(left_out**2),
        complete=xp.all(leverage < 1 - _NO_INFORMATION) & main.full_rank,
    )


def pair_kernel(scores, layout: PairLayout, xp=np):
    """The kernel K of the module docstring, (S, S)."""
    a, b = layout.inside()
    square, mixed = scores**2, scores[:, a] * scores[:, b]
    return ((scores @ scores.T) ** 2 - square @ square.T - 2 * mixed @ mixed.T) / 2


def pair_part(scores, pairs):
    """s~' B s~ / 2 of each row."""
    return ((scores @ pairs) * scores).sum(-1) / 2


def _leave_out(xp, residual, leverage):
    """Leave-one-out residuals; for draws that determine their own fit, the root mean square of the others.

    Where most draws determine their own fit, the residuals are unknown and count as infinite.
    """
    informative = leverage < 1 - _NO_INFORMATION
    out = residual / xp.where(informative, 1 - leverage, 1.0)
    count = xp.sum(informative, 0)
    mean_square = xp.sum(xp.where(informative, out**2, 0.0), 0) / xp.maximum(count, 1)
    typical = xp.where(2 * count > leverage.shape[0], xp.sqrt(mean_square), xp.inf)
    return xp.where(informative, out, typical)


def _pairs_of(xp, main: MainEffects, layout: PairLayout, coefficients):
    """B from coefficients of the draws (then also returned as draw weights) or of the products."""
    size = main.scores.shape[1]
    if uses_kernel(main.scores.shape[0], layout):
        draw_weights = main.root * coefficients
        return (main.scores.T * draw_weights) @ main.scores * layout.across, draw_weights
    a, b = layout.pairs()
    if xp is np:
        upper = np.zeros((size, size))
        upper[a, b] = coefficients
    else:
        upper = xp.zeros((size, size), coefficients.dtype).at[a, b].set(coefficients)
    return upper + upper.T, None
