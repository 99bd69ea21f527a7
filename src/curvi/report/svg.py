"""Small charts as SVG text: lines over time, intervals, a gauge. No script, no font, no library.

Charts are 360 units wide, so that their text is readable on a phone and scales up elsewhere; colours are classes
of the page's style sheet.
"""

import dataclasses
import math
from collections.abc import Sequence
from html import escape
from typing import Any, overload

import numpy as np

WIDTH = 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 10, 12, 36


@dataclasses.dataclass(frozen=True)
class Scale:
    """A linear or logarithmic map from values to positions."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    @overload
    def __call__(self, value: float) -> float: ...

    @overload
    def __call__(self, value: np.ndarray) -> np.ndarray: ...

    def __call__(self, value: float | np.ndarray) -> Any:
        low, high, value = (np.log(v) if self.log else np.asarray(v, float) for v in (self.low, self.high, value))
        return self.begin + (self.end - self.begin) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        return log_ticks(self.low, self.high) if self.log else even_ticks(self.low, self.high)


def even_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round values from `low` to `high`, at most `most` intervals."""
    step = 10 ** math.floor(math.log10((high - low) / most))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) <= most)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Powers of ten, and also two and five times these if there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / most))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [factor * 10.0**power for power in range(first, last + 1, every) for factor in factors]
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def short(value: float) -> str:
    """A number for an axis."""
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.6g}".replace("-", "\u2212")
    mantissa, power = f"{value:.0e}".split("e")
    lead = "" if mantissa == "1" else f"{mantissa}·"
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{lead}10{raised}".replace("-", "\u2212")


def frame(height: float, label: str, parts: Sequence[str]) -> str:
    """An SVG element with its parts; `label` is for screen readers."""
    body = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(label, quote=True)}" '
        f'xmlns="http://www.w3.org/2000/svg">\n{body}\n</svg>'
    )


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{attribute}>{escape(words)}</text>'


def tick_label(x: float, y: float, words: str) -> str:
    """A label under a tick, moved inwards if it would be cut off."""
    half = 3.7 * len(words) + 1
    return text(min(max(x, half), WIDTH - half), y, words, "middle")


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def line_chart(x, y, *, label: str, x_name: str, log: bool = False, floor=None, level=None, level_name="") -> str:
    """A line with points of y over x, and optionally a level line with a name.

    `floor` is the lowest value shown: lower values are clipped to the edge.
    """
    height = 210
    x, y = np.asarray(x, float), np.asarray(y, float)
    usable = np.isfinite(x) & np.isfinite(y) & ((y > 0) if log else True)
    x, y = x[usable], y[usable]
    if not len(x):
        return frame(60, label, [text(WIDTH / 2, 34, "nothing finite to show", "middle", "quiet")])
    values = y if level is None else np.append(y, level)
    low, high = _spread(values.min() if floor is None else max(values.min(), floor), values.max(), log)
    # Start at zero, unless most of the chart would be empty.
    begin, end = float(x.min()), float(x.max())
    begin = begin if begin > 0.4 * end and end > begin else 0.0
    across = Scale(begin, end if end > begin else begin + 1.0, _LEFT, WIDTH - _RIGHT)
    up = Scale(low, high, height - _BOTTOM, _TOP, log)
    places = list(zip(across(x), np.clip(up(y), _TOP, height - _BOTTOM)))
    parts = []
    for tick in up.ticks():
        parts.append(line(_LEFT, up(tick), WIDTH - _RIGHT, up(tick), "grid"))
        parts.append(text(_LEFT - 5, up(tick) + 4, short(tick), "end"))
    for tick in across.ticks():
        parts.append(tick_label(across(tick), height - _BOTTOM + 16, short(tick)))
    parts.append(line(_LEFT, height - _BOTTOM, WIDTH - _RIGHT, height - _BOTTOM, "axis"))
    parts.append(text((_LEFT + WIDTH - _RIGHT) / 2, height - 5, x_name, "middle", "quiet"))
    if level is not None:
        parts.append(line(_LEFT, up(level), WIDTH - _RIGHT, up(level), "level"))
        parts.append(_level_words(places, float(up(level)), height - _BOTTOM, level_name))
    parts.append('<polyline class="curve" points="' + " ".join(f"{a:.1f},{b:.1f}" for a, b in places) + '"/>')
    if len(places) <= 80:
        parts += [f'<circle class="point" cx="{a:.1f}" cy="{b:.1f}" r="2.6"/>' for a, b in places]
    return frame(height, label, parts)


