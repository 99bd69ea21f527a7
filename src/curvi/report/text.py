"""A fit on one screen: outcome, results, cost, and what to do next."""

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from curvi.estimate.psis import khat_meaning
from curvi.outcome import Outcome

if TYPE_CHECKING:
    from curvi.results import Fit

_WIDTH = 110
_LARGE_KHAT = 0.7

_NEXT = {
    Outcome.MAX_STEPS: "curvi.fit(target, start=fit) goes on from here; num_steps allows more steps",
    Outcome.MAX_SECONDS: "curvi.fit(target, start=fit) goes on from here; max_seconds allows more time",
    Outcome.MAX_EVALUATIONS: "curvi.fit(target, start=fit) goes on from here; max_evaluations allows more calls",
    Outcome.NOISE_LIMIT: "allow more draws (the method's num_draws or max_draws), or loosen the tolerance",
    Outcome.NOT_A_MAXIMUM: "fit.curvature_report() names the directions that are flat or lead upwards",
    Outcome.NON_FINITE: "look for divisions, logarithms and overflow in the log density; give latents their supports",
    Outcome.PRECISION: "use float64: jax.config.update('jax_enable_x64', True) before anything else",
    Outcome.DISAGREEMENT: "pass order=0 to Target: the method then uses values alone",
    Outcome.MODEL_FAILED: "the error names the draw; mend the function there, and start anew from family=fit.q",
    Outcome.INTERRUPTED: "curvi.fit(target, start=fit) goes on from here as if nothing had happened",
}


def next_step(fit: "Fit", khat: float | None, page: bool = False) -> str:
    """What to do next; with `page`, without suggesting the report."""
    if fit.outcome is Outcome.NON_FINITE and fit.q.params.dtype == np.float32:
        # A factorisation may fail in single precision but not in double precision.
        return f"{_NEXT[Outcome.PRECISION]}; then {_NEXT[Outcome.NON_FINITE]}"
    if not fit.converged:
        return _NEXT[fit.outcome]
    if khat is not None and np.isfinite(khat) and khat > _LARGE_KHAT:
        return "fit.summary() compares sds with linear response; where they differ much, latents are correlated"
    return "fit.sample(key, n) for draws, fit.summary() for a table" + ("" if page else ", fit.report(path) for a page")


def verdict(fit: "Fit") -> str:
    """The text of the screen; computes k-hat, once per fit."""
    try:
        khat, why = fit.khat, ""
    except ValueError as error:
        khat, why = None, str(error)
    counts, seconds = fit.counts, fit.seconds
    gain = f"{fit.remaining_gain:.3g} ± {fit.remaining_gain_se:.2g} nats"
    rows = {
        "ELBO": f"{fit.elbo:.4f} ± {fit.elbo_se:.4f} nats",
        "remaining gain": gain if np.isfinite(fit.remaining_gain) else "unknown",
        "k-hat": why if khat is None else khat_line(khat),
        "cost": f"{len(fit.history)} steps; {seconds.compile:.2f} s compiling, {seconds.run:.2f} s running",
        "calls": f"{counts.log_density:,} log density, {counts.gradient:,} gradient, {counts.hvp:,} Hessian-vector",
        "next": next_step(fit, khat),
    }
    name = type(fit.method).__name__ if fit.method is not None else None
    if name and fit.reason != "asked for":
        rows = {"method": f"{name}: {fit.reason}", **rows}
    head = f"curvi fit: {'converged' if fit.converged else 'not converged'}" + (f" ({name})" if name else "")
    if fit.suspects and not fit.converged:
        rows = {"look at": ", ".join(fit.suspects), **rows}
    return "\n".join([head, textwrap.indent(fit.outcome.message, "  "), *(_line(*row) for row in rows.items())])


def khat_line(khat: float) -> str:
    """k-hat with its meaning."""
    words = khat_meaning(khat)
    return f"{khat:.2f}, {words}" if np.isfinite(khat) else words


def _line(name: str, text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=f"  {name:<16}", subsequent_indent=" " * 18)
