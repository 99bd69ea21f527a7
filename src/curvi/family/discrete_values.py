"""The values of discrete factors: how often each is drawn, and copies of a draw with each of them."""

import numpy as np

from curvi.family.layout import Layout


def uniform_share(layout: Layout) -> float:
    """The share of draws that a flattened discrete factor draws uniformly."""
    return 1 / max(2, sum(count for factor, count in layout.groups if factor.values is not None))


def num_rare_draws(layout: Layout) -> int:
    """Draws of a flattened q in which each value of each discrete factor occurs about once; 0 without any."""
    most = max((len(factor.values) for factor in layout.factors if factor.values is not None), default=0)
    return int(np.ceil(most / uniform_share(layout)))


def every_value(layout: Layout, x) -> tuple[tuple[np.ndarray, ...], np.ndarray] | None:
    """Copies of the draw x, one for each value of each discrete factor, and that factor's index; None without any."""
    rows, owner, first = [], [], 0
    for group, (factor, count) in enumerate(layout.groups):
        if (values := factor.values) is not None:
            for at in range(count):
                changed = np.repeat(np.asarray(x[group])[None], len(values), 0)
                changed[:, at] = values
                rows.append((group, changed))
            owner.append(np.repeat(first + np.arange(count), len(values)))
        first += count
    if not rows:
        return None
    parts = [
        np.concatenate([new if group == own else np.repeat(part[None], len(new), 0) for own, new in rows])
        for group, part in enumerate(map(np.asarray, x))
    ]
    return tuple(parts), np.concatenate(owner)
