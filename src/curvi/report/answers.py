"""The two questions about a fit, answered apart: is the optimum found, and is the posterior right."""

import math
from typing import TYPE_CHECKING

import numpy as np

from curvi.certify.gain import LARGEST_STEP
from curvi.diagnostics.posterior_check import DOUBTFUL, RIGHT
from curvi.estimate.psis import ENOUGH_EFFECTIVE, MAX_KHAT, khat_meaning
from curvi.outcome import Outcome

if TYPE_CHECKING:
    from curvi.results import Fit

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


def headline(fit: "Fit") -> str:
    """Both answers in one line."""
    return f"{'converged' if fit.converged else 'not converged'}; posterior {fit.posterior_check.words}"


def all_is_well(fit: "Fit") -> bool:
    """Whether both answers are good ones."""
    return fit.converged and fit.posterior_check.answer == RIGHT


def certified(fit: "Fit") -> str:
    """What is left to gain, and how near means and sds are to those of the best q of the family."""
    nats = f"{_short(fit.remaining_gain)} ± {_short(fit.remaining_gain_se)} nats left to gain"
    nats = nats if math.isfinite(fit.remaining_gain) else "what is left to gain is unknown"
    if not math.isfinite(fit.remaining_sds) or fit.remaining_sds == fit.remaining_sds_se == 0:
        return nats
    step = f"largest step left {_short(fit.remaining_sds)} ± {_short(fit.remaining_sds_se)} sd"
    if not fit.converged:
        return f"{nats}; {step}"
    granted = "" if fit.remaining_sds <= LARGEST_STEP else ", two standard errors granted"
    return f"{nats}; every mean and sd within {LARGEST_STEP} sd{granted}: {step}"


def _short(value: float) -> str:
    """Two digits; zero for what is of no account in nats or sds."""
    return f"{value if abs(value) > 1e-6 else 0:.2g}"


def family_line(fit: "Fit") -> str:
    """The family of the fit, why, and what the next larger one would gain; empty where nothing is known."""
    chosen = next((row for row in fit.families if row.chosen), None)
    if chosen is None:
        return ""
    check = fit.posterior_check
    said = f"{chosen.name}, {chosen.num_params:,} parameters: {chosen.why}"
    if not check.next_family:
        return said
    gain = check.predicted_gain
    known = f"would gain {_short(max(gain, 0.0))} nats more" if np.isfinite(gain) else "would gain is not known"
    return f"{said}; {check.next_family} {known}" if np.isfinite(gain) else f"{said}; what {check.next_family} {known}"


def khat_words(fit: "Fit") -> str:
    """The meaning of k-hat, with the share of draws that stay effective where it is large; empty where unknown."""
    check = fit.posterior_check
    if np.isnan(check.khat):
        return ""
    if not MAX_KHAT < check.khat < np.inf:
        return khat_meaning(check.khat)
    effective = f"{check.effective_draws:,.0f} of {check.num_draws:,} draws are effective"
    if check.effective_draws >= ENOUGH_EFFECTIVE * check.num_draws:
        return f"a heavy far tail of ratios that hardly vary: {effective}"
    return f"{khat_meaning(check.khat)}; {effective}"


def next_step(fit: "Fit", page: bool = False) -> str:
    """What to do next; with `page`, without suggesting the report."""
    if fit.outcome is Outcome.NON_FINITE and fit.q.params.dtype == np.float32:
        # A factorisation may fail in single precision but not in double precision.
        return f"{_NEXT[Outcome.PRECISION]}; then {_NEXT[Outcome.NON_FINITE]}"
    if not fit.converged:
        return _NEXT[fit.outcome]
    if fit.posterior_check.next:
        return fit.posterior_check.next
    return "fit.sample(key, n) for draws, fit.summary() for a table" + ("" if page else ", fit.report(path) for a page")


def notes(fit: "Fit") -> list[str]:
    """Remarks for a table: that the optimum is not found, and what is known of the posterior."""
    found = [] if fit.converged else [f"Not converged: {fit.outcome.message}."]
    words = {RIGHT: "The posterior is right as far as can be seen", DOUBTFUL: "The posterior is doubtful"}
    check = fit.posterior_check
    said = words.get(check.answer, "Whether the posterior is right is not known")
    return [*found, f"{said}: {'; '.join(check.reasons)}."]
