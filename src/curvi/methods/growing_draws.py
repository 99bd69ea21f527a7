"""Newton on growing fixed draws: the default for differentiable models.

On fixed noise the ELBO is a deterministic function, so a trust-region Newton method converges in a few steps and
knows when it has. Few draws first; then the spread between independent halves of the draws says how far their optimum
lies from the true one, tr((-H)^-1 Cov g) / 2 nats, and so how many more draws are needed. Warm-started, the later
rounds take one to three steps.

One compiled program serves every number of draws, every radius and every purpose (climb, solve a system, evaluate).
It holds one derivative of the log density, a Jacobian-vector product of value and gradient, called from one place:
value, gradient, slope and Hessian product come from the same pass, at about the price of the last. Compile time is
most of a small fit, and this is the least that a second-order method can compile.
"""

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from curvi.estimate.pathwise import path_log_density
from curvi.family import MeanField
from curvi.methods.base import AnyMethod
from curvi.target import AbstractTarget

CHUNK = 32  # draws per vectorised pass

# What a call of the program is for.
CLIMB, SOLVE, EVALUATE = 0, 1, 2

# How a climb ended.
DONE, OUT_OF_STEPS, STUCK, BAD_START, PRECISION = 0, 1, 2, 3, 4


class GrowingDraws(AnyMethod):
    """Trust-region Newton with pathwise curvature on fixed draws, more of them as the noise of the answer demands.

    Attributes
    ----------
    first_draws
        Draws of the first round.
    max_draws
        Most draws of a round; None takes what a noise buffer of about 64 MB holds, between 256 and 8,192.
    """

    first_draws: int = eqx.field(static=True, default=64)
    max_draws: int | None = eqx.field(static=True, default=None)
    needs_order: ClassVar[int] = 2
    needs_reparameterised: ClassVar[bool] = True
    default_num_steps: ClassVar[int] = 1000

    def __check_init__(self):
        for name in ("first_draws", "max_draws"):
            number = getattr(self, name)
            if number is not None and (number < 2 * CHUNK or number & (number - 1)):
                raise ValueError(f"{name} must be a power of two, at least {2 * CHUNK}; got {number}")

    def buffer_draws(self, dimension: int) -> int:
        """Draws that the noise buffer holds."""
        if self.max_draws is not None:
            return self.max_draws
        return max(256, min(8192, 2 ** int(math.log2(2**23 / dimension))))


class Noise(eqx.Module):
    """Fixed noise in a buffer of fixed size, of which the first `num_chunks` chunks are in use."""

    values: Float[Array, "M chunk n"]
    half: Int[Array, " M"]  # which of two independent halves a chunk belongs to
    excess: Float[Array, "2 m m"]  # of each half: H0 * (second moments of the noise - I); m = 0 without control variate
    num_chunks: Int[Array, ""]
    batch_keys: Array  # a random key per chunk, for the minibatch that it sees


class Request(eqx.Module):
    """Input of the program."""

    purpose: Int[Array, ""]
    params: Float[Array, " P"]
    rhs: Float[Array, " P"]  # right-hand side of SOLVE, direction of EVALUATE
    radius: Float[Array, ""]
    gain_tolerance: Float[Array, ""]  # CLIMB ends after a step that promised less
    residual_tolerance: Float[Array, ""]  # SOLVE ends below this relative residual
    max_steps: Int[Array, ""]
    max_products: Int[Array, ""]  # per solve


class Evaluation(eqx.Module):
    """The ELBO on the noise at one q, and the derivative along one direction of it and of its gradient."""

    value: Float[Array, ""]
    halves: Float[Array, "2 P"]  # gradient on each half
    product: Float[Array, " P"]  # Hessian times direction
    draw_values: Float[Array, "M chunk"]  # ln p of each draw
    chunk_slopes: Float[Array, " M"]  # mean derivative of ln p along the direction, of each chunk

    @property
    def grad(self):
        return self.halves.mean(0)


