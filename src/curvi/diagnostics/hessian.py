"""The Hessian of the ELBO on fixed noise, in the coordinates where the Fisher information of q is the identity.

There -H is the identity if q is the posterior, so that its eigenvalues can be read directly: along an eigenvector with
eigenvalue c a posterior that is locally normal is 1 / sqrt(c) times as wide as q.

What is asked for decides how it is solved. For many right-hand sides the matrix is formed and factored once: for
independent normal factors from d products per draw, since E[h], E[h e] and E[h e e'] are averages of the same Hessians
h of ln p at the draws. For few, and where the matrix would be large, conjugate gradients need some products for each.
Few draws are enough, as the control variate of second order (`estimate.fixed_draws.expansion`) removes what they would
add to the block of the scales.
"""

import functools

import numpy as np

from curvi.diagnostics.batched_cg import batched_cg
from curvi.diagnostics.dense_curvature import DenseCurvature, NotDefiniteError
from curvi.diagnostics.hessian_on_draws import HessianOnDraws
from curvi.family import Family
from curvi.family.normal_path import NormalPath
from curvi.family.path import HostPath
from curvi.model.target import AbstractTarget

MOST_DRAWS = 512
# Draws below which sds of scales come out wrong by more than a tenth, however cheap the fit was: 64 in 250 dimensions.
# Fewer in more, where each draw takes more products. For a mean field of at most 64 latents half as many: sds of
# logistic regressions with 8 and 60 groups are then within 3 % of those of 512 draws, the scale of eight schools, whose
# fit pays for 128, within 14 %.
_LEAST_DRAWS, _FEWEST_DRAWS, _FREE_PRODUCTS = 64, 8, 1 << 14
_SMALL, _LEAST_IN_SMALL = 64, 32
_OWN_DRAWS = 32  # mirrored draws that average a linear function exactly
_MOMENTS = 1 << 28  # numbers, over elements, draws and coordinates, behind the derivatives of the means
_CG_PRODUCTS = 8  # products that conjugate gradients need for one right-hand side, about
_NO_MAXIMUM = (
    "the Hessian of the ELBO is not negative definite here: the fit is no maximum and has no linear response; "
    "see fit.outcome"
)