def _level_words(places, level: float, bottom: float, words: str) -> str:
    """The name of a level line, at the end and on the side where it overlaps the curve least."""
    xs, ys = np.array(places).T
    dense = np.linspace(xs[0], xs[-1], 200)
    curve, width = np.interp(dense, xs, ys), 6 * len(words)
    best = None
    for side, baseline in (("above", level - 5), ("below", level + 14)):
        if not (11 if side == "above" else 0) < baseline < bottom - 2:
            continue
        for end in ("start", "end"):
            beside = dense < _LEFT + 4 + width if end == "start" else dense > WIDTH - _RIGHT - width
            hidden = np.sum(beside & (np.abs(curve - (baseline - 4)) < 9))
            if best is None or hidden < best[0]:
                best = (hidden, end, baseline)
    _, end, baseline = best or (0, "start", level - 5)
    return text(_LEFT + 4 if end == "start" else WIDTH - _RIGHT, baseline, words, end, "on")


def _spread(low: float, high: float, log: bool) -> tuple[float, float]:
    """The ends with a margin, large enough for axis labels to differ in their first digits."""
    if log:
        return low / 1.5, max(high, low * 10) * 1.5
    if high == low:
        room = 0.05 * max(abs(high), 1.0)
    else:
        room = max(0.06 * (high - low), 1e-3 * max(abs(high), 1.0) - (high - low))
    return low - room, high + room


def intervals(rows: Sequence[tuple[str, float, tuple[float, float], tuple[float, float] | None]], label: str) -> str:
    """Intervals of several scalars on one axis: name, mean, mean-field interval, linear-response interval or None."""
    pitch, longest = 26, max(len(name) for name, *_ in rows)
    left = min(max(40, 7.2 * longest + 10), 150)
    height = _TOP + pitch * len(rows) + 26
    ends = [end for _, _, q, response in rows for pair in (q, response) if pair for end in pair]
    low, high = _spread(min(ends), max(ends), False)
    across = Scale(low, high, left, WIDTH - _RIGHT)
    bottom = _TOP + pitch * len(rows)
    parts = []
    for tick in even_ticks(low, high, 4):
        parts.append(line(across(tick), _TOP - 4, across(tick), bottom, "grid"))
        parts.append(tick_label(across(tick), bottom + 16, short(tick)))
    for i, (name, mean, q, response) in enumerate(rows):
        y = _TOP + pitch * (i + 0.5) - 2
        shown = name if len(name) <= 19 else name[:8] + "…" + name[-10:]
        parts.append(text(left - 8, y + 4, shown, "end", "name"))
        if response is not None:
            parts.append(line(across(response[0]), y + 4, across(response[1]), y + 4, "response"))
        parts.append(line(across(q[0]), y - 3, across(q[1]), y - 3, "meanfield"))
        parts.append(f'<circle class="point" cx="{across(mean):.1f}" cy="{y - 3:.1f}" r="3.4"/>')
    return frame(height, label, parts)


def gauge(value: float, zones: Sequence[tuple[float, str, str]], label: str) -> str:
    """A marker on a bar of zones: (upper end, class, words); values beyond the ends are placed at the ends."""
    height, low, high = 78, 0.0, zones[-1][0]
    across = Scale(low, high, 12, WIDTH - 12)
    parts, begin = [], low
    for end, kind, words in zones:
        x, width = float(across(begin)), float(across(end) - across(begin))
        parts.append(f'<rect x="{x:.1f}" y="30" width="{width - 2:.1f}" height="14" rx="2" class="{kind}"/>')
        parts.append(text(x + width / 2, 74, words, "middle", "quiet"))
        if end != high:
            parts.append(text(x + width - 1, 58, short(end), "middle"))
        begin = end
    place = float(across(min(max(value, low), high)))
    parts.append(f'<path class="marker" d="M{place:.1f} 30 l-6 -11 h12 z"/>')
    parts.append(text(min(max(place, 24), WIDTH - 24), 14, f"{value:.2f}", "middle", "strong"))
    return frame(height, label, parts)
