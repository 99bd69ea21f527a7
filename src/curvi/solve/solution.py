"""The result of every solver: the solution of a symmetric system, its true residual and its outcome."""

from abc import abstractmethod
from enum import IntEnum

import equinox as eqx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from curvi.curvature import Operator


class SolveOutcome(IntEnum):
    """How a solve ended; `message` says what happened and what to do."""

    SOLVED = 0
    RESIDUAL_TOO_LARGE = 1
    MAX_STEPS = 2
    NEGATIVE_CURVATURE = 3
    BAD_PRECONDITIONER = 4
    MODIFIED = 5
    GUARDED = 6
    DIVERGED = 7
    SINGULAR = 8
    NON_FINITE = 9

    @property
    def message(self) -> str:
        return _MESSAGES[self]


_MESSAGES = {
    SolveOutcome.SOLVED: "Solved: the true relative residual is within the tolerance.",
    SolveOutcome.RESIDUAL_TOO_LARGE: "The true relative residual exceeds the tolerance in the end: the system"
    " is too ill conditioned for the method and precision; add damping, use float64 or another solver.",
    SolveOutcome.MAX_STEPS: "The steps ran out before the residual met the tolerance; x is the last iterate: "
    "allow more steps, precondition with the Fisher blocks, add damping or loosen the tolerance.",
    SolveOutcome.NEGATIVE_CURVATURE: "The operator is not positive definite; x is the iterate before the "
    "direction of negative curvature was met (the preconditioned right-hand side if it was the first): "
    "add damping, use a trust region, or Dense(definite=True).",
    SolveOutcome.BAD_PRECONDITIONER: "The preconditioner is not positive definite; x is the iterate so far: "
    "pass a positive definite one, such as the Fisher blocks, or none.",
    SolveOutcome.MODIFIED: "The matrix was not safely positive definite; x solves the system with its small "
    "and negative eigenvalues replaced, not the original: take x as a safe direction only.",
    SolveOutcome.GUARDED: "A Sherman-Morrison denominator vanished and its update was left out; x solves a "
    "system without that term: use Woodbury, which needs no intermediate matrix, or add damping.",
    SolveOutcome.DIVERGED: "The recursion grew instead of converging; x is the best iterate seen: take the "
    "natural gradient step instead, or raise the scale, average more draws, add damping.",
    SolveOutcome.SINGULAR: "The system is finite but the solution is not: the matrix, or the block diagonal "
    "that the low-rank solvers start from, is singular to working precision; add damping.",
    SolveOutcome.NON_FINITE: "The operator or the right-hand side holds a number that is not finite; nothing "
    "was solved: look at the log density and its draws.",
}


class Solution(eqx.Module):
    """The result of a solver.

    Attributes
    ----------
    x
        The solution, or the vector described by `outcome`.
    residual
        |b - A x| / |b|, recomputed from the operator as given; |A x| where b = 0.
    num_products
        Products with the operator (or one of its copies), including those for the residual.
    code
        The outcome as an integer, readable under jit; compare it with members of `SolveOutcome`.
    num_draws
        Independent copies of a `Sampled` operator that were drawn, each of which cost `calls_per_draw`.
    """

    x: Float[Array, " P"]
    residual: Float[Array, ""]
    num_products: Int[Array, ""]
    code: Int[Array, ""]
    num_draws: Int[Array, ""]

    @property
    def outcome(self) -> SolveOutcome:
        return SolveOutcome(int(self.code))

    @property
    def message(self) -> str:
        return self.outcome.message


class Solver(eqx.Module):
    """A map from a symmetric system to its `Solution`."""

    @abstractmethod
    def __call__(self, operator: Operator, rhs: Float[Array, " P"], *, key: PRNGKeyArray | None = None) -> Solution:
        """The solution of (operator) x = rhs; `key` is used only by methods that draw."""
