"""The section on the families of q that the fit could have chosen, with what each was predicted to gain."""

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from curvi.report.html_parts import figure, section
from curvi.report.svg_bars import bars

if TYPE_CHECKING:
    from curvi.results import Fit

_LITTLE = 0.2  # nats: the axis is at least as long


def families_section(fit: "Fit") -> str:
    """Empty where the family was given as an instance, so that there was no choice."""
    if not fit.families:
        return ""
    rows = [
        (row.name, row.predicted_gain, _gain(row.predicted_gain, row.gain_error), row.chosen) for row in fit.families
    ]
    picture = bars(rows, "Predicted gain of each family over a mean field, in nats", _LITTLE)
    words = "Nats that each family should gain over a mean field, predicted from gradients of the fit's own draws."
    lines = "\n".join(
        f'<tr class="{"chosen" if row.chosen else ""}"><td>{escape(row.name)}</td>'
        f'<td class="n">{row.num_params:,}</td><td>{"chosen: " if row.chosen else ""}{escape(row.why)}</td></tr>'
        for row in fit.families
    )
    table = (
        '<div class="scroll"><table class="families"><thead><tr><th>family</th><th class="n">parameters</th>'
        f"<th>why, or why not</th></tr></thead><tbody>\n{lines}\n</tbody></table></div>"
    )
    return section("Families", f'<div class="grid">{figure(picture, words)}{table}</div>')


def _gain(gain: float, error: float) -> str:
    if not np.isfinite(gain):
        return "unknown"
    if gain == 0:
        return "0"
    shown = f"{gain:.3g}" if abs(gain) < 1000 else f"{gain:,.0f}"
    return f"{shown} ± {error:.1g}" if np.isfinite(error) and error > 0.005 * abs(gain) else shown
