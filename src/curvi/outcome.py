"""How a fit may end. A numerical outcome is a value with a message, not an exception."""

from enum import Enum


class Outcome(Enum):
    """The end of a fit; `message` says what it means and what to do next."""

    CONVERGED = "converged: what is left to gain at this optimum is below the tolerance, its error included"
    MAX_STEPS = (
        "the steps ran out before the remaining gain was below the tolerance; "
        "raise num_steps, or start again from this fit"
    )
    NOISE_LIMIT = (
        "the noise of the estimates hides whatever is left to gain; raise the number of draws, or loosen the tolerance"
    )
    NOT_A_MAXIMUM = (
        "the ELBO curves upwards here in some direction (a saddle, or a flat or unbounded posterior); "
        "look at the model for parameters that the data do not determine, or start elsewhere"
    )
    NON_FINITE = (
        "every step led to values that are not finite; "
        "look for divisions, logarithms and overflow in the log density near the last q"
    )
    INTERRUPTED = "interrupted; this is what there was at that moment"

    @property
    def message(self) -> str:
        return self.value
