"""What a target refuses of a NumPyro model: primitives, dependent supports, invalid constants and observations."""

import jax
import numpy as np
import numpyro.distributions as dist
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Literal
from numpyro.distributions import constraints

from curvi.model import support as supports_of


def refuse(name: str, site) -> None:
    """Raise ValueError for a primitive that a target does not support."""
    if site["type"] in ("param", "mutable"):
        raise ValueError(
            f"site '{name}' is a numpyro.{site['type']}, which has no density; give it a prior "
            "(numpyro.sample), or pass its value to the model as an argument"
        )


def refuse_dependent(program: ClosedJaxpr, latents) -> None:
    """Raise ValueError if the support of a latent is computed from the value of another."""
    out = program.jaxpr.outvars
    reached = {out[latent.start_at] for latent in latents}
    for equation in program.jaxpr.eqns:
        if any(not isinstance(var, Literal) and var in reached for var in equation.invars):
            reached.update(equation.outvars)
    for latent in latents:
        if any(not isinstance(out[at], Literal) and out[at] in reached for at in latent.leaves_at):
            raise ValueError(
                f"the support of site '{latent.name}' ({kind_of(latent.support)}) depends on another latent. "
                "Sample a quantity of fixed support instead, such as the fraction of an interval, and "
                f"compute '{latent.name}' from it with numpyro.deterministic"
            )


def check_constants(name: str, fn, support, value) -> None:
    """Raise ValueError if a constant parameter or observation of a site is invalid."""
    layers = [fn]
    while (base := getattr(layers[-1], "base_dist", None)) is not None:
        layers.append(base)
    masked = any(isinstance(layer, dist.MaskedDistribution) for layer in layers)
    if value is not None and not masked and not _contains(support, value):
        raise ValueError(
            f"observations of site '{name}' lie outside the support of {type(fn).__name__} "
            f"({supports_of.describe(support)}); correct the data or the distribution"
        )
    for layer in layers:
        for parameter, constraint in layer.arg_constraints.items():
            given = vars(layer).get(parameter)
            if isinstance(given, int | float | np.ndarray | jax.Array) and not _contains(constraint, given):
                raise ValueError(
                    f"site '{name}': {type(layer).__name__} got an invalid {parameter}, {given}; "
                    f"it must be {supports_of.describe(constraint)}"
                )


def _contains(constraint, value) -> bool:
    """Whether a constant satisfies a constraint; True if that is unknown without running the model."""
    if constraint is None or constraints.is_dependent(constraint) or is_traced((constraint, value)):
        return True
    # The value of a `factor` site is empty.
    # Of an array that lies spread over processes, each looks at its own rows.
    spread = isinstance(value, jax.Array) and not value.is_fully_addressable
    parts = [shard.data for shard in value.addressable_shards] if spread else [value]
    allowed = supports_of.elementwise(constraint)
    return all(np.size(part) == 0 or bool(np.all(allowed(np.asarray(part)))) for part in parts)


def is_traced(tree) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def kind_of(support) -> str:
    return type(supports_of.elementwise(support)).__name__.lstrip("_").lower()
