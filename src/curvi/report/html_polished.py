"""The section on draws of Markov chains that began at q: how far they have left it."""

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from curvi.diagnostics.elements import labels_of
from curvi.report import svg
from curvi.report.html_parts import figure, section, sentence

if TYPE_CHECKING:
    from curvi.mcmc import Polished
    from curvi.results import Fit

_MOST = 16
_LOW, _HIGH = 0.05, 0.95


def polished_section(fit: "Fit", polished: "Polished | None") -> str:
    """Empty where no chains were run."""
    if polished is None:
        return ""
    mean, sd = _flat(fit.mean("q")), _flat(fit.sd("q"))
    ends = {name: fit.quantiles([_LOW, _HIGH], "q")[name] for name in polished.draws}
    chains = polished.quantiles([_LOW, _HIGH])
    # In sds of q, so that all have one axis.
    with np.errstate(divide="ignore", invalid="ignore"):
        own, new = (np.array([(_flat(of, row) - mean) / sd for row in (0, 1)]) for of in (ends, chains))
    far = np.abs(new - own).max(0)
    order = [i for i in np.argsort(-far, kind="stable") if np.isfinite(far[i])][:_MOST]
    labels = labels_of({name: values.shape[2:] for name, values in polished.draws.items()})
    rows = [(labels[i], 0.0, (own[0][i], own[1][i]), (new[0][i], new[1][i])) for i in order]
    legend = (
        '<p class="legend"><span><i class="key meanfield"></i>5 % to 95 % of q</span> '
        '<span><i class="key response"></i>of the chains</span></p>'
    )
    more = f", the {len(rows)} of {len(mean)} that moved most" if len(rows) < len(mean) else ""
    caption = f"In sds of q from its mean{more}."
    words = [
        f"NUTS from q, {polished.num_chains} chains of {polished.num_draws:,} draws: {_furthest(polished, labels)}"
    ]
    words += polished.problems or ("nothing speaks against these draws",)
    said = "".join(f"<p>{escape(sentence(one))}</p>" for one in words)
    picture = figure(svg.intervals(rows, "Intervals of q and of the chains"), caption) if rows else ""
    return section("Against Markov chains", said + legend + picture)


def _flat(values: dict, row: int | None = None) -> np.ndarray:
    return np.concatenate([np.ravel(value if row is None else value[row]).astype(float) for value in values.values()])


def _furthest(polished: "Polished", labels) -> str:
    mean, sd = _flat(polished.moved.mean), _flat(polished.moved.sd)
    if not (np.any(np.isfinite(mean)) and np.any(np.isfinite(sd))):
        return "too few effective draws to say how far they left q"
    at, of = int(np.nanargmax(np.abs(mean))), int(np.nanargmax(np.abs(np.log(sd))))
    return (
        f"means moved by at most {abs(mean[at]):.2g} sds of q ({labels[at]}), sds by at most a factor of {sd[of]:.2g} "
        f"({labels[of]})"
    )
