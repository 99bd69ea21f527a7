"""The interface between a method and the run.

A method makes a state, advances it, and estimates the remaining gain. The state is a pytree that holds all that the
next steps need besides the method, the problem and the key. Clock, display, history, limits, interrupts and files are
handled by `curvi.run`; so every method is resumed, saved and interrupted in the same way.
"""

import dataclasses
import math
from abc import abstractmethod
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from curvi.certify.decrement import certify
from curvi.certify.gain import Gain
from curvi.estimate.sampling import final_draws, log_ratios
from curvi.family import FAMILIES, Family
from curvi.family.centering_table import CenteringTable, centering_table
from curvi.family.shapes import has_skew, skewed_name
from curvi.methods.planning import plain_plan
from curvi.methods.problem import Problem as Problem
from curvi.model.placement import Placement
from curvi.outcome import Outcome
from curvi.record.counts import CallCounts
from curvi.record.history import Row, mean_and_error
from curvi.record.plain import register
from curvi.record.plan import Plan


class Needs(NamedTuple):
    """The requirements of a method on a target and a family.

    Attributes
    ----------
    order
        How often the log density must be differentiable.
    path
        Whether draws of all latents must be reparameterised.
    kl
        Whether latents without reparameterisation must have Kullback-Leibler divergences in closed form.
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
    """The largest number of steps of an advance, and the tolerance of the fit."""

    num_steps: int
    tolerance: float


@runtime_checkable
class State(Protocol):
    """The interface of every state: its q."""

    @property
    def q(self) -> Family: ...


StateT = TypeVar("StateT", bound=State)


@dataclasses.dataclass(frozen=True)
class News:
    """The results of an advance.

    Attributes
    ----------
    rows
        One dict of columns of the history per step.
    counts
        Evaluations of the model.
    gain
        A certificate, if one was made: the fit has converged if it is within the tolerance.
    outcome
        How the fit ended, if it has ended.
    """

    rows: list[Row] = dataclasses.field(default_factory=list)
    counts: CallCounts = dataclasses.field(default_factory=CallCounts)
    gain: Gain | None = None
    outcome: Outcome | None = None


@register
@dataclasses.dataclass(frozen=True)
class FamilyRow:
    """A family that a fit could have chosen.

    Attributes
    ----------
    name, num_params
        Its name and its number of parameters.
    predicted_gain
        The nats that it should gain over a mean field; NaN where that is unknown.
    chosen
        Whether the fit ended with it.
    why
        Why, or why not.
    gain_error
        The standard error of the predicted gain; NaN where that is unknown.
    """

    name: str
    num_params: int
    predicted_gain: float
    chosen: bool
    why: str
    gain_error: float = float("nan")


class Method(eqx.Module, Generic[StateT]):
    """A method to maximise the ELBO, with states of one type."""

    needs: ClassVar[Needs] = Needs()
    default_num_steps: ClassVar[int] = 500
    several_starts: ClassVar[bool] = False
    widens: ClassVar[bool] = False  # whether a mean field may become another family on the way
    skews: ClassVar[bool] = False  # whether the marginals of a normal q may become skewed on the way
    learns_centering: ClassVar[bool] = False
    streams: ClassVar[bool] = False  # whether it takes rows that are read a chunk at a time
    mesh_axes: ClassVar[tuple[str, ...]] = ()  # axes of a mesh over which it spreads its work

    @abstractmethod
    def init(self, problem: Problem, key: PRNGKeyArray) -> StateT:
        """The state before the first step, without evaluating the model."""

    @abstractmethod
    def advance(self, problem: Problem, state: StateT, key: PRNGKeyArray, budget: Budget) -> tuple[StateT, News]:
        """The state after some steps, at most `budget.num_steps`, and what happened. The state changes unless the fit
        has ended.
        """

    def certify(self, problem: Problem, state: StateT, key: PRNGKeyArray, tolerance: float) -> Gain:
        """The remaining gain at the q of a state, on fresh draws; the state is unchanged."""
        return certify(problem.target, state.q, jax.random.fold_in(key, _FOR_CERTIFYING), problem.memory)

    def elbo(self, problem: Problem, state: StateT, key: PRNGKeyArray) -> tuple[float, float, CallCounts]:
        """The ELBO of a state on fresh draws and all data, its standard error, and the evaluations spent."""
        num_draws = final_draws(state.q)
        values = log_ratios(problem.target, state.q, jax.random.fold_in(key, _FOR_ELBO), num_draws, problem.memory)
        return *mean_and_error(values), CallCounts(log_density=num_draws)

    def plan(self, problem: Problem) -> Plan:
        """What a fit takes in memory, from shapes and `problem.memory` alone; what is more than that is refused."""
        return plain_plan(problem.target, problem.q, problem.memory)

    def fixed_draws(self, q: Family) -> int | None:
        """The largest number of draws on which the method seeks a maximum; None where it does not keep them fixed."""
        return None

    def families(self, problem: Problem, state: StateT) -> tuple[FamilyRow, ...]:
        """What is known of the families that could have been chosen, one row each."""
        q = state.q
        name = next((name for name, kind in FAMILIES.items() if type(q) is kind), type(q).__name__)
        name = skewed_name(name) if has_skew(q) else name
        return (FamilyRow(name, q.num_params, float("nan"), True, "the start of this method"),)

    def centering(self, state: StateT) -> CenteringTable:
        """The lambdas of the q of a state, and how they were found."""
        return centering_table(state.q, "given")

    def _why_no_mesh(self, placement: Placement) -> str | None:
        axes = [axis for axis in placement.mesh.axis_names if axis not in self.mesh_axes]
        if not axes:
            return None
        name = type(self).__name__
        if not self.mesh_axes:
            return f"{name} computes on one device; leave mesh out, or use GrowingDraws (derivatives, data in arrays)"
        return f"{name} spreads no {', no '.join(axes)} over a mesh; name its axes {' or '.join(self.mesh_axes)}"

    def why_not(self, problem: Problem) -> str | None:
        """Why the method does not apply to a problem, as a sentence for the user; None if it does."""
        target, q, needs, name = problem.target, problem.q, self.needs, type(self).__name__
        if problem.placement is not None and (why := self._why_no_mesh(problem.placement)) is not None:
            return why
        if q.params.dtype.itemsize < 4:
            return f"q is in {q.params.dtype}, whose digits are too few; give init in float32 or float64"
        if target.black_box and needs.compiled:
            return (
                f"{name} compiles the log density, which is a black box; use PooledRegression, the default for black "
                "boxes"
            )
        if target.streamed and not self.streams:
            return (
                f"{name} needs all rows in memory, and the data of this target are Rows; use GrowingRows, the default "
                "for continuous latents with derivatives, or give arrays"
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
        if (held := self.fixed_draws(q)) is not None and held < q.min_draws:
            return (
                f"{name} climbs on at most {held} fixed draws, but {type(q).__name__} needs {q.min_draws} here: with "
                "fewer mirrored pairs than dimensions the ELBO on them grows without bound; allow "
                f"{2 ** math.ceil(math.log2(q.min_draws))} draws, or use MeanField"
            )
        if problem.num_starts > 1 and not self.several_starts:
            return f"num_starts works with the default method, GrowingDraws; got {name}"
        return None


# Purposes of random numbers, folded into the key of a fit.
_FOR_CERTIFYING, _FOR_ELBO = 1 << 20, (1 << 20) + 1