class Reply(eqx.Module):
    """Output of the program."""

    params: Float[Array, " P"]
    evaluation: Evaluation
    solution: Float[Array, " P"]
    decrement: Float[Array, ""]  # of the last solve: rhs' x / 2
    residual: Float[Array, ""]  # of the last solve, relative, in the whitened norm
    definite: Array  # whether the last solve met no negative curvature
    radius: Float[Array, ""]
    num_steps: Int[Array, ""]
    num_products: Int[Array, ""]
    num_evaluations: Int[Array, ""]
    status: Int[Array, ""]
    elbos: Float[Array, " H"]  # ELBO after each step
    gains: Float[Array, " H"]  # Newton decrement before each step
    radii: Float[Array, " H"]


MAX_STEPS = 256


def evaluate(target: AbstractTarget, q: MeanField, noise: Noise, params, direction) -> Evaluation:
    """One pass over the draws: value, gradients of both halves, and their derivatives along `direction`."""
    dtype = params.dtype

    def chunk(index):
        density = target.batch(noise.batch_keys[index])

        def mean(p):
            moved = q.replace(p)
            values = jax.vmap(lambda e: path_log_density(density, moved, e))(noise.values[index])
            return values.mean(), values

        return jax.jvp(jax.value_and_grad(mean, has_aux=True), (params,), (direction,))

    def add(index, sums):
        halves, product, values, slopes = sums
        ((_, value), grad), ((slope, _), moved_grad) = chunk(index)
        return (
            halves.at[noise.half[index]].add(grad),
            product + moved_grad,
            values.at[index].set(value),
            slopes.at[index].set(slope),
        )

    size = noise.half.shape[0]
    zero = (
        jnp.zeros((2, params.size), dtype),
        jnp.zeros_like(params),
        jnp.zeros((size, CHUNK), dtype),
        jnp.zeros(size, dtype),
    )
    halves, product, values, slopes = jax.lax.fori_loop(0, noise.num_chunks, add, zero)
    used = noise.num_chunks.astype(dtype)
    count = jnp.maximum(used / 2, 1.0)

    def closed_form(p):
        return q.replace(p).entropy() - excess_energy(noise.excess.mean(0), p)

    (value, _), (_, moved_grad) = jax.jvp(jax.value_and_grad(closed_form), (params,), (direction,))
    own = jax.vmap(lambda excess: jax.grad(lambda p: q.replace(p).entropy() - excess_energy(excess, p))(params))
    return Evaluation(
        values.sum() / (CHUNK * used) + value,
        halves / count + own(noise.excess),
        product / used + moved_grad,
        values,
        slopes,
    )


def excess_energy(excess, params):
    """sigma' K sigma / 2: what the average over the noise makes of the quadratic part of ln p, beyond its expectation.

    Under mirrored noise e a quadratic form with Hessian H0 averages to its expectation plus this, with
    K = H0 * (mean e e' - I): the second-order control variate (Miller et al. 2017), whatever the expansion point.
    """
    if excess.shape[-1] == 0:
        return jnp.zeros((), params.dtype)
    sigma = jnp.exp(params.reshape(-1, 2)[:, 1])
    return sigma @ (excess @ sigma) / 2


@eqx.filter_jit
def mean_hessian(target: AbstractTarget, q: MeanField) -> Float[Array, "n n"]:
    """Hessian of ln p (with Jacobians) at the mean of a q of normal factors, in working coordinates: n products."""
    density = target.batch(jax.random.key(0))
    centre = q.params.reshape(-1, 2)[:, 0]

    def log_p(shift):
        return path_log_density(density, q, shift * jnp.exp(-q.params.reshape(-1, 2)[:, 1]))

    product = lambda v: jax.jvp(jax.grad(log_p), (jnp.zeros_like(centre),), (v,))[1]  # noqa: E731
    matrix = jax.lax.map(product, jnp.eye(centre.size, dtype=centre.dtype), batch_size=CHUNK)
    return (matrix + matrix.T) / 2


class _Machine(eqx.Module):
    """State of the program: one evaluation a turn, either of a candidate or of a product for conjugate gradients."""

    # the accepted point
    params: Array
    evaluation: Evaluation
    radius: Array
    # conjugate gradients in whitened coordinates: x, A x, residual, direction
    x: Array
    ax: Array
    r: Array
    d: Array
    rr: Array
    rr_start: Array
    cg_steps: Array
    edge: Array  # the last solve ended on the edge of the ball
    definite: Array
    # the candidate
    predicted: Array
    solving: Array  # this turn: a product (True) or a candidate (False)
    # bookkeeping
    finished: Array
    status: Array
    num_steps: Array
    num_products: Array
    num_evaluations: Array
    elbos: Array
    gains: Array
    radii: Array


