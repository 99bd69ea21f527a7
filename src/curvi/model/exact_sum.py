"""Sums of many terms without the rounding of their number: in double precision, or compensated where there is none."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b and its rounding error, exactly (Knuth 1969)."""
    s = a + b
    bb = s - a
    return s, (a - (s - bb)) + (b - bb)


def exact_sum(terms: Float[Array, "..."]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The sum of all terms as a number and what rounding left of it."""
    flat = terms.reshape(-1)
    if jax.config.read("jax_enable_x64"):
        total = flat.astype(jnp.float64).sum()
        head = total.astype(flat.dtype)
        return head, (total - head.astype(jnp.float64)).astype(flat.dtype)
    rest = jnp.zeros_like(flat)
    while flat.size > 1:
        if flat.size % 2:
            flat, rest = (jnp.pad(part, (0, 1)) for part in (flat, rest))
        half = flat.size // 2
        flat, error = two_sum(flat[:half], flat[half:])
        rest = rest[:half] + rest[half:] + error
    return two_sum(flat[0], rest[0]) if flat.size else (jnp.zeros((), terms.dtype), jnp.zeros((), terms.dtype))


def sum_by_terms(terms: dict[str, Array], extra: Float[Array, ""]) -> tuple[Array, Array]:
    """The sum of named terms and one more number, as a number and what rounding left of it."""
    head, rest = extra, jnp.zeros_like(extra)
    for value in terms.values():
        more, left = exact_sum(jnp.asarray(value, extra.dtype))
        head, error = two_sum(head, more)
        rest = rest + left + error
    return head, rest
