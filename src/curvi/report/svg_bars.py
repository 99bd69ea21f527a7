"""Charts of one number a row, and of one number a pair: bars with their values, and a matrix of correlations."""

import math
from collections.abc import Sequence

import numpy as np

from curvi.report.svg import WIDTH, Scale, frame, line, text

_PITCH, _LETTER = 24, 6.6


def bars(rows: Sequence[tuple[str, float, str, bool]], label: str, least: float) -> str:
    """Horizontal bars from zero: name, value (none is drawn where it is no number), words beside it, whether marked.
    The axis ends at `least` or beyond, so that what is next to nothing looks like it.
    """
    left = min(max(_LETTER * len(name) for name, *_ in rows) + 12, 0.48 * WIDTH)
    room = max(_LETTER * len(words) for _, _, words, _ in rows) + 12
    high = max([value for _, value, *_ in rows if np.isfinite(value)], default=least)
    across = Scale(0.0, max(high, least), left, WIDTH - room)
    height = _PITCH * len(rows) + 8
    parts = [line(left, 2, left, height - 4, "axis")]
    for i, (name, value, words, marked) in enumerate(rows):
        y, end = _PITCH * i + 4, left
        if np.isfinite(value):
            end = float(across(max(value, 0.0)))
            kind = "bar marked" if marked else "bar"
            parts.append(f'<rect x="{left:.1f}" y="{y:.1f}" width="{end - left:.1f}" height="16" class="{kind}"/>')
        parts.append(text(left - 8, y + 12, _cut(name, left), "end", "name strong" if marked else "name"))
        parts.append(text(end + 6, y + 12, words, "start", "strong" if marked else ""))
    return frame(height, label, parts)


def _cut(name: str, room: float) -> str:
    most = int((room - 8) / _LETTER)
    return name if len(name) <= most else name[: most - 8] + "…" + name[-7:]  # the end has the index


def matrix(labels: Sequence[str], values: np.ndarray, label: str) -> str:
    """Correlations as coloured cells with their values; columns have the numbers of the rows. Cells that are not a
    number stay empty.
    """
    size = len(labels)
    named = [f"{name} {i}" for i, name in enumerate(labels, 1)]
    left = min(max(_LETTER * len(name) for name in named) + 10, 0.42 * WIDTH)
    cell = min((WIDTH - left - 4) / size, 44.0)
    parts = []
    for i, name in enumerate(named):
        middle = 22 + cell * (i + 0.5)
        parts.append(text(left - 6, middle + 4, _cut(name, left), "end", "name"))
        parts.append(text(left + cell * (i + 0.5), 14, str(i + 1), "middle", "quiet"))
        for j in range(size):
            if i != j and np.isfinite(values[i, j]):
                parts += _cell(left + cell * j, 22 + cell * i, cell, float(values[i, j]))
    return frame(math.ceil(24 + cell * size), label, parts)


def _cell(x: float, y: float, size: float, value: float) -> list[str]:
    kind = "positive" if value > 0 else "negative"
    shown = f"{abs(value):.2f}".lstrip("0") if abs(value) < 0.995 else "1"
    sign = "\u2212" if value < 0 and float(f"{value:.2f}") else ""
    place = f'x="{x + 1:.1f}" y="{y + 1:.1f}" width="{size - 2:.1f}" height="{size - 2:.1f}" rx="3"'
    return [
        f'<rect {place} class="{kind}" fill-opacity="{min(abs(value), 1.0) * 0.75:.2f}"/>',
        text(x + size / 2, y + size / 2 + 4, sign + shown, "middle", "value"),
    ]
