"""Pictures of fits, made from the rows of `curvi.cli.race`. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

# Okabe and Ito's palette, suitable for colour-blind readers; its yellow, too pale on white, is replaced by brown.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#8C6D31", "#000000", "#D55E00")
_DASHES = ("-", "-", "--", ":", "-", "-", "-", "-.")
# In nats: about two standard errors of the ELBOs of the demonstration; smaller gaps are not significant.
_LEAST_GAP = 0.1
_CAPTION = (
    "lines: running means of each method's own estimates (*: measured on fresh draws)    "
    "dots: the final q on fresh draws"
)


def draw_race(rows: Sequence[dict], path: Path, title: str) -> None:
    """Write a picture of how far each fit is from the optimum, against log-density calls and against running time.

    Raises ImportError, with what to install, if matplotlib is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"the picture needs matplotlib ({error}): pip install matplotlib") from error
    optimum = estimated_optimum(rows)
    # A separate canvas does not affect the user's pyplot or its backend.
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    calls, seconds = figure.subplots(1, 2, sharey=True)
    for i, row in enumerate(rows):
        style = {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _DASHES[i % len(_DASHES)], "linewidth": 1.8}
        label = row["name"] + (f" ({row['method']})*" if row["uses_derivatives"] else "")
        for axes, cost in ((calls, "num_log_density"), (seconds, "seconds")):
            _draw_curve(axes, row, cost, optimum, style, label)
    calls.set_xlabel("log-density calls")
    seconds.set_xlabel("seconds of running, compilation left out")
    calls.set_ylabel("ELBO below the estimated optimum (nats)")
    for axes in (calls, seconds):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(True, which="major", color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
        axes.axhspan(_LEAST_GAP * 0.7, _LEAST_GAP, color="0.93", zorder=0)
    calls.set_ylim(bottom=_LEAST_GAP * 0.7)
    calls.annotate(
        f"{_LEAST_GAP:g} nat or less: within the error",
        (0.02, 0.01),
        xycoords="axes fraction",
        fontsize=8,
        color="0.35",
    )
    if any(row["uses_derivatives"] for row in rows):
        calls.set_xlabel("log-density calls\n* calls gradients and Hessian-vector products as well")
    handles, labels = calls.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, title=_CAPTION, title_fontsize=9)
    figure.savefig(path, dpi=110)


def estimated_optimum(rows: Sequence[dict]) -> float:
    """ELBO plus remaining gain of the fit with the best known remaining gain; the largest ELBO if none is known."""
    known = [row for row in rows if None not in (row["elbo"], row["remaining_gain"], row["remaining_gain_se"])]
    if known:
        best = min(known, key=lambda row: abs(row["remaining_gain"]) + 2 * row["remaining_gain_se"])
        return best["elbo"] + max(best["remaining_gain"], 0.0)
    return max((row["elbo"] for row in rows if row["elbo"] is not None), default=float("nan"))


def _draw_curve(axes, row: dict, cost: str, optimum: float, style: dict, label: str) -> None:
    elbo = np.array(row["curve"]["elbo"], dtype=float)
    x = np.array(row["curve"][cost], dtype=float)
    axes.plot(x, np.maximum(optimum - elbo, _LEAST_GAP), label=label, **style)
    if len(x) and row["elbo"] is not None:
        axes.plot(x[-1], max(optimum - row["elbo"], _LEAST_GAP), "o", color=style["color"], markersize=6, clip_on=False)
