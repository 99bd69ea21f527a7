"""A fit as one self-contained HTML page: the verdict first, then the details. No script, no network."""

import math
import platform
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from curvi.diagnostics.posterior_check import RIGHT
from curvi.estimate.psis import khat_meaning
from curvi.record.version import VERSION
from curvi.report import svg
from curvi.report.answers import all_is_well, certified, family_line, headline, khat_words, next_step
from curvi.report.html_correlations import correlations_section
from curvi.report.html_families import families_section
from curvi.report.html_parts import figure, section, sentence
from curvi.report.html_polished import polished_section
from curvi.report.html_progress import progress_section
from curvi.report.style import STYLE
from curvi.report.table import ERROR, MEAN, RESPONSE_SD, SD, SD_ERROR, Summary, number

if TYPE_CHECKING:
    from curvi.results import Fit

_NORMAL_90 = 1.6448536269514722
_MOST_CHARTS, _MOST_ROWS, _MOST_TABLE = 24, 12, 500
_ZONES = ((0.5, "good", "good"), (0.7, "usable", "usable"), (1.0, "poor", "poor"), (1.3, "useless", "useless"))


def write_report(fit: "Fit", path, title: str | None = None, correlations=None, polished=None) -> None:
    """Write the page of a fit to `path`; see `Fit.report`."""
    Path(path).write_text(page(fit, title, correlations, polished), encoding="utf-8")


def page(fit: "Fit", title: str | None = None, correlations=None, polished=None) -> str:
    """The whole page."""
    heading = title or "curvi fit"
    table = fit.summary()
    sections = [_verdict(fit, heading), progress_section(fit), families_section(fit), _posterior(fit, table)]
    sections += [correlations_section(fit, correlations), polished_section(fit, polished), _khat(fit), _curvature(fit)]
    body = "\n".join([*filter(None, sections), _table(table), _cost(fit)])
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(heading)}: {headline(fit)}</title>\n<link rel="icon" href="data:,">\n'
        f"<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


# -- sections ---------------------------------------------------------------------------------------------------------


def _verdict(fit: "Fit", heading: str) -> str:
    check = fit.posterior_check
    gain = _with_error(fit.remaining_gain, fit.remaining_gain_se) if np.isfinite(fit.remaining_gain) else "unknown"
    shown = f"{check.khat:.2f}" if np.isfinite(check.khat) else "none" if check.khat < 0 else "unknown"
    cards = [
        ("ELBO", f"{fit.elbo:.2f} ± {fit.elbo_se:.2g}", "nats, on fresh draws and all data"),
        ("Remaining gain", gain, "nats still to be gained at this optimum"),
        ("k-hat", shown, khat_words(fit)),
        ("Time", f"{fit.seconds.compile + fit.seconds.run:.1f} s", f"{fit.seconds.compile:.1f} s of it compiling"),
    ]
    if fit.counts.passes:
        rows = getattr(fit.target, "num_rows", None)
        over = f"all {rows:,} rows" if rows else "all rows"
        words = f"times that {over} were read, checks included"
        cards.append(("Passes over the data", f"{fit.counts.passes:.3g}", words))
    boxes = "\n".join(
        f'<div class="card"><h3>{escape(name)}</h3><p class="figure">{escape(value)}</p><p>{escape(words)}</p></div>'
        for name, value, words in cards
    )
    named = fit.suspects and not fit.converged
    suspects = f"<p><strong>Look at:</strong> {escape(', '.join(fit.suspects))}</p>\n" if named else ""
    line = family_line(fit)
    family = f"<p><strong>Family:</strong> {escape(line)}.</p>\n" if line else ""
    # One colour for both answers, that of the worse one.
    return (
        f'<header class="{"done" if all_is_well(fit) else "open"}"><h1>{escape(heading)}</h1>\n'
        f"{_answer('Optimum', fit.converged, _word(fit), f'{fit.outcome.message}; {certified(fit)}')}{suspects}"
        f"{_answer('Posterior', check.answer == RIGHT, check.words, '; '.join(check.reasons))}{family}"
        f"<p><strong>Next:</strong> {escape(next_step(fit, page=True))}.</p></header>\n"
        f'<section class="cards">\n{boxes}\n</section>'
    )


def _answer(question: str, good: bool, word: str, reason: str) -> str:
    kind = "good" if good else "poor"
    return (
        f'<div class="answer"><p class="badge {kind}">{question}: {escape(word)}</p>\n'
        f"<p>{escape(sentence(reason))}</p></div>\n"
    )


def _posterior(fit: "Fit", table: Summary) -> str:
    shapes = {name: value.shape for name, value in fit.mean().items()}
    low, high = (column for heading, column in table.columns.items() if heading in ("5%", "95%"))
    mean, response = table.columns[MEAN], table.columns.get(RESPONSE_SD)
    figures, start = [], 0
    for name, shape in list(shapes.items())[:_MOST_CHARTS]:
        count = table.counts[name]
        labels = table.labels[start : start + count]
        rows = []
        for i, label in enumerate(labels[:_MOST_ROWS], start):
            wide = (
                None if response is None else (mean[i] - _NORMAL_90 * response[i], mean[i] + _NORMAL_90 * response[i])
            )
            if all(np.isfinite([mean[i], low[i], high[i], *(wide or ())])):
                rows.append((label, mean[i], (low[i], high[i]), wide))
        more = f"{name}: the first {_MOST_ROWS} of {math.prod(shape)}" if math.prod(shape) > _MOST_ROWS else ""
        if rows:
            figures.append(figure(svg.intervals(rows, f"Posterior intervals of {name}"), more))
        start += count
    of = "draws under importance weights" if fit.kind == "reweighted" else "q"
    legend = f'<p class="legend"><span><i class="key meanfield"></i>5 % to 95 % of {of}</span> '
    if response is not None:
        legend += '<span><i class="key response"></i>linear response, mean ± 1.64 sd</span>'
    note = f"<p>{escape(table.notes[0])}</p>" if response is None else _widening(table)
    rest = len(shapes) - _MOST_CHARTS
    hidden = f"<p>{rest} more in the table below.</p>" if rest > 0 else ""
    return section("Posterior", f'{legend}</p>{note}<div class="columns">{"".join(figures)}</div>{hidden}')


