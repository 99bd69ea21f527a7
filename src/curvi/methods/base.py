"""What the loop asks of a method: `init` makes a state without touching the model, `step` advances it by one step."""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from curvi.estimate.local import Counts
from curvi.family import MeanField
from curvi.model.target import AbstractTarget


class Record(eqx.Module):
    """What one step reports; `elbo` and `remaining_gain` speak of the q that the step estimated."""

    elbo: Float[Array, ""]
    elbo_se: Float[Array, ""]
    remaining_gain: Float[Array, ""]
    remaining_gain_se: Float[Array, ""]
    num_draws: Int[Array, ""]
    radius: Float[Array, ""]
    accepted: Array
    curvature_weight: Float[Array, ""]
    counts: Counts


class AnyMethod(eqx.Module):
    """A way to climb the ELBO: what it needs of a target."""

    needs_order: ClassVar[int] = 0
    needs_reparameterised: ClassVar[bool] = False
    needs_kl: ClassVar[bool] = False  # of factors that are not reparameterised
    takes_black_box: ClassVar[bool] = False
    default_num_steps: ClassVar[int] = 500


class Method(AnyMethod):
    """A method that climbs step by step. States carry the current distribution as `q`."""

    @abstractmethod
    def init(self, target: AbstractTarget, q: MeanField, key) -> Any:
        """The state before the first step; no call of the model."""

    @abstractmethod
    def step(self, target: AbstractTarget, state: Any, key) -> tuple[Any, Record]:
        """The next state, and what happened."""


def check_fit(method: AnyMethod, target: AbstractTarget, q: MeanField) -> None:
    """Raise ValueError where the method cannot work on the target."""
    name = type(method).__name__
    if target.black_box and not method.takes_black_box:
        raise ValueError(
            f"{name} compiles the log density, which is a black box; use PooledRegression, the default for black boxes"
        )
    if target.order < method.needs_order:
        raise ValueError(
            f"{name} differentiates the log density {method.needs_order} time(s), but the target says "
            f"order={target.order}; use a score method (SchemeI, SchemeII, Algorithm0, NaturalGradient, BBVI), "
            "or raise `order` if it is differentiable"
        )
    factors = {slot.latent.name: q.layout.factors[slot.group] for slot in q.layout.slots}
    if method.needs_kl and (names := sorted(n for n, f in factors.items() if not (f.reparameterised or f.has_kl))):
        raise ValueError(
            f"{name} needs draws or Kullback-Leibler divergences that the factors of {', '.join(names)} do not have; "
            "use Normal factors there, or a score method (SchemeI, NaturalGradient, BBVI)"
        )
    if method.needs_reparameterised and not q.reparameterised:
        names = sorted(n for n, f in factors.items() if not f.reparameterised)
        raise ValueError(
            f"{name} differentiates through the draws, which the factors of {', '.join(names)} do not allow; "
            "use Normal or LogNormal factors there, or a score method (SchemeI, NaturalGradient, BBVI)"
        )


def select(condition, if_true, if_false):
    """`if_true` or `if_false`, leaf by leaf, for two trees of one structure."""
    return jax.tree.map(
        lambda a, b: jnp.where(condition, a, b) if eqx.is_array(a) else a, if_true, if_false, is_leaf=eqx.is_array
    )


def zeros_like_output(function, *args):
    """A tree of zeros with the structure of `function(*args)`, without calling it."""
    shapes = eqx.filter_eval_shape(function, *args)
    return jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf, shapes
    )


def as_counts(counts: Counts) -> Counts:
    """Counts as arrays of one dtype, so that records of all steps stack."""
    return jax.tree.map(lambda c: jnp.asarray(c, jnp.int32), counts)
