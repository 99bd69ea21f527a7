"""The section on Newton's method with the exact Hessian."""

from tables import paragraph, table


def section(found) -> list[str]:
    chosen = {line["problem"]: line for line in found if line["method"] == "Newton, exact Hessian"}
    if not chosen:
        return []
    return [
        "## 4. Newton's method with the exact Hessian",
        paragraph(
            "The paper's equation 8 with the exact gradient and Hessian of the ELBO (quadrature in two dimensions, "
            "closed form for the Gaussian), full steps, solved by `curvi.solve.Dense`. Convergence is quadratic: each "
            "error is of the order of the square of the one before, until rounding."
        ),
        *_two_dimensions(chosen.get("logistic regression in two dimensions")),
        *_gaussian(chosen.get("rotated Gaussian")),
    ]


def _two_dimensions(line) -> list[str]:
    if line is None:
        return []
    error, gap, rows = line["error"], line["gap"], []
    for k, e in enumerate(error):
        ratio = f"{e / error[k - 1] ** 2:.2f}" if k and e > 1e-12 else ""
        rows.append([str(k), f"{e:.1e}", f"{max(gap[k], 0):.1e}", ratio])
    return [
        "Logistic regression with two coefficients, four variational parameters, a non-quadratic objective:",
        table(["step", "distance to the optimum", "gap, nats", "distance / (distance before)²"], rows),
    ]


def _gaussian(line) -> list[str]:
    if line is None:
        return []
    gap = line["gap"]
    arrived = next((k for k, g in enumerate(gap) if g < 1e-6), None)
    return [
        paragraph(
            "On the rotated Gaussian, from the start of section 3, full steps overshoot in the log scales (gap "
            f"{gap[0]:.3g} nats at the start, {max(gap):.3g} at the worst) and come back by half a unit a step; the "
            f"gap is below 1e-6 nats after {arrived} steps. A trust region avoids the detour, which is why every "
            "second-order method here has one."
        )
    ]
