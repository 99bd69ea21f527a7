"""The fits of one group: where they have got to, and each of them as a `Fit`."""

import dataclasses
import functools

import jax
import numpy as np

from curvi.estimate.draws import Sobol
from curvi.family import Family
from curvi.family.normal_path import independent_params
from curvi.family.path import ExpandablePath
from curvi.many.advance import Advanced, advance
from curvi.many.programs import Programs
from curvi.methods.base import FamilyRow
from curvi.outcome import Outcome
from curvi.record.counts import CallCounts
from curvi.record.history import History, Seconds
from curvi.results import Fit

_MOMENT_DRAWS = 4096  # those of `Fit.mean` and `Fit.sd`
REASON = "one of many fits that were made together"


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """Fits that were made together, by their positions among all data sets."""

    members: np.ndarray
    programs: Programs
    independent: bool
    advanced: Advanced

    @classmethod
    def run(cls, members: np.ndarray, programs: Programs, independent: bool, tolerance: float, words) -> "Batch":
        """Fit the members together."""
        advanced = advance(programs, start_of(programs.q), len(members), independent, tolerance, words)
        return cls(members, programs, independent, advanced)

    @property
    def q(self) -> Family:
        return self.programs.q

    @property
    def name(self) -> str:
        """The name of the family."""
        return "mean_field" if self.independent else "full_rank"

    @property
    def good(self) -> np.ndarray:
        """Positions in the batch of the fits that were certified."""
        return np.flatnonzero(self.advanced.certified)

    @functools.cached_property
    def moments(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Means and sds by name of the good fits, on the draws of `Fit.mean`."""
        noise = np.asarray(Sobol().noise(self.q, jax.random.key(0), _MOMENT_DRAWS))
        state = self.advanced.state
        return self.programs.moments(self.good, state.mean[self.good], state.factor[self.good], noise)

    def draws(self, rng: np.random.Generator, num_draws: int, kind: str) -> dict[str, np.ndarray]:
        """Draws by name of the good fits; of q, or of the normal with the covariance of linear response."""
        state, good = self.advanced.state, self.good
        factor = state.factor[good]
        if kind == "linear_response":
            factor = np.linalg.cholesky(self.advanced.certificates.response[good])
        noise = rng.standard_normal((len(good), num_draws, factor.shape[-1]))
        return self.programs.draws(good, state.mean[good], factor, noise)

    def q_at(self, index: int) -> Family:
        """The q of one fit, over the latents of the template."""
        mean, factor = self.advanced.state.mean[index], self.advanced.state.factor[index]
        params = independent_params(mean, np.diag(factor)) if self.independent else None
        if params is None:
            return self.q.with_moments(mean, np.tril(factor))  # pyright: ignore[reportAttributeAccessIssue]
        return self.q.replace(jax.numpy.asarray(params.astype(self.q.params.dtype)))

    def fit_at(self, index: int, seconds: Seconds) -> Fit:
        """One fit, with its own target."""
        state, known = self.advanced.state, self.advanced.certificates
        target = self.programs.model.target_of(index)
        q = self.q_at(index).onto(target)
        calls = int(state.gradients[index])
        names = ("elbo", "elbo_se", "remaining_gain", "remaining_gain_se")
        elbo, elbo_se, gain, gain_se = (
            float(numbers[index]) for numbers in (known.elbo, known.elbo_se, known.gain, known.gain_se)
        )
        row = dict(zip(names, (elbo, elbo_se, gain, gain_se), strict=True))
        return Fit(
            q=q,
            outcome=Outcome.CONVERGED,
            elbo=elbo,
            elbo_se=elbo_se,
            remaining_gain=gain,
            remaining_gain_se=gain_se,
            history=History.of_rows([{**row, "log_density": calls, "accepted": True}]),
            counts=CallCounts(calls, calls),
            seconds=seconds,
            target=target,
            reason=REASON,
            remaining_sds=float(known.sds[index]),
            remaining_sds_se=float(known.sds_se[index]),
            families=(FamilyRow(self.name, q.num_params, float("nan"), True, REASON),),
        )


def start_of(q: Family) -> tuple[np.ndarray, np.ndarray]:
    """Mean and factor of q in its own coordinates, on the host: each operation on the device would be compiled."""
    path, params = q.path, np.asarray(q.params, np.float64)
    assert isinstance(path, ExpandablePath)
    factor = path.scale_matrix(params)
    return path.at_mean(params)[: len(factor)], factor
