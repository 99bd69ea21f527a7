"""A system whose copies are noisy in a known way, the exact moments of the recursion on it, and a z-test."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from curvi.curvature import BlockDiagonal, BlockLowRank, DenseMatrix, Sampled

DIAGONAL = np.array([1.0, 1.5, 2.0, 3.0])
RHS = jnp.array([1.0, -2.0, 0.5, 1.0])


class NoisyDraw(eqx.Module):
    """A + z s s' with s a vector of signs and z = +-spread: mean A, E[X^2] = A^2 + spread^2 P I."""

    diagonal: jax.Array
    spread: float

    def __call__(self, key):
        key_vector, key_sign = jax.random.split(key)
        vector = jax.random.rademacher(key_vector, (1, self.diagonal.size), float)
        sign = self.spread * jax.random.rademacher(key_sign, (1,), float)
        return BlockLowRank(BlockDiagonal((self.diagonal[:, None, None],)), vector, sign)


def noisy(spread, diagonal=DIAGONAL):
    diagonal = jnp.asarray(diagonal)
    return Sampled(DenseMatrix(jnp.diag(diagonal)), NoisyDraw(diagonal, spread), calls_per_draw=1)


def replicate(solver, operator, rhs=RHS, num=4000, seed=0):
    """Solutions over independent keys."""
    keys = jax.random.split(jax.random.key(seed), num)
    return eqx.filter_jit(jax.vmap(lambda key: solver(operator, rhs, key=key)))(keys)


def moments(scale, depth, spread, diagonal=DIAGONAL, rhs=RHS):
    """Exact E[x] and E[x^2] at `depth`: the truncated series, and E[y y'] carried along by its own recursion.

    With B = I - X / C0 and y_j = g + B_j y_{j-1}, E[y_j y_j'] = g g' + g (E B m)' + (E B m) g' + E[B M B],
    where M and m are the moments of y_{j-1} and, for signs s, E[s s' M s s'] = tr(M) I + 2 (M - diag M).
    """
    g, shrink = np.asarray(rhs), 1 - diagonal / scale
    mean, second = g, np.outer(g, g)
    for _ in range(depth):
        cross = np.outer(g, shrink * mean)
        noise = np.trace(second) * np.eye(len(g)) + 2 * (second - np.diag(np.diag(second)))
        kept = shrink[:, None] * second * shrink + (spread / scale) ** 2 * noise
        mean, second = g + shrink * mean, np.outer(g, g) + cross + cross.T + kept
    return mean / scale, np.diag(second) / scale**2


def z_test(samples, expected) -> bool:
    """Whether every mean lies within four and a half standard errors of what is expected."""
    samples = np.asarray(samples)
    error = samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
    return bool(np.max(np.abs(samples.mean(axis=0) - expected) / error) < 4.5)
