"""Second-order regression on pooled draws: the default where values of the log density are all there is.

Each step draws a batch from q, pools it with the batches before by importance weights, and regresses ln p - ln q on
scores and products of scores (`estimate.pairs`): natural gradient and Hessian in one least-squares problem, without a
derivative of the model. The small linear algebra runs on the host between compiled batches of draws, so that nothing
is compiled anew when their number changes, and the model may as well be a Python function.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from curvi.estimate.draws import bits_to_unit
from curvi.family import MeanField
from curvi.methods.base import AnyMethod
from curvi.model.over_draws import over_draws
from curvi.model.target import AbstractTarget


class PooledRegression(AnyMethod):
    """Newton's method on regressed curvature, inside a ball of given divergence, on pooled draws.

    Attributes
    ----------
    correction
        Whether products of scores are regressed on. Without them the step is the natural gradient, by regression.
    first_draws
        Draws of a batch before noise asks for more; None takes four more than half the number of variational
        parameters. The first step is made on three batches.
    max_draws
        Most draws of one batch.
    """

    correction: bool = eqx.field(static=True, default=True)
    first_draws: int | None = eqx.field(static=True, default=None)
    max_draws: int = eqx.field(static=True, default=16_384)
    takes_black_box: ClassVar[bool] = True
    default_num_steps: ClassVar[int] = 300

    def __check_init__(self):
        for name in ("first_draws", "max_draws"):
            number = getattr(self, name)
            if number is not None and (not isinstance(number, int) or number < 8):
                raise ValueError(f"{name} must be an integer of at least 8; got {number!r}")

    def batch_draws(self, num_params: int) -> int:
        """Draws of a batch."""
        wanted = num_params // 2 + 4 if self.first_draws is None else self.first_draws
        return min(max(wanted, 8), self.max_draws)


@eqx.filter_jit
def draw(target: AbstractTarget, q: MeanField, bits, key, index):
    """The draws of q at these points, and ln p at each; a minibatched target gives each draw rows of its own."""

    def one(bits, key):
        x = q.from_uniform(bits_to_unit(bits, q.params.dtype))
        theta, log_det = q.to_model(x)
        return x, target.batch(key)(theta) + log_det

    return over_draws(target, len(bits))(one)(bits, jax.random.split(jax.random.fold_in(key, index), len(bits)))


@eqx.filter_jit
def draw_inputs(q: MeanField, bits):
    """The draws of q at these points, each as the dict that a model takes, and the log Jacobian of its bijections."""

    def one(bits):
        x = q.from_uniform(bits_to_unit(bits, q.params.dtype))
        return x, *q.to_model(x)

    return jax.vmap(one)(bits)


@eqx.filter_jit
def look(q: MeanField, x):
    """ln q and whitened scores of each row of x."""
    factor = q.fisher().factorise()

    def one(row):
        return q.log_prob(row), factor.solve(q.score(row))

    return jax.vmap(one)(x)


@eqx.filter_jit
def move(q: MeanField, step):
    """q moved by a whitened step, along a straight line in the natural parameters of each factor where that is valid.

    In natural parameters a unit step of the natural gradient ends at the best factor given the others, if that lies
    in the family. Elsewhere, and where the line leaves the family, the line is straight in the factor's own parameters.
    """
    direction = q.fisher().factorise().solve_transpose(step)
    parts = []
    for factor, params, along in zip(q.layout.factors, q.split(q.params), q.split(direction)):
        natural, slope = jax.jvp(factor.natural, (params,), (along,))
        moved = factor.from_natural(natural + slope)
        valid = jnp.all(jnp.isfinite(moved), -1, keepdims=True)
        parts.append(jnp.where(valid, moved, params + along).reshape(-1))
    return q.replace(jnp.concatenate(parts))


@eqx.filter_jit
def widen(q: MeanField):
    """q with its discrete factors flattened, so that in each draw about one of them takes any value there is."""
    parts = [
        factor.widened(params, _uniform_share(q)).reshape(-1)
        for factor, params in zip(q.layout.factors, q.group_params())
    ]
    return q.replace(jnp.concatenate(parts))


def rare_draws(q: MeanField) -> int:
    """Draws of the flattened q among which each value of each discrete factor shows about once; 0 without any."""
    most = max((len(factor.values) for factor in q.layout.factors if factor.values is not None), default=0)
    return int(np.ceil(most / _uniform_share(q)))


def _uniform_share(q: MeanField) -> float:
    discrete = sum(count for factor, count in zip(q.layout.factors, q.layout.counts) if factor.values is not None)
    return 1 / max(2, discrete)


def evaluate(target: AbstractTarget, q: MeanField, bits, key, index):
    """`draw`, by the host where the log density is a black box."""
    if not target.black_box:
        return draw(target, q, bits, key, index)
    x, theta, log_det = draw_inputs(q, bits)
    values = target.caller({name: np.asarray(rows) for name, rows in theta.items()})
    return x, values + np.asarray(log_det, np.float64)
