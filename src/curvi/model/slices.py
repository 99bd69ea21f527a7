"""Parts of traced programs: the equations behind some results, as functions of intermediate values."""

from collections.abc import Callable, Iterable, Mapping

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun


def behind(jaxpr: Jaxpr, wanted: Iterable, known: Iterable = ()) -> tuple[list, set]:
    """The equations from which the variables `wanted` follow, given those that are `known`; and all variables read."""
    known, needed = set(known), []
    read = {var for var in wanted if not isinstance(var, Literal)}
    for equation in reversed(jaxpr.eqns):
        if any(var in read and var not in known for var in equation.outvars):
            needed.append(equation)
            read.update(var for var in equation.invars if not isinstance(var, Literal))
    return needed[::-1], read


def as_function(program: ClosedJaxpr, wanted: list, named: Mapping[str, object]) -> tuple[Callable, tuple[str, ...]]:
    """The variables `wanted` of a program as a function of a dict of the variables `named`, and the names it needs.

    Raises ValueError if they also need an input of the program that has no name.
    """
    jaxpr = program.jaxpr
    equations, read = behind(jaxpr, wanted, named.values())
    names = tuple(name for name, var in named.items() if var in read)
    inputs = [named[name] for name in names]
    if any(var in read and var not in inputs for var in jaxpr.invars):
        raise ValueError("the result needs an input of the program that has no name")
    constants = [(var, value) for var, value in zip(jaxpr.constvars, program.consts) if var in read]
    unnamed = jaxpr.debug_info._replace(arg_names=("",) * len(inputs), result_paths=("",) * len(wanted))
    variables, values = [var for var, _ in constants], [value for _, value in constants]
    part = jaxpr.replace(constvars=variables, invars=inputs, outvars=list(wanted), eqns=equations, debug_info=unnamed)
    run = jaxpr_as_fun(ClosedJaxpr(part, values))
    return lambda given: run(*(given[name] for name in names)), names
