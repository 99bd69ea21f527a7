"""Regressions along a chain in compiled programs: draws from noise, and gradients pulled back through them."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float


class Regressions(NamedTuple):
    """x = m + z in chain order; z_i = (regressions on earlier z) + s_i e_i, on globals first, and along the chain."""

    mean: Float[Array, " d"]
    scale: Float[Array, " d"]
    top: Float[Array, "g g"]
    border: Float[Array, "n g"]
    band: Float[Array, "n w"]

    def draws(self, noise: Float[Array, "S d"]) -> Float[Array, "S d"]:
        """z for this noise."""
        made = (noise * self.scale).T
        first, rest = made[: len(self.top)], made[len(self.top) :]
        first = solve_triangular(_unit(self.top), first, lower=True, unit_diagonal=True) if len(self.top) else first
        return jnp.concatenate([first, band_solve(self.band, rest + self.border @ first)]).T

    def pull(self, noise: Float[Array, "S d"], z: Float[Array, "S d"], slopes: Float[Array, "S d"]) -> "Regressions":
        """The gradient of the mean of ln p, given the slopes of ln p at the draws."""
        g, num, slope = len(self.top), len(noise), slopes.T
        along = band_solve(_reversed_columns(self.band), slope[g:][::-1])[::-1]
        first = slope[:g] + self.border.T @ along
        if g:
            first = solve_triangular(_unit(self.top).T, first, lower=False, unit_diagonal=True)
        pulled, made = jnp.concatenate([first, along]), z.T
        width = self.band.shape[1]
        padded = jnp.concatenate([jnp.zeros((width, num), made.dtype), made[g:]])
        own = [(along * padded[width - k : len(padded) - k]).mean(1) for k in range(1, width + 1)]
        return Regressions(
            slopes.mean(0),
            (pulled * noise.T).mean(1),
            jnp.tril(first @ made[:g].T / num, -1),
            along @ made[:g].T / num,
            jnp.stack(own, 1),
        )

    def log_prob(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """ln q at x, in chain order."""
        z, g, width = x - self.mean, len(self.top), self.band.shape[1]
        padded = jnp.concatenate([jnp.zeros(width, z.dtype), z[g:]])
        rest = z[g:] - self.border @ z[:g]
        for k in range(1, width + 1):
            rest = rest - self.band[:, k - 1] * padded[width - k : len(padded) - k]
        e = jnp.concatenate([z[:g] - self.top @ z[:g], rest]) / self.scale
        return -0.5 * jnp.sum(e**2) - jnp.sum(jnp.log(self.scale)) - 0.5 * z.size * math.log(2 * math.pi)


def _unit(top):
    """The lower triangular matrix of the regressions among globals."""
    return jnp.eye(len(top), dtype=top.dtype) - top


def _reversed_columns(band):
    """The coefficients of the transposed recursion, in reverse order."""
    n, width = band.shape
    columns = [jnp.concatenate([band[k:, k - 1], jnp.zeros(min(k, n), band.dtype)])[:n] for k in range(1, width + 1)]
    return jnp.stack(columns, 1)[::-1]


def band_solve(band: Float[Array, "n w"], made: Float[Array, "n S"]) -> Float[Array, "n S"]:
    """z with z_t = sum_k band_tk z_{t-k} + made_t, coefficients being zero where there is no z_{t-k}.

    In two levels: stretches of about sqrt(n) steps are run side by side, each as if nothing came before it; what enters
    each is then passed from stretch to stretch. So about 2 sqrt(n) steps are made one after the other, in the place of
    n, for one more product per element.
    """
    (n, width), num = band.shape, made.shape[1]
    length = max(width, math.isqrt(max(n - 1, 0)) + 1)
    count = -(-n // length)
    band = jnp.concatenate([band, jnp.zeros((count * length - n, width), band.dtype)])
    made = jnp.concatenate([made, jnp.zeros((count * length - n, num), made.dtype)])
    band, made = band.reshape(count, length, width), made.reshape(count, length, num)

    def advance(carry, given):
        state, passed = carry
        a, own = given
        z, h = jnp.einsum("cw,cws->cs", a, state) + own, jnp.einsum("cw,cwv->cv", a, passed)
        return (_pushed(state, z), _pushed(passed, h)), (z, h)

    one = jnp.broadcast_to(jnp.eye(width, dtype=band.dtype), (count, width, width))
    none = jnp.zeros((count, width, num), made.dtype)
    (end, passed), (z, h) = jax.lax.scan(advance, (none, one), (band.swapaxes(0, 1), made.swapaxes(0, 1)))

    def enter(state, given):
        through, own = given
        return through @ state + own, state

    entering = jax.lax.scan(enter, none[0], (passed, end))[1]
    z = z + jnp.einsum("lcv,cvs->lcs", h, entering)
    return z.swapaxes(0, 1).reshape(count * length, num)[:n]


def _pushed(state, newest):
    """A window (stretches, width, ...) with a newest entry in the place of the oldest."""
    return jnp.concatenate([newest[:, None], state[:, :-1]], 1)
