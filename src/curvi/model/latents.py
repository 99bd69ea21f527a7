"""Named latents: shapes, types and supports, read from a start value and checked."""

import dataclasses
import math
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpyro.distributions import constraints

from curvi.model import support as supports_of


@dataclasses.dataclass(frozen=True, eq=False)
class Latent:
    """One named latent: shape and dtype on the model's own support, and that support. Compared by identity."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    support: object

    def describe(self) -> str:
        """The latent in a few words, for messages."""
        return f"'{self.name}' of shape {self.shape}, {self.dtype}, {supports_of.describe(self.support)}"

    @property
    def discrete(self) -> bool:
        return supports_of.is_discrete(self.support)


def num_elements(latents: Iterable[Latent]) -> int:
    """Number of scalars among some latents."""
    return sum(math.prod(latent.shape) for latent in latents)


def read_latents(init, supports) -> tuple[tuple[Latent, ...], dict[str, Array]]:
    """Latents and start values from `init` and `supports`; ValueError for every mismatch."""
    if not isinstance(init, Mapping) or not init:
        raise ValueError(f"init must be a non-empty dict of arrays by latent name; got {type(init).__name__}")
    supports = dict(supports or {})
    if unknown := sorted(set(supports) - set(init)):
        raise ValueError(
            f"supports names latents that are not in init: {', '.join(unknown)}; init has {', '.join(init)}"
        )
    latents, values = [], {}
    for name, raw in init.items():
        if not isinstance(name, str):
            raise ValueError(f"latent names must be strings; got {name!r}")
        support = supports.get(name, constraints.real)
        if not isinstance(support, constraints.Constraint):
            raise ValueError(f"the support of '{name}' must be a numpyro constraint; got {support!r}")
        value = _read_value(name, raw, support)
        values[name] = value
        latents.append(Latent(name, tuple(value.shape), np.dtype(value.dtype), support))
    return tuple(latents), values


def _read_value(name: str, raw, support) -> Array:
    """The start of one latent as an array with the dtype of the computation, checked to lie in the support.

    The checks use numpy: on JAX arrays each would compile a program.
    """
    value = np.asarray(raw)
    if not any(jnp.issubdtype(value.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
        raise ValueError(
            f"init of latent '{name}' must be an array of real numbers; got {type(raw).__name__} of {value.dtype}"
        )
    if value.size == 0:
        raise ValueError(f"latent '{name}' is empty (shape {value.shape}); leave it out")
    if not np.all(np.isfinite(value)):
        raise ValueError(f"init of latent '{name}' is not finite; give a finite start")
    if value.ndim < support.event_dim:
        raise ValueError(
            f"init of latent '{name}' has {value.ndim} axes; its support ({supports_of.describe(support)}) "
            f"needs at least {support.event_dim}"
        )
    # Checked before the cast to integers, which would round 0.7 to a valid 0.
    if not np.all(supports_of.elementwise(support)(value)):
        raise ValueError(
            f"init of latent '{name}' lies outside its support ({supports_of.describe(support)}): "
            f"{_shorten(value)}; give a start inside, or correct the support"
        )
    if supports_of.is_discrete(support):
        return jnp.asarray(value, jnp.int32)
    # An explicit dtype: a Python number would otherwise be weakly typed and take the dtype of the data.
    own = jnp.issubdtype(value.dtype, jnp.floating) and not isinstance(raw, float)
    return jnp.asarray(value, jax.dtypes.canonicalize_dtype(value.dtype) if own else jnp.result_type(float))


def check_order(order) -> int:
    if order not in (0, 1, 2) or isinstance(order, bool):
        raise ValueError(f"order must be 0, 1 or 2 (how often the log density may be differentiated); got {order!r}")
    return int(order)


def _shorten(value) -> str:
    text = np.array2string(np.asarray(value), precision=4, threshold=6)
    return text if len(text) < 80 else text[:77] + "..."
