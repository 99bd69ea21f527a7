"""Properties and names of numpyro constraints, the supports of latents."""

import math

import numpy as np
from numpyro.distributions import biject_to, constraints, transforms
from scipy.special import logit

_INDEPENDENT = type(constraints.independent(constraints.real, 1))


def elementwise(support):
    """The constraint on one element, with the wrapper that marks event dimensions removed."""
    while isinstance(support, _INDEPENDENT):
        support = support.base_constraint
    return support


def is_discrete(support) -> bool:
    return bool(elementwise(support).is_discrete)


def is_boolean(support) -> bool:
    return isinstance(elementwise(support), type(constraints.boolean))


def integer_range(support) -> tuple[int, int] | None:
    """The smallest and the largest value of a bounded integer support, None for any other."""
    base = elementwise(support)
    if isinstance(base, type(constraints.integer_interval(0, 1))):
        lowest, highest = np.asarray(base.lower_bound), np.asarray(base.upper_bound)
        if lowest.ndim == highest.ndim == 0:
            return int(lowest), int(highest)
    return None


def is_count(support) -> bool:
    base = elementwise(support)
    return (
        isinstance(base, type(constraints.integer_greater_than(0)))
        and np.ndim(base.lower_bound) == 0 == base.lower_bound
    )


def is_simplex(support) -> bool:
    return isinstance(elementwise(support), type(constraints.simplex))


def bounds(support) -> tuple[float, float] | None:
    """Lower and upper end of a continuous elementwise support, None where it has no such form."""
    base = elementwise(support)
    if base.is_discrete or base.event_dim > 0:
        return None
    if isinstance(base, type(constraints.real)):
        return -math.inf, math.inf
    lower, upper = getattr(base, "lower_bound", None), getattr(base, "upper_bound", None)
    if lower is None and upper is None:
        return None
    ends = [np.asarray(-math.inf if lower is None else lower), np.asarray(math.inf if upper is None else upper)]
    if any(end.ndim for end in ends):
        return None
    return float(ends[0]), float(ends[1])


def is_positive(support) -> bool:
    return bounds(support) == (0.0, math.inf)


def is_unit_interval(support) -> bool:
    return bounds(support) == (0.0, 1.0)


def is_real(support) -> bool:
    return isinstance(elementwise(support), type(constraints.real))


def describe(support) -> str:
    """A short name of a constraint for messages."""
    base = elementwise(support)
    if is_positive(base):
        return "positive"
    if is_unit_interval(base):
        return "unit interval"
    if (whole := integer_range(base)) is not None:
        return f"integers {whole[0]} to {whole[1]}"
    if is_count(base):
        return "counts (0, 1, 2, ...)"
    return type(base).__name__.lstrip("_").lower()


def to_real(support, value) -> np.ndarray:
    """The real numbers that numpyro's bijection maps to this value of a continuous support.

    Uses numpy for the usual bijections: a JAX operation outside a program costs a compilation.
    """
    with np.errstate(all="ignore"):  # infinite at the ends of an interval
        return np.asarray(_inverse(biject_to(support), np.asarray(value)))


def _inverse(transform, value):
    kind = type(transform)
    if kind is transforms.ComposeTransform:
        for part in reversed(transform.parts):
            value = _inverse(part, value)
        return value
    if kind is transforms.IndependentTransform:
        return _inverse(transform.base_transform, value)
    if kind is transforms.AffineTransform:
        return (value - np.asarray(transform.loc)) / np.asarray(transform.scale)
    if kind is transforms.ExpTransform:
        return np.log(value)
    return logit(value) if kind is transforms.SigmoidTransform else transform.inv(value)