@eqx.filter_jit
def run_program(target: AbstractTarget, q: MeanField, noise: Noise, request: Request) -> Reply:
    """Climb from `params`, or solve -H x = rhs there, or evaluate there."""
    dtype = q.params.dtype
    climbing = request.purpose == CLIMB
    resolution = jnp.finfo(dtype).eps

    def whitener(params):
        return q.replace(params).fisher().factorise()

    def begin_solve(m: _Machine, rhs) -> _Machine:
        zero = jnp.zeros_like(rhs)
        fresh = {"x": zero, "ax": zero, "r": rhs, "d": rhs, "rr": rhs @ rhs, "rr_start": rhs @ rhs}
        flags = {"cg_steps": jnp.zeros((), jnp.int32), "edge": jnp.zeros((), bool), "definite": jnp.ones((), bool)}
        return _update(m, **fresh, **flags, solving=jnp.ones((), bool))

    def after_product(m: _Machine, e: Evaluation) -> _Machine:
        """One step of truncated conjugate gradients (Steihaug 1983) on A = -F^-1/2 H F^-1/2."""
        ad = -whitener(m.params).solve(e.product)
        bend = m.d @ ad
        alpha = m.rr / jnp.where(bend > 0, bend, 1.0)
        trial = m.x + alpha * m.d
        ball = jnp.where(climbing, 2 * m.radius, jnp.inf)
        outside = trial @ trial >= ball
        negative = bend <= 0
        leave = (negative & climbing) | outside
        # To the edge along d: |x + tau d|^2 = 2 radius.
        dd, xd, gap = m.d @ m.d, m.x @ m.d, ball - m.x @ m.x
        tau = jnp.where(leave, (-xd + jnp.sqrt(jnp.maximum(xd * xd + dd * gap, 0.0))) / dd, alpha)
        tau = jnp.where(negative & ~climbing, 0.0, tau)
        r = m.r - tau * ad
        rr = r @ r
        steps = m.cg_steps + 1
        # Inexact Newton (Eisenstat and Walker 1996): digits as the gradient vanishes, so that the end is superlinear.
        root = jnp.sqrt(m.rr_start)
        climb_tolerance = jnp.minimum(0.2, jnp.sqrt(root)) * root
        tolerance = jnp.where(climbing, climb_tolerance, request.residual_tolerance * root)
        small = (jnp.sqrt(rr) <= tolerance) | (steps >= request.max_products) | ~jnp.isfinite(rr)
        end = leave | negative | small
        x, ax = m.x + tau * m.d, m.ax + tau * ad
        gradient = whitener(m.params).solve(m.evaluation.grad)
        return _update(
            m,
            x=x,
            ax=ax,
            r=r,
            d=r + rr / jnp.where(m.rr > 0, m.rr, 1.0) * m.d,
            rr=rr,
            cg_steps=steps,
            edge=leave,
            definite=m.definite & ~negative,
            predicted=gradient @ x - x @ ax / 2,
            solving=~(end & climbing),
            finished=end & ~climbing,
            num_products=m.num_products + 1,
        )

    def after_candidate(m: _Machine, e: Evaluation) -> _Machine:
        """The ratio test on common draws, then the next solve."""
        first = m.num_evaluations == 0
        finite = jnp.isfinite(e.value) & jnp.all(jnp.isfinite(e.halves))
        actual = e.value - m.evaluation.value
        # Below the rounding of the value a ratio means nothing: such a step counts as predicted.
        rounding = 20 * resolution * (jnp.abs(e.value) + 1)
        lost_in_rounding = m.predicted <= rounding
        ratio = jnp.where(lost_in_rounding & (jnp.abs(actual) <= 2 * rounding), 1.0, actual / m.predicted)
        ratio = jnp.where(finite, ratio, -1.0)
        accept = (ratio > 0.05) | (first & finite)
        length = m.x @ m.x / 2
        smaller, larger = 0.2 * jnp.minimum(length, m.radius), jnp.where(ratio > 0.9, 6.0, 2.5) * m.radius
        radius = jnp.where(ratio < 0.25, smaller, jnp.where((ratio > 0.75) & m.edge, larger, m.radius))
        radius = jnp.where(first, m.radius, radius)
        small = ~m.edge & (m.predicted <= request.gain_tolerance) & accept & ~first
        steps = jnp.where(first, 0, m.num_steps + 1)
        stuck = radius < resolution
        out = steps >= request.max_steps
        finished = small | stuck | out | (first & ~finite) | (first & ~climbing)
        status = jnp.where(small, DONE, jnp.where(out, OUT_OF_STEPS, jnp.where(stuck, STUCK, DONE)))
        status = jnp.where(small & lost_in_rounding & (m.predicted > request.gain_tolerance / 10), PRECISION, status)
        status = jnp.where(first & ~finite, BAD_START, status)
        slot = jnp.minimum(steps, MAX_STEPS - 1)
        params = m.params + whitener(m.params).solve_transpose(m.x)
        params = jnp.where(first, m.params, params)
        kept = jax.tree.map(lambda a, b: jnp.where(accept | first, a, b), e, m.evaluation)
        params = jnp.where(accept, params, m.params)
        m = _update(
            m,
            params=params,
            evaluation=kept,
            radius=radius,
            finished=finished,
            status=status.astype(jnp.int32),
            num_steps=steps,
            num_evaluations=m.num_evaluations + 1,
            elbos=m.elbos.at[slot].set(kept.value),
            gains=m.gains.at[slot].set(jnp.where(m.definite, m.predicted, jnp.inf)),
            radii=m.radii.at[slot].set(radius),
        )
        rhs = jnp.where(climbing, kept.grad, request.rhs)
        # SOLVE needs no candidate: its first turn evaluates, and then the products begin.
        solve_next = begin_solve(m, whitener(params).solve(rhs))
        return _update(solve_next, finished=finished & ~(request.purpose == SOLVE), solving=jnp.ones((), bool))

    def turn(m: _Machine) -> _Machine:
        factor = whitener(m.params)
        candidate = m.params + factor.solve_transpose(m.x)
        first = m.num_evaluations == 0
        point = jnp.where(m.solving | first, m.params, candidate)
        direction = jnp.where(m.solving, factor.solve_transpose(m.d), jnp.where(first, request.rhs, 0.0))
        e = evaluate(target, q, noise, point, direction)
        return jax.lax.cond(m.solving, after_product, after_candidate, m, e)

    zeros, scalar, count = jnp.zeros_like(request.params), jnp.zeros((), dtype), jnp.zeros((), jnp.int32)
    size = noise.half.shape[0]
    blank = Evaluation(
        scalar - jnp.inf,
        jnp.zeros((2, zeros.size), dtype),
        zeros,
        jnp.zeros((size, CHUNK), dtype),
        jnp.zeros(size, dtype),
    )
    trace, no = jnp.full(MAX_STEPS, jnp.nan, dtype), jnp.zeros((), bool)
    start = _Machine(
        request.params, blank, request.radius, zeros, zeros, zeros, zeros, scalar, scalar, count, no, ~no,
        scalar, no, no, count, count, count, count, trace, trace, trace,
    )  # fmt: skip
    m = jax.lax.while_loop(lambda m: ~m.finished, turn, start)
    factor = whitener(m.params)
    relative = jnp.sqrt(m.rr / jnp.where(m.rr_start > 0, m.rr_start, 1.0))
    rhs = factor.solve(jnp.where(climbing, m.evaluation.grad, request.rhs))
    return Reply(
        m.params, m.evaluation, factor.solve_transpose(m.x), rhs @ m.x / 2, relative, m.definite, m.radius,
        m.num_steps, m.num_products, m.num_evaluations, m.status, m.elbos, m.gains, m.radii,
    )  # fmt: skip


def _update(machine: _Machine, **changes) -> _Machine:
    values = {name: getattr(machine, name) for name in _Machine.__dataclass_fields__}
    values.update(changes)
    return _Machine(**values)