class WhitenedHessian:
    """-H in whitened coordinates, factored or given by its products; vectors are rows.

    With `budget`, a number of evaluations of the model (a product counts as two), few draws are used, so that all
    sds cost about that much; else as many as are ever useful. Raises ValueError, naming `purpose`, where the target
    or the factors are not twice differentiable.
    """

    def __init__(
        self, target: AbstractTarget, q: Family, key, purpose: str = "linear response", budget: int | None = None
    ):
        if target.order < 2 or not q.reparameterised:
            raise ValueError(
                f"{purpose} needs the Hessian of a twice differentiable target under Normal or LogNormal factors"
            )
        self.q, self.budget, self._spent = q, budget, 0
        self.blocks: DenseCurvature | None = None
        self.on = HessianOnDraws(target, q, key, self._affordable_draws(target))

    def _affordable_draws(self, target: AbstractTarget) -> int:
        """Draws for all sds within the budget; for a covariance in q itself, enough to match its second moments."""
        if not isinstance(self.q.path, HostPath):
            return MOST_DRAWS
        size = self.q.noise_size
        steps = size if isinstance(self.q.path, NormalPath) else _CG_PRODUCTS * size
        affordable = MOST_DRAWS if self.budget is None else max(int(self.budget) // (2 * steps), 1)
        least = int(np.clip(_power_of_two(_FREE_PRODUCTS // size), _FEWEST_DRAWS, _LEAST_DRAWS))
        if isinstance(self.q.path, NormalPath) and size <= _SMALL:
            least = _LEAST_IN_SMALL
        least = max(least, 128) if target.minibatched else least
        return max(least, min(MOST_DRAWS, _power_of_two(affordable)), -(-self.q.min_draws // 32) * 32)

    @property
    def target(self) -> AbstractTarget:
        return self.on.target

    @property
    def num_draws(self) -> int:
        return self.on.num_draws

    @property
    def num_products(self) -> int:
        """Hessian-vector products of the log density so far, counted per draw."""
        return self._spent + self.on.num_products

    def noise_values(self, num_draws: int) -> np.ndarray:
        """So many draws of fixed noise with matched moments."""
        return self.on.noise_values(num_draws)

    def whiten(self, rows) -> np.ndarray:
        """Gradients in the parameters, in whitened coordinates."""
        return self.on.whiten(rows)

    def unwhiten(self, steps: np.ndarray) -> np.ndarray:
        """Steps of the parameters, from whitened coordinates."""
        return self.on.unwhiten(steps)

    def mean_rows(self, index: np.ndarray, num_elements: int) -> np.ndarray:
        """Derivatives of the means of elements of latents and outputs, `num_elements` in all, whitened."""
        affordable = _MOMENTS // (num_elements**2)
        return self.on.mean_rows(index, int(np.clip(1 << affordable.bit_length(), _OWN_DRAWS, MOST_DRAWS)))

    def own_rows(self, index: np.ndarray) -> np.ndarray:
        """The same of the means of q's own coordinates."""
        return self.on.mean_rows(index, _OWN_DRAWS, own=True)

    # -- the matrix ---------------------------------------------------------------------------------------------------

    def product(self, rows: np.ndarray) -> np.ndarray:
        """The matrix times each row, or one vector."""
        single = np.ndim(rows) == 1
        rows = np.atleast_2d(np.asarray(rows, np.float64))
        on = self.on
        out = on.product(rows) if self.blocks is None else on.join(*self.blocks.product(*on.split(rows)))
        return out[0] if single else out

    def form(self) -> DenseCurvature:
        """The matrix, block by block."""
        if self.blocks is None:
            self.blocks = self.on.form()
        return self.blocks

    @functools.cached_property
    def dense(self) -> np.ndarray:
        """The whole matrix."""
        return self.on.join(*self.form().product(*self.on.split(np.eye(self.q.num_params))))

    # -- solves -------------------------------------------------------------------------------------------------------

    def cost(self, num_rows: int) -> int:
        """Products, about, for so many right-hand sides."""
        by_products = num_rows * _CG_PRODUCTS
        return self.num_draws * (min(by_products, self.on.num_columns) if self.on.formable else by_products)

    def forms(self, num_rows: int) -> bool:
        """Whether the matrix is formed for so many right-hand sides."""
        return self.blocks is not None or (self.on.formable and num_rows * _CG_PRODUCTS >= self.on.num_columns)

    def solve_half(self, rows: np.ndarray, check: bool = True) -> tuple[np.ndarray, float]:
        """Columns h with h'h = rows (matrix)^-1 rows', and the largest relative residual of the full solves (NaN
        without `check`).
        """
        half = self._definite(lambda: np.concatenate(self.form().half(*self.on.split(rows))))
        return half, self._residual(self._direct(rows), rows) if check else float("nan")

    def solve(self, rows: np.ndarray, num_rows: int | None = None) -> tuple[np.ndarray, float]:
        """The inverse times each row, and the largest relative residual; `num_rows` will come in all."""
        if self.forms(len(rows) if num_rows is None else num_rows):
            found = self._definite(lambda: self._direct(rows))
            return found, self._residual(found, rows)
        return self._definite(lambda: self._by_products(rows))

    def _direct(self, rows: np.ndarray) -> np.ndarray:
        return self.on.join(*self.form().solve(*self.on.split(rows)))

    def _residual(self, found: np.ndarray, rows: np.ndarray) -> float:
        left = np.linalg.norm(self.product(found) - rows, axis=1)
        return float((left / np.maximum(np.linalg.norm(rows, axis=1), 1e-300)).max(initial=0.0))

    def _by_products(self, rows: np.ndarray) -> tuple[np.ndarray, float]:
        tolerance = 1e-6 if self.q.params.dtype == np.float64 else 1e-3
        found = batched_cg(self.product, rows, self._precondition, tolerance, 1000)
        if found.negative:
            raise NotDefiniteError("negative curvature")
        return found.x, found.residual

    @functools.cached_property
    def _preconditioner(self) -> DenseCurvature | None:
        """The Hessian at the mean, which has the correlations; None where it is not definite."""
        if self.on.at_mean is None:
            return None
        size = len(self.on.at_mean)
        made = DenseCurvature.whole(self.on.at_mean + 1e-6 * np.eye(size))
        made.keep = False
        try:
            made.factors  # noqa: B018  factored here, where a failure can be met
        except NotDefiniteError:
            return None
        return made

    def _precondition(self, rows: np.ndarray) -> np.ndarray:
        if self._preconditioner is None or not len(rows):
            return rows.copy()
        locations, scales = self.on.split(rows)
        return self.on.join(self._preconditioner.solve(locations, locations[:, :0])[0], scales)

    def _definite(self, compute):
        """The result of `compute`, with more draws where few make the matrix indefinite."""
        while True:
            try:
                return compute()
            except NotDefiniteError:
                if self.num_draws >= MOST_DRAWS:
                    raise ValueError(_NO_MAXIMUM) from None
                on, self.blocks, self._spent = self.on, None, self.num_products
                self.on = HessianOnDraws(on.target, on.q, on.key, min(4 * on.num_draws, MOST_DRAWS))
                for name in ("dense", "_preconditioner"):
                    vars(self).pop(name, None)


def _power_of_two(number: int) -> int:
    """The largest power of two that is at most the number, at least one."""
    return 1 << (max(number, 1).bit_length() - 1)
