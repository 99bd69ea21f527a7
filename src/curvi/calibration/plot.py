"""Histograms of ranks as SVG: one row per parameter, one column per kind of draws."""

from html import escape

import numpy as np
from scipy.special import bdtrik

from curvi.calibration.ranks import counts_of

_WIDE, _HIGH, _LEFT, _TOP, _GAP = 220, 70, 120, 34, 24
_STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #222 } .head { font-weight: 600 }
.bar { fill: #4477aa } .band { fill: #bbbbbb; opacity: 0.45 } .level { stroke: #555; stroke-dasharray: 3 3 }
.page { fill: #ffffff }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .bar { fill: #88bbee } .band { fill: #666 } .level { stroke: #aaa } .page { fill: #16181d }
}
</style>"""


def picture(rows: list[tuple[str, dict[str, tuple[np.ndarray, int]]]]) -> str:
    """The picture of ranks and numbers of draws, by parameter and kind."""
    kinds = list(rows[0][1]) if rows else []
    width, height = _LEFT + (_WIDE + _GAP) * len(kinds), _TOP + (_HIGH + _GAP) * len(rows)
    parts = [_STYLE, f'<rect class="page" width="{width}" height="{height}"/>']
    for column, kind in enumerate(kinds):
        at = _LEFT + column * (_WIDE + _GAP) + _WIDE / 2
        parts.append(f'<text class="head" x="{at:.0f}" y="18" text-anchor="middle">{escape(kind)}</text>')
    for row, (label, columns) in enumerate(rows):
        y = _TOP + row * (_HIGH + _GAP)
        parts.append(f'<text x="{_LEFT - 10}" y="{y + _HIGH / 2 + 4:.0f}" text-anchor="end">{escape(label)}</text>')
        for column, (ranks, num_draws) in enumerate(columns.values()):
            parts += _histogram(_LEFT + column * (_WIDE + _GAP), y, counts_of(ranks, num_draws), len(ranks))
    words = "histograms of the ranks of true values among draws, with the band of uniform ranks"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{words}">'
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _histogram(x: float, y: float, counts: np.ndarray, number: int) -> list[str]:
    """Bars, and the band that holds 99 % of the counts of uniform ranks in each bin."""
    bins = len(counts)
    low, high = np.ceil(bdtrik([0.005, 0.995], number, 1 / bins))  # quantiles of a binomial
    most = max(counts.max(), high) * 1.05
    up = lambda count: y + _HIGH * (1 - count / most)  # noqa: E731
    width = _WIDE / bins
    bars = [
        f'<rect class="bar" x="{x + at * width + 0.5:.1f}" y="{up(count):.1f}" width="{width - 1:.1f}" '
        f'height="{_HIGH * count / most:.1f}"/>'
        for at, count in enumerate(counts)
    ]
    middle = up(number / bins)
    band = f'<rect class="band" x="{x:.1f}" y="{up(high):.1f}" width="{_WIDE}" height="{up(low) - up(high):.1f}"/>'
    level = f'<line class="level" x1="{x:.1f}" x2="{x + _WIDE:.1f}" y1="{middle:.1f}" y2="{middle:.1f}"/>'
    return [band, *bars, level]
