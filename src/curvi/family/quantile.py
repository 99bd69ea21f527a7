"""Quantiles by bisection, for distributions that have a distribution function in JAX but no quantile function."""

import jax
import jax.numpy as jnp


def bisect(reached, low, high, num_halvings: int):
    """The least argument in (low, high] where the monotone condition `reached` holds, to within (high - low) /
    2^num_halvings.
    """

    def halve(_, ends):
        low, high = ends
        middle = (low + high) / 2
        yes = reached(middle)
        return jnp.where(yes, low, middle), jnp.where(yes, middle, high)

    return jax.lax.fori_loop(0, num_halvings, halve, (low, high))[1]


def continuous_quantile(cdf, chart, u, low: float, high: float):
    """x = chart(t) with cdf(x) = u, searched over t in (low, high); `chart` is increasing onto the support."""
    t = bisect(lambda t: cdf(chart(t)) >= u, jnp.full_like(u, low), jnp.full_like(u, high), 64)
    return chart(t)


def count_quantile(cdf, u, highest):
    """The least count with cdf(count) >= u, at most `highest`."""
    count = bisect(lambda x: cdf(jnp.floor(x)) >= u, -jnp.ones_like(u) * 0.5, jnp.floor(highest) + 0.5, 48)
    return jnp.floor(count).astype(jnp.int32)
