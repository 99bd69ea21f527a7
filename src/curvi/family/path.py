"""How draws on fixed noise depend on the parameters: the part in compiled programs and the part on the host.

On fixed noise e the ELBO is a function of the parameters Gamma through the draws x(e; Gamma). A path splits that
function in two: *coordinates* c(Gamma), computed by the host, and draws x(e; c), differentiated in a program. This
saves compilation, which dominates a small fit: for a normal factor the coordinates are mean and scale, and the program
is little more than the derivatives of the log density.

`DirectPath` serves every family: c is Gamma, and the program differentiates all of it. A `HostPath` is that of a normal
distribution: `curvi.family.normal_path`, `curvi.family.triangular_path`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, TypeVar

import jax
import numpy as np
from jaxtyping import Array, Float

from curvi.family.matching import matched_columns

if TYPE_CHECKING:
    from curvi.family.base import DrawT, Family

Result = TypeVar("Result")


class LogJoint(Protocol):
    """ln p at a draw of q, including Jacobians."""

    def __call__(self, q: "Family[DrawT]", x: "DrawT", /) -> Float[Array, ""]: ...


class Each(Protocol):
    """Turns a function of one draw's noise into one of many draws' noise, such as `jax.vmap`."""

    def __call__(self, function: Callable[[Array], Result], /) -> Callable[[Array], Result]: ...


class Path(ABC):
    """How draws depend on the parameters; compared and hashed by value, as part of a program's static structure."""

    # -- in programs, on one chunk of noise ---------------------------------------------------------------------------

    @abstractmethod
    def gradients(
        self, q: "Family", log_joint: LogJoint, c: Float[Array, " C"], noise: Float[Array, "S n"], each: Each
    ) -> tuple[Float[Array, " S"], Float[Array, " C"], Float[Array, "S n"] | None]:
        """ln p of each draw, its gradient in c averaged over the draws, and the gradient in x of each draw (None where
        c is not a location and a scale).
        """

    @abstractmethod
    def products(
        self,
        q: "Family",
        log_joint: LogJoint,
        c: Float[Array, " C"],
        along: Float[Array, " C"],
        noise: Float[Array, "S n"],
        each: Each,
    ) -> tuple[Float[Array, " C"], Float[Array, "S n"] | None]:
        """The derivatives of the last two results of `gradients` along a direction of c."""

    # -- of values alone ----------------------------------------------------------------------------------------------

    def natural_slope(self, params: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """The slope g and the matrix S of the quadratic g' e + e' S e / 2 in x = m + L e of which a step of the
        parameters is the natural gradient; None where draws are not made by a full L.
        """
        return None

    # -- on the host --------------------------------------------------------------------------------------------------

    # Whether the host has entropy and Fisher information in closed form; else programs compute them.
    known_to_host: ClassVar[bool] = False

    def coordinates(self, params: np.ndarray) -> np.ndarray:
        """c(Gamma)."""
        return params

    def tangent(self, params: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """The derivative of c along a direction of Gamma."""
        return direction

    def gradient(self, params: np.ndarray, by_coordinates: np.ndarray) -> np.ndarray:
        """A gradient in Gamma from one in c; any leading axes."""
        return by_coordinates

    def product(
        self, params: np.ndarray, direction: np.ndarray, gradient: np.ndarray, by_coordinates: np.ndarray
    ) -> np.ndarray:
        """The derivative of `gradient` along `direction`, given that of the gradient in c."""
        return by_coordinates


class DirectPath(Path):
    """Coordinates are the parameters; the program differentiates through q, its bijections included."""

    def __init__(self, num_params: int):
        self.size = num_params

    def __eq__(self, other):
        return type(other) is DirectPath and other.size == self.size

    def __hash__(self):
        return hash((DirectPath, self.size))

    def gradients(self, q, log_joint, c, noise, each):
        values, grads = each(lambda e: jax.value_and_grad(_value(q, log_joint, e))(c))(noise)
        return values, grads.mean(0), None

    def products(self, q, log_joint, c, along, noise, each):
        found = each(lambda e: jax.jvp(jax.grad(_value(q, log_joint, e)), (c,), (along,))[1])(noise)
        return found.mean(0), None


def _value(q: "Family", log_joint: LogJoint, e: Array) -> Callable[[Array], Array]:
    """ln p at the draw of this noise, as a function of the parameters."""

    def value(params):
        moved = q.replace(params)
        return log_joint(moved, moved.from_normal(e))

    return value


class FixedPoint(NamedTuple):
    """A step of the fixed point precision <- E_q[-Hessian], mean <- mean + covariance E_q[gradient].

    Attributes
    ----------
    predicted
        The gain of a whole step in nats if ln p is quadratic.
    definite
        Whether the expected precision is positive definite as it is.
    at
        The parameters after a share of the step.
    """

    predicted: float
    definite: bool
    at: Callable[[float], np.ndarray]


class HostPath(Path):
    """A path of a normal distribution, or of one made from it: the host knows its entropy and a metric."""

    known_to_host: ClassVar[bool] = True
    has_fixed_point: ClassVar[bool] = False  # whether there is a `fixed_point`
    gaussian: ClassVar[bool] = True  # whether draws are normal
    has_scores: ClassVar[bool] = True  # whether there are `whitened_scores`
    size: int  # number of latents

    @abstractmethod
    def entropy(self, params: np.ndarray) -> float:
        """H(q)."""

    @abstractmethod
    def entropy_gradient(self, params: np.ndarray) -> np.ndarray:
        """Its gradient."""

    def entropy_product(self, params: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """The Hessian of H(q) times a direction."""
        return np.zeros_like(direction)

    @abstractmethod
    def away(self, params: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """The draws of this noise less the mean, with any leading axes."""

    @abstractmethod
    def spreads(self, params: np.ndarray) -> np.ndarray:
        """Steps of one sd of q in each parameter: the inverse root of the diagonal of the Fisher information."""

    @abstractmethod
    def whitened_scores(self, params: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Scores of the draws of this noise in coordinates where the Fisher information is the identity."""

    def whiten(self, params: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        """Gradients, one per row, in coordinates where the Fisher information is the identity."""
        root = self.root(params)
        return gradients * self.spreads(params) if root is None else np.stack([root.solve(g) for g in gradients])

    def root(self, params: np.ndarray) -> "HostRootLike | None":
        """The root of the Fisher information; None where it is diagonal, and `spreads` is its inverse."""
        return None

    def sds_moved(self, params: np.ndarray, step: np.ndarray) -> np.ndarray:
        """The size of a step for each latent: the move of its mean in sds of q, and sqrt 2 times that of its ln sd."""
        return step / self.spreads(params)

    @abstractmethod
    def sds(self, params: np.ndarray) -> np.ndarray:
        """The marginal sds of q."""

    # -- the noise, and the fixed point -------------------------------------------------------------------------------

    def log_q(self, params: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """ln q at the draws of this noise, with any leading axes, less its expectation."""
        return -0.5 * (noise**2 - 1).sum(-1)

    @property
    def noise_size(self) -> int:
        """The number of columns of the noise."""
        return self.size

    @property
    def moment_size(self) -> int:
        """The number of mirrored pairs whose matched noise averages exactly every quadratic that q can follow."""
        return self.size

    def match(self, half: np.ndarray) -> np.ndarray:
        """One half of mirrored noise (pairs, columns), with the right second moments as far as pairs suffice."""
        return matched_columns(half)

    def fixed_point(self, params: np.ndarray, slope: np.ndarray, least: float, resolution: float) -> FixedPoint | None:
        """The step given the gradient of the mean of ln p in the coordinates, by Stein's identity. Where the expected
        precision is not definite, with gradients exact to `resolution`, its whitened eigenvalues are raised to
        `least`, or there is no step.
        """
        return None

    def symmetrised(self, params: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """A gradient in the coordinates with the symmetry that its expectation has."""
        return slope


class ExpandablePath(HostPath):
    """A path of few enough dimensions for the second-order control variate (`curvi.estimate.fixed_draws.expansion`)."""

    @abstractmethod
    def excess(self, hessian: np.ndarray, noise: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """The gradient in c of the excess of a quadratic form over this noise, a linear function of c."""

    @abstractmethod
    def part_excess(self, hessian: np.ndarray, parts: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The excess over each part (parts, draws, n) of the noise, and its gradients in c."""

    @abstractmethod
    def at_mean(self, params: np.ndarray, spread: float | np.ndarray = 0.0) -> np.ndarray:
        """Coordinates of draws at the mean, or at a distance `spread` times their noise."""

    @abstractmethod
    def along_noise(self) -> np.ndarray:
        """The direction of the coordinates in which each draw moves along its own noise."""

    @abstractmethod
    def scale_matrix(self, params: np.ndarray) -> np.ndarray:
        """L, with draws m + L e."""

    def expected_hessian(self, params: np.ndarray, slope: np.ndarray) -> np.ndarray | None:
        """E_q[Hessian of ln p] by Stein's identity, where the gradient in the coordinates determines it."""
        return None


class HostRootLike(Protocol):
    """L of a metric L L', in numpy."""

    def solve(self, v: np.ndarray) -> np.ndarray: ...

    def solve_transpose(self, v: np.ndarray) -> np.ndarray: ...
