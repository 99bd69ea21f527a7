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
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int

from curvi.curvature import BlockFactor
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
    mean_metric: Float[Array, "m m"]  # Cholesky factor of -H0, the metric of the means where `use_metric` says so
    use_metric: Array
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
    definite: Array  # whether the last solve met no negative curvature
    radius: Float[Array, ""]
    num_steps: Int[Array, ""]
    num_products: Int[Array, ""]
    num_evaluations: Int[Array, ""]
    status: Int[Array, ""]
    trace: Float[Array, "H 3"]  # ELBO after, Newton decrement before, and radius after each step


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
        """Entropy, less the excess of each half."""
        return q.replace(p).entropy() - jax.vmap(lambda excess: excess_energy(excess, p))(noise.excess)

    # Few parameters a factor and no model: the derivatives of the closed part cost next to nothing.
    value = closed_form(params).mean()
    own = jax.vmap(lambda weight: jax.grad(lambda p: weight @ closed_form(p))(params))(jnp.eye(2, dtype=dtype))
    moved_grad = jax.jvp(jax.grad(lambda p: closed_form(p).mean()), (params,), (direction,))[1]
    return Evaluation(
        values.sum() / (CHUNK * used) + value, halves / count + own, product / used + moved_grad, values, slopes
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


class _Metric(eqx.Module):
    """The Fisher metric, or -H0 in its place for the means of normal factors.

    H0 costs as much as a few products on all draws, holds the correlation of the means, and leaves conjugate gradients
    little to do.
    """

    fisher: BlockFactor
    lower: Float[Array, "m m"]
    use: Array

    def solve(self, v):
        return self._means(self.fisher.solve(v), v, 0)

    def solve_transpose(self, v):
        return self._means(self.fisher.solve_transpose(v), v, 1)

    def _means(self, plain, v, transpose: int):
        if self.lower.shape[0] == 0:
            return plain
        pairs = plain.reshape(-1, 2)
        dense = solve_triangular(self.lower, v.reshape(-1, 2)[:, 0], lower=True, trans=transpose)
        return pairs.at[:, 0].set(jnp.where(self.use, dense, pairs[:, 0])).reshape(-1)


class _Machine(eqx.Module):
    """State of the program: one evaluation a turn, either of a candidate or of a product for conjugate gradients."""

    # the accepted point
    params: Array
    evaluation: Evaluation
    radius: Array
    # conjugate gradients in whitened coordinates: A x = b, with x, A x, residual and direction
    b: Array
    x: Array
    ax: Array
    r: Array
    d: Array
    cg_steps: Array  # 0 before the first product: b, r and d are then still to be whitened
    edge: Array  # the last solve ended on the edge of the ball
    definite: Array
    solving: Array  # this turn: a product (True) or a candidate (False)
    # bookkeeping
    finished: Array
    status: Array
    num_steps: Array
    num_products: Array
    num_evaluations: Array
    trace: Array  # ELBO, Newton decrement and radius of each step


@eqx.filter_jit
def run_program(target: AbstractTarget, q: MeanField, noise: Noise, request: Request) -> Reply:
    """Climb from `params`, or solve -H x = rhs there, or evaluate there."""
    dtype = q.params.dtype
    climbing, resolution = request.purpose == CLIMB, jnp.finfo(dtype).eps
    zeros, no, zero = jnp.zeros_like(request.params), jnp.zeros((), bool), jnp.zeros((), jnp.int32)

    def metric(params) -> _Metric:
        return _Metric(q.replace(params).fisher().factorise(), noise.mean_metric, noise.use_metric)

    def after_product(m: _Machine, e: Evaluation, candidate, ad) -> _Machine:
        """One step of truncated conjugate gradients (Steihaug 1983) on A = -L^-1 H L^-T, with the metric L L'."""
        rr, bend, dd, xd, xx = m.r @ m.r, m.d @ ad, m.d @ m.d, m.x @ m.d, m.x @ m.x
        alpha = rr / jnp.where(bend > 0, bend, 1.0)
        ball = jnp.where(climbing, 2 * m.radius, jnp.inf)
        negative = bend <= 0
        leave = (negative & climbing) | (xx + alpha * (2 * xd + alpha * dd) >= ball)
        # To the edge along d: |x + tau d|^2 = 2 radius.
        tau = jnp.where(leave, (jnp.sqrt(jnp.maximum(xd * xd + dd * (ball - xx), 0.0)) - xd) / dd, alpha)
        tau = jnp.where(negative & ~climbing, 0.0, tau)
        # An overflowing product would leave x at zero, which reads like nothing to gain.
        tau = jnp.where(jnp.isfinite(bend) | climbing, tau, jnp.nan)
        r = m.r - tau * ad
        rr_next, bb = r @ r, m.b @ m.b
        # Inexact Newton (Eisenstat and Walker 1996): digits as the gradient vanishes, so that the end is superlinear.
        climb_tolerance = jnp.minimum(0.2, bb**0.25)
        tolerance = jnp.where(climbing, climb_tolerance, request.residual_tolerance) ** 2 * bb
        small = (rr_next <= tolerance) | (m.cg_steps + 1 >= request.max_products) | ~jnp.isfinite(rr_next)
        end = leave | negative | small
        return _update(
            m,
            x=m.x + tau * m.d,
            ax=m.ax + tau * ad,
            r=r,
            d=r + rr_next / jnp.where(rr > 0, rr, 1.0) * m.d,
            cg_steps=m.cg_steps + 1,
            edge=leave,
            definite=m.definite & ~negative,
            solving=~(end & climbing),
            finished=end & ~climbing,
            num_products=m.num_products + 1,
        )

    def after_candidate(m: _Machine, e: Evaluation, candidate, _) -> _Machine:
        """The ratio test on common draws; the next turn begins the next solve."""
        first = m.num_evaluations == 0
        finite = jnp.isfinite(e.value) & jnp.all(jnp.isfinite(e.halves))
        predicted, actual = m.b @ m.x - m.x @ m.ax / 2, e.value - m.evaluation.value
        # Below the rounding of the value a ratio means nothing: such a step counts as predicted.
        rounding = 20 * resolution * (jnp.abs(e.value) + 1)
        lost_in_rounding = predicted <= rounding
        ratio = jnp.where(lost_in_rounding & (jnp.abs(actual) <= 2 * rounding), 1.0, actual / predicted)
        ratio = jnp.where(finite, ratio, -1.0)
        accept = finite & (first | (ratio > 0.05))
        smaller = 0.2 * jnp.minimum(m.x @ m.x / 2, m.radius)
        larger = jnp.where(ratio > 0.9, 6.0, 2.5) * m.radius
        radius = jnp.where(ratio < 0.25, smaller, jnp.where((ratio > 0.75) & m.edge, larger, m.radius))
        radius = jnp.where(first, m.radius, radius)
        small = ~m.edge & (predicted <= request.gain_tolerance) & accept & ~first
        steps = jnp.where(first, 0, m.num_steps + 1)
        stuck, out = radius < resolution, steps >= request.max_steps
        limited = small & lost_in_rounding & (predicted > request.gain_tolerance / 10)
        status = jnp.select(
            [first & ~finite, limited, small, out, stuck], [BAD_START, PRECISION, DONE, OUT_OF_STEPS, STUCK], DONE
        )
        # SOLVE needs no candidate: its first turn evaluates, and then the products begin.
        finished = (small | stuck | out | (first & (~finite | ~climbing))) & (request.purpose != SOLVE)
        kept = jax.tree.map(lambda new, old: jnp.where(accept | first, new, old), e, m.evaluation)
        gain = jnp.where(m.definite, predicted, jnp.inf)
        return _update(
            m,
            params=jnp.where(accept, candidate, m.params),
            evaluation=kept,
            radius=radius,
            # The last solution stays for the reply.
            x=jnp.where(finished, m.x, zeros),
            ax=zeros,
            cg_steps=zero,
            edge=no,
            definite=jnp.where(finished, m.definite, True),
            solving=~no,
            finished=finished,
            status=status.astype(jnp.int32),
            num_steps=steps,
            num_evaluations=m.num_evaluations + 1,
            trace=m.trace.at[jnp.minimum(steps, MAX_STEPS - 1)].set(jnp.stack([kept.value, gain, radius])),
        )

    def turn(m: _Machine) -> _Machine:
        factor = metric(m.params)
        begins = m.solving & (m.cg_steps == 0)
        rhs = factor.solve(jnp.where(climbing, m.evaluation.grad, request.rhs))
        pick = lambda fresh, old: jnp.where(begins, fresh, old)  # noqa: E731
        m = _update(m, b=pick(rhs, m.b), r=pick(rhs, m.r), d=pick(rhs, m.d))
        along = factor.solve_transpose(jnp.where(m.solving, m.d, m.x))
        candidate = m.params + along
        first = m.num_evaluations == 0
        point = jnp.where(m.solving, m.params, candidate)
        direction = jnp.where(m.solving, along, jnp.where(first, request.rhs, 0.0))
        e = evaluate(target, q, noise, point, direction)
        return jax.lax.cond(m.solving, after_product, after_candidate, m, e, candidate, -factor.solve(e.product))

    size = noise.half.shape[0]
    nothing = jnp.full((), -jnp.inf, dtype)
    values, slopes = jnp.zeros((size, CHUNK), dtype), jnp.zeros(size, dtype)
    blank = Evaluation(nothing, jnp.zeros((2, zeros.size), dtype), zeros, values, slopes)
    trace = jnp.full((MAX_STEPS, 3), jnp.nan, dtype)
    start = _Machine(
        request.params, blank, request.radius, zeros, zeros, zeros, zeros, zeros, zero, no, ~no,
        no, no, zero, zero, zero, zero, trace,
    )  # fmt: skip
    m = jax.lax.while_loop(lambda m: ~m.finished, turn, start)
    solution = metric(m.params).solve_transpose(m.x)
    return Reply(
        m.params, m.evaluation, solution, m.b @ m.x / 2, m.definite, m.radius,
        m.num_steps, m.num_products, m.num_evaluations, m.status, m.trace,
    )  # fmt: skip


def _update(machine: _Machine, **changes) -> _Machine:
    values = {name: getattr(machine, name) for name in _Machine.__dataclass_fields__}
    values.update(changes)
    return _Machine(**values)
