"""Scheme II of the paper: the Newton direction by a stochastic series (LiSSA), O(P) per term."""

import equinox as eqx

from curvi.estimate import AnchoredScore, PaperScore
from curvi.estimate.fresh_hessians import fresh_hessians
from curvi.methods.second_order import Safeguard, literal_step, newton_descent, safe_step, start_state
from curvi.methods.stepwise import StepMethod
from curvi.record.plain import register
from curvi.solve import LiSSA
from curvi.solve.solution import Solver


@register
class SchemeII(StepMethod):
    """Newton's method whose inner solver draws a fresh Hessian sample X_j at every term of the series (equations 20
    to 22).

    Attributes
    ----------
    solver
        A `LiSSA`; its `depth` is the paper's T_max, its `tolerance` eta, its `scale` C0.
    estimator
        Gradient, and the local model for accepting steps; the anchored form by default.
    draws_per_copy
        Draws averaged in one X_j. The paper uses 1; single draws are indefinite and far larger than their mean, so the
        default averages several.
    safeguard
        How steps are kept safe; None takes the paper's step (see `literal`).
    """

    solver: Solver = LiSSA(depth=20, check_every=5, num_norm_copies=2, tolerance=0.1)
    estimator: PaperScore | AnchoredScore = AnchoredScore(256)
    draws_per_copy: int = eqx.field(static=True, default=32)
    safeguard: Safeguard | None = Safeguard()

    @classmethod
    def literal(
        cls, scale: float, num_gradient_draws: int, max_terms: int = 100, eta: float = 1e-3, corrected: bool = False
    ) -> "SchemeII":
        """The scheme as printed: C0, T draws for the gradient, T_max, eta, one draw per term, weights ln p.

        Step 7 as printed has a wrong fixed point unless C0 = 1, and uses H rather than -H; `corrected=True` corrects
        the former.
        """
        solver = LiSSA(depth=max_terms, scale=scale, tolerance=eta, literal=not corrected)
        return cls(solver, PaperScore(num_gradient_draws), 1, None)

    def start(self, target, q, key):
        return start_state(self.estimator, self.safeguard, target, q, key)

    def step(self, target, state, key):
        def sampled(target, q, local):
            return fresh_hessians(self.estimator, target, q, local.curvature, self.draws_per_copy)

        if self.safeguard is None:
            # Step 2: the gradient. Steps 3 to 11: the series. Step 12: Gamma_t = Gamma_{t-1} - y / C0.
            return literal_step(self.estimator, self.solver, sampled, 1.0, self.draws_per_copy, target, state, key)
        descend = newton_descent(self.safeguard, self.solver, lambda local: sampled(target, state.q, local))
        return safe_step(self.estimator, self.safeguard, descend, self.draws_per_copy, target, state, key)
