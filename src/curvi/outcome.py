"""The outcomes of a fit. A numerical problem is a value with a message, not an exception."""

from enum import Enum


class Outcome(Enum):
    """The outcome of a fit; `message` says what it means and what to do next."""

    CONVERGED = "converged: what is left to gain at this optimum is below the tolerance, its error included"
    MAX_STEPS = (
        "the steps ran out before the remaining gain was below the tolerance; "
        "raise num_steps, or start again from this fit"
    )
    MAX_SECONDS = (
        "max_seconds passed before the remaining gain was below the tolerance; allow more, or start again from this fit"
    )
    MAX_EVALUATIONS = (
        "max_evaluations were spent before the remaining gain was below the tolerance; "
        "allow more, or start again from this fit"
    )
    NOISE_LIMIT = (
        "the noise of the estimates hides whatever is left to gain; raise the number of draws, or loosen the tolerance"
    )
    NOT_A_MAXIMUM = (
        "the ELBO curves upwards here in some direction (a saddle, or a flat or unbounded posterior); "
        "look at the model for parameters that the data do not determine, or start elsewhere"
    )
    NON_FINITE = (
        "the log density is not finite at draws of q that no step could avoid; give latents their supports "
        "(constraints.positive, ...), and look for divisions, logarithms and overflow in the log density"
    )
    PRECISION = (
        "rounding, not noise, is the limit: steps no longer change the ELBO by more than its last digits; "
        "use float64 (jax.config.update('jax_enable_x64', True)), or rescale the model"
    )
    DISAGREEMENT = (
        "the gradient along the draws contradicts the values of the log density: it has jumps or kinks that "
        "differentiation does not see; pass order=0 to Target, so that only values are used"
    )
    MODEL_FAILED = "the log density raised an error; this is what there was at that moment"
    INTERRUPTED = "interrupted; this is what there was at that moment"

    @property
    def message(self) -> str:
        return self.value
