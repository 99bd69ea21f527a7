"""The section on the steps of a fit: the ELBO and what was left to gain, over time."""

from typing import TYPE_CHECKING

import numpy as np

from curvi.record.history import History
from curvi.report import svg
from curvi.report.html_parts import figure, section

if TYPE_CHECKING:
    from curvi.results import Fit


def progress_section(fit: "Fit") -> str:
    history = fit.history
    if not len(history):
        return section("Progress", "<p>No step was taken.</p>")
    elbo = np.asarray(history.elbo, float)
    finite = elbo[np.isfinite(elbo)]
    # The first steps may lie thousands of nats below, which would flatten the rest of the curve.
    floor = None
    if len(finite):
        late = finite[len(finite) // 2 :]
        floor = finite.max() - max(10.0, 3 * (finite.max() - late.min()))
    cut = " Earlier values lie below the edge." if floor is not None and finite.min() < floor else ""
    tolerance = None if fit.checkpoint is None else fit.checkpoint.tolerance
    gains, gain_name, gain_words = _gains(history)
    above = [
        svg.line_chart(
            history.seconds, elbo, label="ELBO over time", x_name="seconds of running", floor=floor,
            level=fit.elbo if np.isfinite(fit.elbo) else None, level_name="final, fresh draws",
        ),
        svg.line_chart(
            history.seconds, gains, label=f"{gain_name} over time", x_name="seconds of running",
            log=True, level=tolerance, level_name="tolerance",
        ),
    ]  # fmt: skip
    draws = np.asarray(history.num_draws)
    words = f"{draws[0]:,.0f}" if draws[0] == draws[-1] else f"{draws[0]:,.0f} to {draws[-1]:,.0f}"
    figures = [
        figure(above[0], f"ELBO in nats, as each step estimated it on its own {words} draws.{cut}"),
        figure(above[1], f"{gain_words} Steps where that is unknown are left out."),
    ]
    return section("Progress", f'<div class="grid">{"".join(figures)}</div>')


def _gains(history: History) -> tuple[np.ndarray, str, str]:
    """The best available column of the history for the remaining gain, its name, and its description."""
    if np.any(np.isfinite(history.remaining_gain)):
        return history.remaining_gain, "Remaining gain", "Nats left to gain at the q of each step, freed of noise."
    if np.any(np.isfinite(history.predicted_gain)):
        words = "Nats that the quadratic model promised of each step, on its own draws."
        return history.predicted_gain, "Promised gain", words
    words = "The size of the gradient in nats at each step, which knows nothing of flat directions."
    return history.gradient_gain, "Size of the gradient", words
