"""Checks of a target before a fit: finite values, correct derivatives, correct supports and minibatch scale.

All checks use unconstrained coordinates z, one block per latent, and l(z) = ln p(theta(z)) + ln |d theta / d z|, whose
expectation is in the ELBO. Derivatives are compared with central differences whose error is estimated from two step
lengths and from rounding, so that a failure means a wrong derivative and not an inaccurate difference.
"""

import jax
import numpy as np

from curvi.diagnostics.probes import Density, Values, agrees, curvature_by_latent, evaluate, slopes_by_latent
from curvi.model import support as supports
from curvi.model.minibatch import MinibatchTarget, check_scale
from curvi.model.target import AbstractTarget
from curvi.record.checkpoint import check_key
from curvi.report.check_report import Check, CheckReport


def check(target: AbstractTarget, *, key) -> CheckReport:
    """A report of checks of a target, each with its remedy; takes seconds rather than minutes.

    Parameters
    ----------
    target
        The target to be fitted; one of `Rows` is checked on the first few thousand.
    key
        A key from `jax.random.key(seed)`, for directions, points and batches.

    Returns
    -------
    CheckReport
        To be printed; `report.ok` says whether a fit can begin.
    """
    if not isinstance(target, AbstractTarget):
        raise ValueError(f"check takes a curvi target; got {type(target).__name__}")
    check_key(key)
    if isinstance(target, MinibatchTarget) and target.streamed:
        target = target.on_first_rows()
    key_value, key_slope, key_batch = jax.random.split(key, 3)
    density = Density(target)
    values = Values(*jax.device_get(evaluate(density, key_value)))
    found = [_start_check(values.start)]
    if density.names:
        found += [_support_check(target, values), _shape_check(values)]
    if target.outputs is not None:
        found.append(_output_check(values.outputs))
    if found[0].ok:
        found += [*_derivatives(density, key_slope), _scale_check(target, key_batch)]
    return CheckReport(tuple(found))


def _start_check(value) -> Check:
    return Check(
        "finite at the start",
        bool(np.isfinite(value)),
        f"ln p is {float(value):.6g} at init",
        "give an init where the log density is finite, and look for missing values in the data, logarithms of zero "
        "and divisions by zero",
    )


def _support_check(target: AbstractTarget, values: Values) -> Check:
    outside = tuple(name for name, moved in values.moved.items() if not np.all(np.isfinite(moved)))
    described = {one.name: supports.describe(one.support) for one in target.latents}
    shown = ", ".join(f"'{name}' ({described[name]})" for name in outside)
    return Check(
        "supports",
        not outside,
        f"ln p is not finite when {shown} alone is moved from its start" if outside else "finite around the start",
        "declare the support that the latent really has (constraints.positive, constraints.unit_interval, ...), or "
        "look for overflow in the log density: exp of a large number, a logarithm of zero"
        + (", or use float64 (jax.config.update('jax_enable_x64', True))" if target.dtype == np.float32 else ""),
        outside,
    )


def _shape_check(values: Values) -> Check:
    tolerance = 1e3 * np.finfo(values.alone.dtype).eps
    agree = bool(np.allclose(values.alone, values.batched, rtol=tolerance, equal_nan=True))
    return Check(
        "shapes",
        agree,
        "one number a draw, the same alone and in a batch" if agree else "a batch of draws gives other values",
        "write log_density for one draw, with jax.numpy operations on the last axes; curvi vectorises it",
    )


def _output_check(outputs: dict[str, np.ndarray]) -> Check:
    strange = tuple(name for name, value in outputs.items() if not np.all(np.isfinite(value)))
    return Check(
        "outputs",
        not strange,
        f"not finite: {_quoted(strange)}" if strange else f"{len(outputs)} further quantities, finite at the start",
        "look at the computation of these quantities; the fit itself does not need them",
        strange,
    )


