"""Many fits on one screen."""

import textwrap
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from curvi.outcome import Outcome

if TYPE_CHECKING:
    from curvi.many.result import ManyFits

_WIDTH, _SHOWN, _GROUPS = 110, 8, 4


def screen(many: "ManyFits") -> str:
    """How many fits ended how, what is left to gain, cost, and what to do next."""
    known = many.remaining_gain[np.isfinite(many.remaining_gain)]
    counts, size = many.counts, len(many)
    rows = {
        "not converged": _by_word({i: o.name for i, o in enumerate(many.outcomes) if o is not Outcome.CONVERGED}),
        "together": _groups(many),
        "singly": _by_word(many.reasons),
        "left to gain": f"{np.median(known):.2g} nats in the median, {known.max():.2g} at most" if len(known) else "",
        "ELBO": f"{np.nanmin(many.elbo):.4g} to {np.nanmax(many.elbo):.4g}, errors up to {np.nanmax(many.elbo_se):.2g}",
        "cost": f"{many.seconds.compile:.2f} s compiling, {many.seconds.run:.2f} s running; "
        f"{counts.gradient / size:,.0f} gradients a fit",
        "next": "many[i] is the Fit of data set i; many.mean(), many.sd(), many.sample(key, n) are stacked",
    }
    head = f"curvi.fit_many: {size:,} fits, {int(many.converged.sum()):,} converged"
    return "\n".join([head, *(line(*row) for row in rows.items() if row[1])])


def _groups(many: "ManyFits") -> str:
    """What was fitted together."""
    each = [
        f"{len(batch.good):,} fits ({batch.name}, {batch.q.num_params} parameters)"
        for batch in many.batches
        if len(batch.good)
    ]
    more = f" and {len(each) - _GROUPS} groups more" if len(each) > _GROUPS else ""
    return ", ".join(each[:_GROUPS]) + more


def _by_word(words: dict[int, str]) -> str:
    """How many data sets each word is said of, and which."""
    which: dict[str, list[int]] = {}
    for index, word in words.items():
        which.setdefault(word, []).append(index)
    counts = Counter(words.values())
    return "; ".join(f"{counts[word]:,} {word} (data sets {numbered(found)})" for word, found in which.items())


def numbered(indices) -> str:
    """The first of some positions, and how many more there are."""
    more = f" and {len(indices) - _SHOWN:,} more" if len(indices) > _SHOWN else ""
    return ", ".join(str(index) for index in indices[:_SHOWN]) + more


def line(name: str, text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=f"  {name:<16}", subsequent_indent=" " * 18)
