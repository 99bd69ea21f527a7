"""Start values on the usual supports, in numpy and so without compilation."""

import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from curvi.model import support as supports_of


def known_start(support, shape):
    """The start on a support whose bijection maps zero to a known value; None for any other."""
    base = supports_of.elementwise(support)
    if (known := _KNOWN_STARTS.get(type(base))) is None:
        return None
    dtype = np.int32 if supports_of.is_discrete(base) else jnp.result_type(float)
    return np.broadcast_to(np.asarray(known(base, shape), dtype), shape)


_KNOWN_STARTS = {
    type(constraints.real): lambda support, shape: 0.0,
    type(constraints.positive): lambda support, shape: 1.0,
    type(constraints.nonnegative): lambda support, shape: 1.0,
    constraints.greater_than: lambda support, shape: np.asarray(support.lower_bound) + 1.0,
    type(constraints.unit_interval): lambda support, shape: 0.5,
    type(constraints.circular): lambda support, shape: 0.0,
    constraints.interval: lambda support, shape: np.mean(_ends(support), axis=0),
    type(constraints.simplex): lambda support, shape: 1 / shape[-1],
    type(constraints.ordered_vector): lambda support, shape: np.arange(shape[-1]),
    type(constraints.boolean): lambda support, shape: 0,
    type(constraints.nonnegative_integer): lambda support, shape: 0,
    constraints.integer_interval: lambda support, shape: support.lower_bound,
}


def _ends(support):
    return np.broadcast_arrays(support.lower_bound, support.upper_bound)
