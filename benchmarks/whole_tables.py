"""The section of docs/discrete.md on whole fits, from the lines of `whole_fits.py` and of nothing else."""

from pathlib import Path

import numpy as np
from scipy.stats import beta

import lines
from tables import paragraph, table

RESULTS = Path(__file__).parent / "results" / "whole_fits.jsonl"
BEFORE, NOW = "fresh draws", "pooled draws"
_HALF, _LEAST = 0.5, 60


def whole_fits(adam: dict[str, float]) -> list[str]:
    """Words and a table, given the calls that tuned Adam needs to 0.1 nat by model."""
    found = lines.read(RESULTS)
    nine = [line for line in found if line["problem"] in adam]
    ratios = {label: {} for label in (BEFORE, NOW)}
    rows = []
    for name, calls in adam.items():
        row = [name, f"{calls:,.0f}"]
        for label in (BEFORE, NOW):
            own = _of(found, label, name)
            climb, whole = (np.median([_number(line[key]) for line in own]) for key in ("climb", "total_calls"))
            ratios[label][name] = whole / calls
            row += [f"{whole:,.0f} ({climb:,.0f})", f"{whole / calls:.2f}", f"{max(line['gap'] for line in own):.3f}"]
        rows.append(row)
    means = {label: np.exp(np.mean(np.log(list(ratios[label].values())))) for label in ratios}
    dear = ", ".join(name for name in adam if _share(_of(found, NOW, name)) > 1)
    slow = ", ".join(f"{name} ({ratio:.2f})" for name, ratio in ratios[NOW].items() if ratio > _HALF)
    return [
        "## Whole fits, verdict included",
        paragraph(f"""
            A fit ends when it knows that less than 0.05 nats are left, two standard errors included. Adam ends
            when somebody stops it: its calls here are those after which it first came within 0.1 nat, known from
            the exact gap. Where a whole fit still needs more than half of them: {slow}. The posterior is all but a
            product there, or the start close to the end, and a verdict takes {_LEAST} effective draws at least. On
            {dear} the verdict costs more than the climb, in the median.
        """),
        paragraph("""
            Calls of whole fits, median over the seeds 100 to 122, on which nothing was chosen; in brackets the calls
            until q came within 0.1 nat of its local optimum; and the largest exact gap. Before, a verdict took 128
            fresh draws or more and a third as many of rare values; now it comes from the draws of the climb.
        """),
        table(["model", "Adam", "before", "ratio", "largest gap", "now", "ratio", "largest gap"], rows),
        paragraph(f"""
            Geometric mean of the ratios: {means[BEFORE]:.2f} before, {means[NOW]:.2f} now. Wrong "converged", a gap
            above 0.05 nats: {_wrong(nine, BEFORE)} before, {_wrong(nine, NOW)} now.
        """),
        *_unseen(found, adam),
        paragraph("""
            What makes the verdict cheap: draws that moved q say nothing of the slope that is left, since the step went
            to where they show none, but their noise says how far off the step may be. It is added to the gain, where
            for fresh draws it would be taken off. Noise is not what closed-form leave-one-out says it is where draws
            of discrete latents repeat: those unlike all others are predicted by fits without them
            (`estimate/left_out_parts.py`). Rare values are looked for one at a time, all other latents drawn from q,
            more often the more an error would cost. Steps of a quarter of a nat or less are taken on the pool
            alone, and how large the last batch is follows from the noise so far.
        """),
    ]


def _unseen(found, known) -> list[str]:
    names = dict.fromkeys(line["problem"] for line in found if line["problem"] not in known)
    rows = []
    for name in names:
        row = [name]
        for label in (BEFORE, NOW):
            own = _of(found, label, name)
            climb, whole = (np.median([_number(line[key]) for line in own]) for key in ("climb", "total_calls"))
            row += [f"{whole:,.0f} ({climb:,.0f})", f"{max(line['gap'] for line in own):.3f}"]
        rows.append(row)
    others = [line for line in found if line["problem"] in names]
    return [
        paragraph(f"""
            Six models on which nothing at all was chosen, networks and spins of other seeds and sizes. Wrong
            "converged": {_wrong(others, BEFORE)} before, {_wrong(others, NOW)} now.
        """),
        table(["model", "before", "largest gap", "now", "largest gap"], rows),
    ]


def _share(own) -> float:
    """Calls of the verdict over those of the climb, median over seeds."""
    return float(np.median([line["total_calls"] / _number(line["climb"]) - 1 for line in own]))


def _of(found, label: str, name: str | None = None) -> list[dict]:
    return [line for line in found if line["setting"]["certificate"] == label and name in (None, line["problem"])]


def _wrong(found, label: str) -> str:
    own = [line for line in _of(found, label) if line["outcome"] == "CONVERGED"]
    wrong, total = sum(line["gap"] > line["tolerance"] for line in own), len(own)
    low = beta.ppf(0.025, wrong, total - wrong + 1) if wrong else 0.0
    high = beta.ppf(0.975, wrong + 1, total - wrong)
    return f"{wrong} of {total} (95 % interval {100 * low:.1f} to {100 * high:.1f} %)"


def _number(value) -> float:
    return np.inf if value is None else float(value)
