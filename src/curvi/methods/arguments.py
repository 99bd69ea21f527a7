"""Checks of what a call of `curvi.fit` asks for."""

from curvi.methods.base import Method
from curvi.methods.first_family import check_family
from curvi.record.checkpoint import check_key


def check_arguments(
    target, key, family, method, num_steps, tolerance, num_starts, max_seconds, max_evaluations, memory
) -> None:
    """Raise ValueError, with the name of the argument and what it may be, before anything is computed."""
    check_key(key)
    check_family(family, target)
    if method is not None and not isinstance(method, Method):
        raise ValueError(f"method must be one of curvi.methods, as an instance; got {method!r}")
    counted = {"num_steps": num_steps, "max_evaluations": max_evaluations, "num_starts": num_starts, "memory": memory}
    for name, number in counted.items():
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
            what = "integer" if name == "num_starts" else "integer or None"
            raise ValueError(f"{name} must be a positive {what}; got {number!r}")
    if tolerance is not None and not (isinstance(tolerance, int | float) and tolerance > 0):
        raise ValueError(f"tolerance must be a positive number of nats or None; got {tolerance!r}")
    if max_seconds is not None and not (isinstance(max_seconds, int | float) and max_seconds > 0):
        raise ValueError(f"max_seconds must be a positive number of seconds or None; got {max_seconds!r}")
