"""Scheme I of the paper: the Hessian as block diagonal plus rank S (equation 14), solved without forming it."""

from curvi.estimate import AnchoredScore, PaperScore
from curvi.estimate.local import Estimator
from curvi.methods.second_order import Safeguard, literal_step, newton_descent, safe_step, start_state
from curvi.methods.stepwise import StepMethod
from curvi.record.plain import register
from curvi.solve import CG
from curvi.solve.solution import Solver


@register
class SchemeI(StepMethod):
    """Newton's method in O(S P) per product (conjugate gradients, Option II) or O(S^2 P) per solve (Sherman-Morrison,
    Option I; Woodbury).

    Attributes
    ----------
    solver
        Any of `curvi.solve`: CG (Option II, the default), ShermanMorrison (Option I), Woodbury (Option I in blocks),
        Dense, LiSSA.
    estimator
        Gradient and Hessian; the anchored form by default.
    safeguard
        How steps are kept safe; None takes the paper's step (see `literal`).
    step_length
        The paper's epsilon, used by the literal step only.
    """

    solver: Solver = CG(max_steps=50)
    estimator: Estimator = AnchoredScore(256)
    safeguard: Safeguard | None = Safeguard()
    step_length: float = 1.0

    @classmethod
    def literal(
        cls,
        num_draws: int,
        num_gradient_draws: int | None = None,
        step_length: float = 1.0,
        solver: Solver | None = None,
    ) -> "SchemeI":
        """The scheme as printed: S and T draws, weights ln p, step length epsilon, the raw Hessian."""
        return cls(solver or CG(), PaperScore(num_draws, num_gradient_draws), None, step_length)

    def start(self, target, q, key):
        return start_state(self.estimator, self.safeguard, target, q, key)

    def step(self, target, state, key):
        if self.safeguard is None:
            # Steps 2 and 3: estimates. Step 4 or 5: H y = g by Sherman-Morrison or conjugate gradients, Gamma_t =
            # Gamma_{t-1} - epsilon y. Both signs are reversed, which is equivalent: conjugate gradients here stop at
            # the first negative curvature.
            curvature = lambda target, q, local: local.curvature.scale(-1.0)  # noqa: E731
            return literal_step(self.estimator, self.solver, curvature, -self.step_length, 0, target, state, key)
        descend = newton_descent(self.safeguard, self.solver)
        return safe_step(self.estimator, self.safeguard, descend, 0, target, state, key)
