"""What the run asks of a method.

A method makes a state, advances it, and says what is left to gain. The state is a pytree and nothing else: all that the
next steps need besides the method, the problem and the key. Clock, display, history, limits, interrupts and files are
the business of `curvi.run`; so every method is resumed, saved and interrupted alike.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from curvi.certify.decrement import certify
from curvi.certify.gain import Gain
from curvi.estimate.sampling import FINAL_DRAWS, log_ratios
from curvi.family import Family
from curvi.model.target import AbstractTarget
from curvi.outcome import Outcome
from curvi.record.counts import CallCounts
from curvi.record.history import Row, mean_and_error

Kept = TypeVar("Kept")


class Needs(NamedTuple):
    """What a method needs of a target and a family.

    Attributes
    ----------
    order
        How often the log density must be differentiable.
    path
        Whether draws of all latents must follow the parameters.
    kl
        Whether the others must have Kullback-Leibler divergences in closed form.
    compiled
        Whether the log density must be a function that JAX can compile.
    separable
        Whether latents must be independent under q.
    """

    order: int = 0
    path: bool = False
    kl: bool = False
    compiled: bool = True
    separable: bool = False


class Budget(NamedTuple):
    """What an advance may spend, and what the fit is after."""

    num_steps: int
    tolerance: float


@runtime_checkable
class State(Protocol):
    """What every state has: the q that it stands for."""

    @property
    def q(self) -> Family: ...


StateT = TypeVar("StateT", bound=State)


class Problem:
    """A target and the q to start from.

    `once` keeps what follows from these and from the state but is dear to make, such as buffers and programs: it may be
    thrown away at any time, and holds nothing that the state does not determine.
    """

    def __init__(self, target: AbstractTarget, q: Family, num_starts: int = 1):
        self.target, self.q, self.num_starts = target, q, num_starts
        # Each name with a type of its own.
        self._kept: dict[str, tuple[tuple[object, ...], Any]] = {}

    def once(self, name: str, build: Callable[[], Kept], *of: object) -> Kept:
        """What `build` makes, kept for as long as it is asked for with the same objects `of`: the very same arrays, or
        equal tuples of numbers.
        """
        if name in self._kept:
            before, value = self._kept[name]
            if len(before) == len(of) and all(a is b or (type(a) is tuple and a == b) for a, b in zip(before, of)):
                return value
        value = build()
        self._kept[name] = (of, value)
        return value


@dataclasses.dataclass(frozen=True)
class News:
    """What happened in an advance.

    Attributes
    ----------
    rows
        One dict of columns of the history a step.
    counts
        Calls of the model.
    gain
        A certificate, if one was made: the fit has converged where it is within the tolerance.
    outcome
        How the fit ended, if there is nothing more to be done.
    """

    rows: list[Row] = dataclasses.field(default_factory=list)
    counts: CallCounts = dataclasses.field(default_factory=CallCounts)
    gain: Gain | None = None
    outcome: Outcome | None = None


class Method(eqx.Module, Generic[StateT]):
    """A way to climb the ELBO, with states of one type."""

    needs: ClassVar[Needs] = Needs()
    default_num_steps: ClassVar[int] = 500
    several_starts: ClassVar[bool] = False

    @abstractmethod
    def init(self, problem: Problem, key: PRNGKeyArray) -> StateT:
        """The state before the first step; no call of the model."""

    @abstractmethod
    def advance(self, problem: Problem, state: StateT, key: PRNGKeyArray, budget: Budget) -> tuple[StateT, News]:
        """The state after some steps, at most `budget.num_steps`, and what happened; never the same state without
        news that the fit has ended.
        """

    def certify(self, problem: Problem, state: StateT, key: PRNGKeyArray, tolerance: float) -> Gain:
        """What is left to gain at the q of a state, on fresh draws; the state stays."""
        return certify(problem.target, state.q, jax.random.fold_in(key, _FOR_CERTIFYING))

    def elbo(self, problem: Problem, state: StateT, key: PRNGKeyArray) -> tuple[float, float, CallCounts]:
        """The ELBO of a state on fresh draws and all data, its standard error, and the calls spent."""
        values = log_ratios(problem.target, state.q, jax.random.fold_in(key, _FOR_ELBO), FINAL_DRAWS)
        return *mean_and_error(values), CallCounts(log_density=FINAL_DRAWS)

    def why_not(self, problem: Problem) -> str | None:
        """Why the method cannot work on a problem, as a sentence for the user; None where it can."""
        target, q, needs, name = problem.target, problem.q, self.needs, type(self).__name__
        if target.black_box and needs.compiled:
            return (
                f"{name} compiles the log density, which is a black box; use PooledRegression, the default for black "
                "boxes"
            )
        if target.order < needs.order:
            return (
                f"{name} differentiates the log density {needs.order} time(s), but the target says "
                f"order={target.order}; use a score method (SchemeI, SchemeII, Algorithm0, NaturalGradient, BBVI), "
                "or raise `order` if it is differentiable"
            )
        if needs.kl and (names := q.latents_without_kl):
            return (
                f"{name} needs draws or Kullback-Leibler divergences that the factors of {', '.join(names)} do not "
                "have; use Normal factors there, or a score method (SchemeI, NaturalGradient, BBVI)"
            )
        if needs.path and (names := q.latents_without_path):
            return (
                f"{name} differentiates through the draws, which the factors of {', '.join(names)} do not allow; "
                "use Normal or LogNormal factors there, or a score method (SchemeI, NaturalGradient, BBVI)"
            )
        if needs.separable and not q.separable:
            return f"{name} needs latents that are independent under q, as in a MeanField; got {type(q).__name__}"
        if problem.num_starts > 1 and not self.several_starts:
            return f"num_starts works with the default method, GrowingDraws; got {name}"
        return None


# Purposes of random numbers, folded into the key of a fit.
_FOR_CERTIFYING, _FOR_ELBO = 1 << 20, (1 << 20) + 1
