"""User functions, traced once.

The user's Python function runs exactly once, when a target is made; afterwards its traced form is called, and arrays
that it closes over are data of the target rather than constants of every compiled program.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp


def trace(function, init, name: str, *more):
    """`function` traced once on abstract values like `init`, checked to return one real number."""
    if not callable(function):
        raise ValueError(f"{name} must be a function of a dict of latents; got {type(function).__name__}")
    traced = convert(function, init, *more)
    out = jax.eval_shape(traced, init, *more)
    leaves = jax.tree.leaves(out)
    if len(leaves) != 1 or leaves[0].shape != ():
        shapes = [leaf.shape for leaf in leaves]
        raise ValueError(
            f"{name} must return one number, ln p(theta, X); it returned {len(leaves)} array(s) of shape {shapes}. "
            "If these are terms, return their sum (jnp.sum)."
        )
    if not jnp.issubdtype(leaves[0].dtype, jnp.floating):
        raise ValueError(f"{name} must return a real floating-point number; it returned {leaves[0].dtype}")
    return traced


def trace_outputs(outputs, init, *more):
    """`outputs` traced once on abstract values like `init`, checked to return a dict; None stays None."""
    if outputs is None:
        return None
    if not callable(outputs):
        raise ValueError(f"outputs must be a function of a dict of latents; got {type(outputs).__name__}")
    traced = convert(outputs, init, *more)
    if not isinstance(out := jax.eval_shape(traced, init, *more), dict):
        raise ValueError(f"outputs must return a dict of arrays by name; it returned {type(out).__name__}")
    return traced


def convert(function, *examples):
    """The traced form of `function`: a pytree whose leaves are the arrays that it closes over."""
    # The lambda always has a closure. Equinox leaves a function without a closure untraced, to be called at
    # every use, with global arrays as constants.
    traced: Any = eqx.filter_closure_convert(lambda *args: function(*args), *examples)
    # numpy arrays stay on the host when they are captured: put them on the device once.
    return eqx.tree_at(
        lambda t: t.consts, traced, [const if _spread(const) else jax.device_put(const) for const in traced.consts]
    )


def _spread(const) -> bool:
    """Whether an array lies spread over several processes."""
    return isinstance(const, jax.Array) and not const.is_fully_addressable
