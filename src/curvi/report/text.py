"""A fit on one screen: whether the optimum is found, whether the posterior is right, cost, and what to do next."""

import math
import textwrap
from typing import TYPE_CHECKING

import numpy as np

from curvi.report.answers import certified, family_line, headline, khat_words, next_step

if TYPE_CHECKING:
    from curvi.results import Fit

_WIDTH = 110


def verdict(fit: "Fit") -> str:
    """The text of the screen; makes the check of the posterior, once per fit."""
    counts, seconds, check = fit.counts, fit.seconds, fit.posterior_check
    name = type(fit.method).__name__ if fit.method is not None else None
    passed = f", {counts.passes:.3g} passes over all rows" if counts.passes else ""
    rows = {
        "optimum": f"{fit.outcome.message}; {certified(fit)}",
        "look at": ", ".join(fit.suspects) if not fit.converged else "",
        "posterior": str(check),
        "family": family_line(fit),
        "centering": "; ".join(map(str, fit.centering)),
        "k-hat": (f"{check.khat:.2f}, " if np.isfinite(check.khat) else "") + khat_words(fit),
        "ELBO": f"{fit.elbo:.4f} ± {fit.elbo_se:.4f} nats",
        "cost": f"{len(fit.history)} steps; {seconds.compile:.2f} s compiling, {seconds.run:.2f} s running",
        "calls": f"{counts.log_density:,} log density, {counts.gradient:,} gradient, {counts.hvp:,} Hessian-vector"
        + passed,
        "devices": _devices(fit),
        "memory": "" if fit.plan is None else str(fit.plan),
        "method": f"{name}: {fit.reason}" if name and fit.reason != "asked for" else "",
        "next": next_step(fit),
    }
    head = f"curvi fit: {headline(fit)}" + (f" ({name})" if name else "")
    return "\n".join([head, *(_line(*row) for row in rows.items() if row[1])])


def _devices(fit: "Fit") -> str:
    """The mesh that a fit ran on; empty on one device."""
    mesh = fit.checkpoint.mesh if fit.checkpoint is not None else ()
    number = math.prod(size for _, size in mesh)
    return f"{number} ({', '.join(f'{name} {size}' for name, size in mesh)})" if mesh else ""


def _line(name: str, text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=f"  {name:<16}", subsequent_indent=" " * 18)