def _widening(table: Summary) -> str:
    """A sentence on how linear response changes the sds."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = table.columns[RESPONSE_SD] / table.columns[SD]
    if not np.any(np.isfinite(ratio)):
        return ""
    ratio = np.where(np.isfinite(ratio), ratio, 1.0)
    widest, narrowest = int(ratio.argmax()), int(ratio.argmin())
    if ratio[widest] >= 1.1:
        words = (
            f"The sds of q are too small by up to a factor of {ratio[widest]:.3g} ({table.labels[widest]}): "
            "use those of linear response."
        )
    elif ratio[narrowest] <= 0.9:
        words = (
            f"Linear response is narrower, down to {ratio[narrowest]:.2g} of the sd of q ({table.labels[narrowest]}), "
            "as for skewed latents: there both are approximations."
        )
    else:
        words = "Both agree within a tenth: correlation between latents plays no part."
    return f"<p>{escape(words)}</p>"


def _khat(fit: "Fit") -> str:
    khat, why = _try(lambda: fit.khat)
    if khat is None:
        return section("k-hat", f"<p>{escape(sentence(why))}</p>")
    words = f"<p>{escape(sentence(khat_words(fit) or khat_meaning(khat)))}</p>"
    picture = svg.gauge(khat, _ZONES, f"k-hat {khat:.2f}") if np.isfinite(khat) else ""
    caption = "Shape of the tail of the importance ratios p / q. Up to 0.7 fit.resample corrects the draws of q."
    return section("k-hat", words + (figure(picture, caption) if picture else ""))


def _curvature(fit: "Fit") -> str:
    found, why = _try(fit.curvature_report)
    if found is None:
        return section("Curvature", f"<p>{escape(sentence(why))}</p>")
    head = "No direction is flat or leads upwards."
    if found.of_kind("negative"):
        head = "Some directions lead upwards: this is no maximum."
    elif found.of_kind("flat"):
        head = "Some directions are flat: q is much narrower than the posterior there."
    rows = "\n".join(
        f'<tr class="{d.kind}"><td>{d.kind}</td><td class="n">{d.curvature:.3g}</td>'
        f'<td class="n">{f"{d.width:.3g}" if np.isfinite(d.width) else ""}</td><td>{escape(d.combination())}</td></tr>'
        for d in found.directions
    )
    return section(
        "Curvature",
        f"<p>{head} Combinations of latents in units of q's own sds; curvature and width 1 mean as wide as q.</p>"
        '<div class="scroll"><table class="directions"><thead><tr><th>direction</th><th class="n">curvature</th>'
        f'<th class="n">width</th><th>combination</th></tr></thead><tbody>\n{rows}\n</tbody></table></div>',
    )


def _table(table: Summary) -> str:
    columns = table.columns
    head = "".join(f'<th class="n">{escape(heading)}</th>' for heading in columns)
    rows = "\n".join(
        f"<tr><th>{escape(label)}</th>"
        + "".join(f'<td class="n">{number(column[i])}</td>' for column in columns.values())
        + "</tr>"
        for i, label in enumerate(table.labels[:_MOST_TABLE])
    )
    more = f"<p>The first {_MOST_TABLE} of {len(table)} rows.</p>" if len(table) > _MOST_TABLE else ""
    error = (
        f"<p>“{ERROR}”, “{SD_ERROR}”: one standard error, from the finite number of draws.</p>"
        if ERROR in columns
        else ""
    )
    return section(
        "Numbers",
        f'<div class="scroll tall"><table><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>\n{rows}\n</tbody></table></div>{more}{error}",
    )


def _cost(fit: "Fit") -> str:
    rows = {
        "method": type(fit.method).__name__ if fit.method is not None else "not saved",
        "steps": f"{len(fit.history):,}",
        "log-density calls": f"{fit.counts.log_density:,}",
        "gradient calls": f"{fit.counts.gradient:,}",
        "Hessian-vector products": f"{fit.counts.hvp:,}",
        **({"passes over all rows": f"{fit.counts.passes:.3g}"} if fit.counts.passes else {}),
        "seconds compiling": f"{fit.seconds.compile:.2f}",
        "seconds running": f"{fit.seconds.run:.2f}",
        "parameters of q": f"{fit.q.num_params:,}",
        "precision": str(fit.q.params.dtype),
        "versions": f"curvi {VERSION}, JAX {jax.__version__}, Python {platform.python_version()}",
    }
    body = "\n".join(f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in rows.items())
    note = "<p>Calls are counted per draw, checks and the final evaluation included.</p>"
    return section("Cost", f'<table class="plain"><tbody>\n{body}\n</tbody></table>{note}')


# -- small pieces -----------------------------------------------------------------------------------------------------


def _word(fit: "Fit") -> str:
    return "converged" if fit.converged else f"not converged: {fit.outcome.name.lower().replace('_', ' ')}"


def _with_error(value: float, error: float) -> str:
    return f"{value:.2g} ± {error if error > 1e-6 * abs(value) else 0:.2g}"


def _try(compute):
    """The result of `compute` and an empty string, or None and the reason."""
    try:
        return compute(), ""
    except ValueError as error:
        return None, str(error)