def _derivatives(density: Density, key) -> list[Check]:
    order, names = density.target.order, density.names
    if order == 0 or not names:
        reason = "not used: order=0" if names else "not used: all latents are discrete"
        return [Check("gradient", None, reason), Check("curvature", None, reason)]
    try:
        slopes = jax.device_get(slopes_by_latent(density, key))
    except Exception as error:  # differentiating user code may raise anything
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        remedy = "pass order=0 to Target, to use values alone, or give the function a derivative (jax.custom_jvp)"
        return [Check("gradient", False, f"cannot be computed: {reason}", remedy, names)]
    gradient = _gradient_check(slopes)
    if order == 1:
        return [gradient, _use_check(slopes), Check("curvature", None, "not used: order=1")]
    try:
        curvature = _curvature_check(jax.device_get(curvature_by_latent(density, key)))
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        remedy = "pass order=1 to Target, so that only first derivatives are used"
        curvature = Check("curvature", False, f"cannot be computed: {reason}", remedy, names)
    return [gradient, _use_check(slopes), curvature]


def _gradient_check(slopes: dict[str, dict]) -> Check:
    infinite = tuple(name for name, one in slopes.items() if not one["finite"])
    if infinite:
        return Check(
            "gradient",
            False,
            f"not finite with respect to {_quoted(infinite)}",
            "look for a square root or a power at zero, and for jnp.where around an operation that is undefined in the "
            "branch not taken: its derivative is computed too",
            infinite,
        )
    wrong = tuple(name for name, one in slopes.items() if not agrees(one))
    shown = "; ".join(
        f"'{name}': {float(slopes[name]['slope']):.6g}, by differences {float(slopes[name]['near']):.6g}"
        for name in wrong
    )
    return Check(
        "gradient",
        not wrong,
        shown or "finite, and equal to finite differences",
        "look for custom derivatives, stop_gradient, rounding to integers, jumps or kinks; pass order=0 to Target "
        "where they belong to the model",
        wrong,
    )


def _use_check(slopes: dict[str, dict]) -> Check:
    unused = tuple(name for name, one in slopes.items() if not one["used"])
    return Check(
        "every latent counts",
        not unused,
        f"ln p does not change with {_quoted(unused)}" if unused else "ln p changes with each of them",
        "give the latent a prior, or leave it out: without either it has no posterior",
        unused,
    )


def _curvature_check(found: dict) -> Check:
    if not all(np.isfinite(one["slope"]) for one in found["blocks"].values()):
        return Check(
            "curvature",
            False,
            "the second derivative is not finite",
            "look for operations that are once differentiable only, such as abs, a norm at zero or a power below two; "
            "pass order=1 to Target where they belong to the model",
            tuple(name for name, one in found["blocks"].items() if not np.isfinite(one["slope"])),
        )
    left, right, error = (float(found[name]) for name in ("left", "right", "error"))
    symmetric = abs(left - right) <= 1e-3 * max(abs(left), abs(right)) + error
    wrong = tuple(name for name, one in found["blocks"].items() if not agrees(one))
    if symmetric and not wrong:
        return Check("curvature", True, "symmetric, and equal to differences of the gradient")
    detail = f"not symmetric: v'Hw = {left:.6g}, w'Hv = {right:.6g}" if not symmetric else ""
    if wrong:
        detail = "; ".join(filter(None, [detail, f"differs from differences of the gradient for {_quoted(wrong)}"]))
    return Check(
        "curvature",
        False,
        detail,
        "look for custom derivatives that are not those of one function; pass order=1 to Target to do without them",
        wrong,
    )


def _scale_check(target: AbstractTarget, key) -> Check:
    if not isinstance(target, MinibatchTarget):
        return Check("minibatch scale", None, "not used: the target takes all data at once")
    try:
        check_scale(target, key)
    except ValueError as error:
        remedy = "let log_likelihood_row return the log likelihood of one row, unscaled: curvi multiplies by N / B"
        return Check("minibatch scale", False, str(error), remedy)
    return Check("minibatch scale", True, f"batches of {target.batch_size} rows average to all {target.num_rows}")


def _quoted(names) -> str:
    return ", ".join(f"'{name}'" for name in names)
