"""The compiled loop: chunks of steps in one program, whatever the method, the number of steps or the progress display.

A step's random key depends on its index alone, so results do not depend on how the steps were cut into chunks.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from curvi.methods.base import Method, Record, zeros_like_output
from curvi.model.target import AbstractTarget

CHUNK = 64  # most steps per call of the program


class StopRule(eqx.Module):
    """Ask for a certificate when the remaining gain looks small enough, its noise included.

    Attributes
    ----------
    threshold
        In nats.
    window
        Steps that the smoothed remaining gain looks back, for methods whose single steps are too noisy to tell.
    """

    threshold: Float[Array, ""] | float
    window: int = 20


class Smoothed(eqx.Module):
    """Exponentially smoothed remaining gain and the variance of that mean."""

    gain: Float[Array, ""]
    variance: Float[Array, ""]
    steps: Int[Array, ""]

    def update(self, record: Record, window: int) -> "Smoothed":
        # A step without a finite remaining gain starts the memory anew.
        usable = jnp.isfinite(record.remaining_gain) & jnp.isfinite(record.remaining_gain_se)
        share = jnp.maximum(1.0 / (1 + self.steps), 1.0 / window).astype(self.gain.dtype)
        gain = (1 - share) * self.gain + share * record.remaining_gain
        variance = (1 - share) ** 2 * self.variance + share**2 * record.remaining_gain_se**2
        return Smoothed(
            jnp.where(usable, gain, 0), jnp.where(usable, variance, 0), jnp.where(usable, self.steps + 1, 0)
        )

    def error(self):
        return jnp.sqrt(self.variance)


def wants_certificate(rule: StopRule, record: Record, smoothed: Smoothed):
    """Whether this step, or the mean of the last ones, puts the remaining gain plus two standard errors below the
    threshold.
    """
    now = record.remaining_gain + 2 * record.remaining_gain_se <= rule.threshold
    over_time = (smoothed.gain + 2 * smoothed.error() <= rule.threshold) & (smoothed.steps >= rule.window)
    return now | over_time


def blank_smoothed(dtype) -> Smoothed:
    return Smoothed(jnp.zeros((), dtype), jnp.zeros((), dtype), jnp.zeros((), jnp.int32))


@eqx.filter_jit
def run_chunk(method: Method, target: AbstractTarget, state, smoothed: Smoothed, rule: StopRule, key, first, num_steps):
    """Up to `num_steps` (at most CHUNK) steps from step index `first` on; ends early where the stop rule asks for a
    certificate.

    Returns state, smoothed, records of shape (CHUNK,), the number of steps taken, and whether a certificate is asked
    for.
    """

    def advance(carry):
        i, state, smoothed, records, _ = carry
        state, record = method.step(target, state, jax.random.fold_in(key, first + i))
        smoothed = smoothed.update(record, rule.window)
        records = jax.tree.map(lambda buffer, value: buffer.at[i].set(value), records, record)
        return i + 1, state, smoothed, records, wants_certificate(rule, record, smoothed)

    record = zeros_like_output(lambda: method.step(target, state, key)[1])
    records = jax.tree.map(lambda leaf: jnp.zeros((CHUNK, *leaf.shape), leaf.dtype), record)
    # Static leaves cannot pass a while loop: carry the arrays, close over the rest.
    dynamic, static = eqx.partition(state, eqx.is_array)

    def body(carry):
        i, dynamic, smoothed, records, stop = carry
        i, state, smoothed, records, stop = advance((i, eqx.combine(dynamic, static), smoothed, records, stop))
        return i, eqx.filter(state, eqx.is_array), smoothed, records, stop

    going = lambda carry: (carry[0] < num_steps) & ~carry[-1]  # noqa: E731
    start = (jnp.zeros((), jnp.int32), dynamic, smoothed, records, jnp.zeros((), bool))
    taken, dynamic, smoothed, records, stop = jax.lax.while_loop(going, body, start)
    return eqx.combine(dynamic, static), smoothed, records, taken, stop
