"""Directions in which the ELBO is flat, stiff or curves upwards, by the names of the latents.

Eigenvectors of the whitened -H (see `hessian`): along one with eigenvalue c a posterior that is locally normal is
1 / sqrt(c) times as wide as q. Near 0 it is flat: the data hardly determine that combination of latents, or the latents
are strongly correlated, which the small sds of q do not show. Below 0 q is not a maximum.
"""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import eigh_tridiagonal

from curvi.diagnostics.hessian import WhitenedHessian
from curvi.diagnostics.hessian_on_draws import DENSE
from curvi.diagnostics.response import curvature_of

if TYPE_CHECKING:
    from curvi.results import Fit

_FLAT, _STIFF = 0.25, 4.0  # the posterior twice as wide as q, and half as wide
_DENSE_ALONE = 512  # parameters up to which the matrix is formed for its eigenvalues alone
MOST_PARAMS = 2**18
_STEPS = 60  # products of Lanczos's method
_NOT_FINITE = "the Hessian is not finite at draws of q: it has no directions to report"
_PARTS = 6
_SMALLEST_PART = 0.1


@dataclasses.dataclass(frozen=True)
class Direction:
    """An eigenvector of the whitened curvature.

    Attributes
    ----------
    curvature
        Its eigenvalue: 1 where the posterior is as wide as q.
    kind
        "negative", "flat", "stiff" or "ordinary".
    parts
        Weights by label, the largest first: "a[0]" moves the location of a factor, "spread of a[0]" its log sd. In
        units of q's own sds; the squares of all weights sum to one.
    """

    curvature: float
    parts: dict[str, float]

    @property
    def kind(self) -> str:
        if self.curvature <= 0:
            return "negative"
        if self.curvature < _FLAT:
            return "flat"
        return "stiff" if self.curvature > _STIFF else "ordinary"

    @property
    def width(self) -> float:
        """The width of a locally normal posterior relative to q; infinite where the curvature is not positive."""
        return float(self.curvature**-0.5) if self.curvature > 0 else float("inf")

    def combination(self) -> str:
        """The largest parts as a sum."""
        shown = [(label, w) for label, w in list(self.parts.items())[:_PARTS] if abs(w) >= _SMALLEST_PART]
        words = " ".join(f"{'+' if w > 0 else '-'} {abs(w):.2f} {label}" for label, w in shown)
        rest = 1 - sum(w * w for _, w in shown)
        # The sign is arbitrary: the first is positive.
        return words.removeprefix("+ ") + (f"  (and {100 * rest:.0f} % elsewhere)" if rest > 0.02 else "")


@dataclasses.dataclass(frozen=True)
class CurvatureReport:
    """The extreme directions of the whitened curvature, the flattest first."""

    directions: tuple[Direction, ...]
    num_params: int

    def of_kind(self, kind: str) -> tuple[Direction, ...]:
        return tuple(direction for direction in self.directions if direction.kind == kind)

    def __str__(self) -> str:
        lines = []
        for kind, meaning in _MEANINGS.items():
            if found := self.of_kind(kind):
                lines.append(f"{kind}: {meaning}")
                lines += [f"  {_numbers(direction):<38}{direction.combination()}" for direction in found]
        if not (self.of_kind("negative") or self.of_kind("flat")):
            lines.insert(0, "No direction is flat or leads upwards.")
        return "\n".join([f"Curvature of the ELBO, {self.num_params} parameters (1: as wide as q)", *lines])


_MEANINGS = {
    "negative": "the ELBO curves upwards, no maximum; look for parameters that the data do not determine",
    "flat": "the posterior is over twice as wide as q: correlated or hardly determined latents",
    "stiff": "the posterior is less than half as wide as q along this combination",
    "ordinary": "the rest of the extremes, as wide as q within a factor of two",
}


def _numbers(direction: Direction) -> str:
    width = f", {direction.width:.3g} times as wide" if direction.curvature > 0 else ""
    return f"curvature {direction.curvature:.3g}{width}"


def curvature_report(fit: "Fit", num_directions: int = 3) -> CurvatureReport:
    """`num_directions` from either end of the spectrum; see `Fit.curvature_report`."""
    if num_directions < 1:
        raise ValueError(f"num_directions must be at least 1; got {num_directions}")
    if fit.q.num_params > MOST_PARAMS:
        raise ValueError(
            f"a curvature report keeps {_STEPS} vectors of the parameters; it is made for at most {MOST_PARAMS:,}, "
            f"and q has {fit.q.num_params:,}"
        )
    curved = curvature_of(fit, "a curvature report")
    values, vectors = extreme_eigenpairs(curved, min(num_directions, fit.q.num_params))
    labels = np.asarray(fit.q.parameter_labels())
    return CurvatureReport(
        tuple(_direction(value, vector, labels) for value, vector in zip(values, vectors.T)), fit.q.num_params
    )


def _direction(value: float, vector: np.ndarray, labels: np.ndarray) -> Direction:
    order = np.argsort(-np.abs(vector), kind="stable")
    vector = vector * (np.sign(vector[order[0]]) or 1.0)
    parts = {str(labels[i]): float(vector[i]) for i in order if abs(vector[i]) > 1e-6}
    return Direction(float(value), parts)


def extreme_eigenpairs(curved: WhitenedHessian, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and largest eigenvalues, ascending, and their vectors as columns: Lanczos for many parameters."""
    size = curved.q.num_params
    formed = curved.blocks is not None and curved.blocks.blocks is not None
    if size <= (DENSE if formed else _DENSE_ALONE):
        matrix = curved.dense
        if not np.all(np.isfinite(matrix)):
            raise ValueError(_NOT_FINITE)
        values, vectors = np.linalg.eigh(matrix)
    else:
        values, vectors = lanczos(curved.product, size, min(_STEPS, size))
    chosen = np.unique(np.concatenate([np.arange(min(count, len(values))), np.arange(len(values))[-count:]]))
    return values[chosen], vectors[:, chosen]


def lanczos(product, size: int, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Ritz values, ascending, and vectors as columns, after so many products and with full reorthogonalisation.

    The ends of the spectrum come first, where they stand apart from the rest; elsewhere values lie inside of them.
    """
    basis, diagonal, beside = np.zeros((num_steps, size)), [], []
    vector = np.random.default_rng(0).normal(size=size)
    for step in range(num_steps):
        basis[step] = vector / np.linalg.norm(vector)
        image = product(basis[step])
        if not np.all(np.isfinite(image)):
            raise ValueError(_NOT_FINITE)
        diagonal.append(basis[step] @ image)
        known = basis[: step + 1]
        for _ in range(2):
            image = image - known.T @ (known @ image)
        beside.append(np.linalg.norm(image))
        if beside[-1] < 1e-8 * max(map(abs, diagonal)):
            break
        vector = image
    values, inside = eigh_tridiagonal(np.array(diagonal), np.array(beside[:-1]))
    return values, basis[: len(diagonal)].T @ inside
