"""Whether every row of a result depends only on the same row of a vector, read from a traced program.

The vector has one entry per row. Each intermediate result either does not depend on it, or has an axis whose entry i
depends only on row i of the vector, or may mix rows. The rules below propagate that axis through operations. An
operation without a rule is assumed to mix rows.
"""

import math
from collections.abc import Callable

from jax.extend.core import Jaxpr, Literal

MIXED = "mixed"
"""The dependence of a result whose rows may depend on other rows. Otherwise: the axis of the rows, or None."""

Dependence = int | str | None


def row_dependence(jaxpr: Jaxpr, inputs: list[Dependence]) -> list[Dependence]:
    """The dependence of each output, given that of each input. The axis of the rows is longer than one."""
    known = dict(zip(jaxpr.invars, inputs))
    for equation in jaxpr.eqns:
        given = [None if isinstance(var, Literal) else known.get(var) for var in equation.invars]
        known.update(zip(equation.outvars, _through(equation, given)))
    return [None if isinstance(var, Literal) else known.get(var) for var in jaxpr.outvars]


def _through(equation, given: list[Dependence]) -> list[Dependence]:
    num_outputs, name = len(equation.outvars), equation.primitive.name
    if all(dependence is None for dependence in given):
        return [None] * num_outputs
    if (inner := _called(equation)) is not None:
        return row_dependence(inner, given)
    rule = _RULES.get(name)
    return [MIXED if rule is None or MIXED in given else rule(equation, given)] * num_outputs


def _called(equation) -> Jaxpr | None:
    """The inner program of an equation that only calls it; else None."""
    if (parameter := _CALLS.get(equation.primitive.name)) is None:
        return None
    inner = equation.params.get(parameter)
    inner = getattr(inner, "jaxpr", inner)
    return inner if inner is not None and len(inner.invars) == len(equation.invars) else None


_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    **dict.fromkeys(("checkpoint", "remat", "remat2"), "jaxpr"),
}


def _agreed(axes) -> Dependence:
    """The axis common to all dependent operands; MIXED if they differ."""
    found = {axis for axis in axes if axis is not None}
    return found.pop() if len(found) == 1 else MIXED


def _elementwise(equation, given):
    rank = len(_shape(equation.outvars[0]))
    same = all(axis is None or len(_shape(var)) == rank for var, axis in zip(equation.invars, given))
    return _agreed(given) if same else MIXED


def _along(parameter: str) -> Callable:
    """A rule for operations along one axis that leave all others unchanged."""

    def rule(equation, given):
        return MIXED if equation.params[parameter] in given else _agreed(given)

    return rule


def _reduced(parameter: str) -> Callable:
    """A rule for operations that remove axes."""

    def rule(equation, given):
        gone, axis = equation.params[parameter], given[0]
        return MIXED if axis in gone else axis - sum(other < axis for other in gone)

    return rule


def _broadcast(equation, given):
    axis = equation.params["broadcast_dimensions"][given[0]]
    return axis if len(given) == 1 else MIXED


def _stacked(equation, given):
    axis = _agreed(given)
    return axis if axis is MIXED else axis + (equation.params["axis"] <= axis)


def _reshaped(equation, given):
    if equation.params["dimensions"] is not None:
        return MIXED
    old, new, axis = _shape(equation.invars[0]), _shape(equation.outvars[0]), given[0]
    # The axis is kept if the number of elements before it is unchanged. Being longer than one, its place is unique.
    for place, length in enumerate(new):
        if length == old[axis] and math.prod(new[:place]) == math.prod(old[:axis]):
            return place
    return MIXED


def _transposed(equation, given):
    return equation.params["permutation"].index(given[0])


def _reversed(equation, given):
    return MIXED if given[0] in equation.params["dimensions"] else given[0]


def _sliced(equation, given):
    """Slices and padding that leave the rows unchanged. Both keep the number of axes."""
    if any(dependence is not None for dependence in given[1:]):
        return MIXED
    axis, params = given[0], equation.params
    if "padding_config" in params:
        whole = tuple(params["padding_config"][axis]) == (0, 0, 0)
    elif "slice_sizes" in params:
        whole = params["slice_sizes"][axis] == _shape(equation.invars[0])[axis]
    else:
        steps = params["strides"]
        whole = _shape(equation.outvars[0])[axis] == _shape(equation.invars[0])[axis]
        whole = whole and (steps is None or steps[axis] == 1)
    return axis if whole else MIXED


def _gathered(equation, given):
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    rank = len(_shape(equation.outvars[0]))
    # Axes of the result are those of the indices except the last, in order, interleaved with those of the slices.
    of_indices = [axis for axis in range(rank) if axis not in numbers.offset_dims]
    taken = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    of_slices = [axis for axis in range(len(sizes)) if axis not in taken]
    operand, indices = given
    axes = []
    if indices is not None:
        axes.append(of_indices[indices] if indices < len(of_indices) else MIXED)
    if operand in numbers.operand_batching_dims:
        place = numbers.operand_batching_dims.index(operand)
        axes.append(of_indices[numbers.start_indices_batching_dims[place]])
    elif operand is not None:
        whole = operand in of_slices and sizes[operand] == _shape(equation.invars[0])[operand]
        axes.append(numbers.offset_dims[of_slices.index(operand)] if whole else MIXED)
    return _agreed(axes)


def _contracted(equation, given):
    contracting, batch = equation.params["dimension_numbers"]
    axes, before = [], len(batch[0])
    for side, (var, axis) in enumerate(zip(equation.invars, given)):
        free = [d for d in range(len(_shape(var))) if d not in contracting[side] and d not in batch[side]]
        if axis is not None and axis in batch[side]:
            axes.append(batch[side].index(axis))
        elif axis is not None:
            # Free axes of the two sides never coincide, so rows on both sides correctly count as mixed.
            axes.append(before + free.index(axis) if axis in free else MIXED)
        before += len(free)
    return _agreed(axes)


def _factorised(equation, given):
    return given[0] if given[0] < len(_shape(equation.invars[0])) - 2 else MIXED


def _solved(equation, given):
    """Systems of a batch are independent, and so are right-hand sides of a matrix that does not depend on rows."""
    matrix, right = given
    last = len(_shape(equation.invars[1])) - 1
    if matrix is None and right == (last if equation.params["left_side"] else last - 1):
        return right
    axis = _agreed(given)
    return axis if isinstance(axis, int) and axis < last - 1 else MIXED


def _shape(var) -> tuple[int, ...]:
    return tuple(var.aval.shape)


_ELEMENTWISE = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp conj
convert_element_type copy copy_p cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igammac
integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter not or polygamma pow real
reduce_precision regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic
shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor zeta
"""

_RULES: dict[str, Callable] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "split"), _along("axis")),
    **dict.fromkeys(("concatenate", "sort"), _along("dimension")),
    **dict.fromkeys(("reduce_sum", "reduce_prod", "reduce_max", "reduce_min"), _reduced("axes")),
    **dict.fromkeys(("reduce_and", "reduce_or", "reduce_xor", "argmax", "argmin"), _reduced("axes")),
    "squeeze": _reduced("dimensions"),
    "broadcast_in_dim": _broadcast,
    "stack": _stacked,
    "reshape": _reshaped,
    "transpose": _transposed,
    "rev": _reversed,
    **dict.fromkeys(("slice", "dynamic_slice", "pad"), _sliced),
    "gather": _gathered,
    "dot_general": _contracted,
    "cholesky": _factorised,
    "triangular_solve": _solved,
}
