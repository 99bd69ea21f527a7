"""Algorithm 0 of the paper: the direct second-order method, with a dense Hessian and a dense solve."""

from curvi.estimate import AnchoredScore, PaperScore
from curvi.estimate.local import Estimator
from curvi.methods.second_order import Safeguard, literal_step, newton_descent, safe_step, start_state
from curvi.methods.stepwise import StepMethod
from curvi.record.plain import register
from curvi.solve import Dense
from curvi.solve.solution import Solver


@register
class Algorithm0(StepMethod):
    """Newton's method on Monte Carlo estimates of gradient (equation 5) and Hessian (equation 13), solved densely.

    Costs O(S P^2) to form the Hessian and O(P^3) to solve, with P parameters: the reference for small problems.

    Attributes
    ----------
    estimator
        Gradient and Hessian; the anchored form by default.
    solver
        Dense, with the Hessian modified to be definite.
    safeguard
        How steps are kept safe; None takes the paper's step (see `literal`).
    step_length
        The paper's epsilon, used by the literal step only (1 in Algorithm 0).
    """

    estimator: Estimator = AnchoredScore(512)
    solver: Solver = Dense(definite=True)
    safeguard: Safeguard | None = Safeguard()
    step_length: float = 1.0

    @classmethod
    def literal(cls, num_draws: int, num_gradient_draws: int | None = None, step_length: float = 1.0) -> "Algorithm0":
        """The algorithm as printed: S and T draws, weights ln p, full steps with an unmodified Hessian."""
        return cls(PaperScore(num_draws, num_gradient_draws), Dense(), None, step_length)

    def start(self, target, q, key):
        return start_state(self.estimator, self.safeguard, target, q, key)

    def step(self, target, state, key):
        if self.safeguard is None:
            # Steps 2 to 4: estimate the gradient, estimate the Hessian, Gamma_t = Gamma_{t-1} - H^-1 g.
            curvature = lambda target, q, local: local.curvature  # noqa: E731
            return literal_step(self.estimator, self.solver, curvature, self.step_length, 0, target, state, key)
        descend = newton_descent(self.safeguard, self.solver)
        return safe_step(self.estimator, self.safeguard, descend, 0, target, state, key)
