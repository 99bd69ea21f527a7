"""The result of a fit."""

import dataclasses
import functools
import io
from typing import Any

import jax
import numpy as np

from curvi.diagnostics.curvature_report import CurvatureReport, curvature_report
from curvi.diagnostics.draws_error import errors_of_quantiles
from curvi.diagnostics.kinds import (
    best_kind,
    check_kind,
    covariance_of,
    draws_and_densities_of,
    draws_of,
    errors_of,
    moments_of,
    quantiles_of,
    sds_of,
)  # fmt: skip
from curvi.diagnostics.linear_response import Covariance
from curvi.diagnostics.moments import mean_and_sd
from curvi.diagnostics.posterior_check import PosteriorCheck, check_posterior
from curvi.diagnostics.sensitivity import Sensitivity, sensitivity
from curvi.diagnostics.weighted_draws import WeightedDraws, weighted_draws, weights_of
from curvi.estimate.resample import resample
from curvi.estimate.sampling import log_ratios
from curvi.family import Family
from curvi.family.centering_table import CenteringTable
from curvi.mcmc import NutsStart, Polished, polish, to_nuts
from curvi.methods.base import FamilyRow, Method
from curvi.model.origin import origin_of
from curvi.model.target import AbstractTarget
from curvi.outcome import Outcome
from curvi.record.checkpoint import Checkpoint
from curvi.record.counts import CallCounts
from curvi.record.history import History, Seconds
from curvi.record.plan import Plan
from curvi.report.arviz import to_arviz
from curvi.report.html import write_report
from curvi.report.table import summarise
from curvi.report.text import verdict
from curvi.storage import packed, restored, save


@dataclasses.dataclass(frozen=True, repr=False)
class Fit:
    """A fitted q with its outcome, ELBO and remaining gain.

    Attributes
    ----------
    q
        The variational distribution.
    converged, outcome
        Whether the fit converged, and how it ended (`outcome.message` says what to do).
    elbo, elbo_se
        The ELBO on fresh draws and the full data, with its standard error.
    remaining_gain, remaining_gain_se
        Nats still to be gained at this optimum, and the standard error; infinite where the Hessian is indefinite.
    history, counts, seconds
        The steps of the fit, its evaluations of the model, and its wall time.
    method, reason
        The method, and why it was chosen.
    suspects
        If the outcome reports a problem: the elements of latents that show it most.
    remaining_sds, remaining_sds_se
        The largest step left for the mean or sd of any latent, in sds of q, and its standard error.
    families
        One row per family that could be chosen: parameters, predicted gain, chosen or not, why.
    centering
        How far latents with a location and a scale are centred: `fit.centering["theta"].amount`.
    checkpoint, plan
        The state that `curvi.fit(target, start=fit)` resumes from; the memory that the fit was to take at most.
    """

    q: Family
    outcome: Outcome
    elbo: float
    elbo_se: float
    remaining_gain: float
    remaining_gain_se: float
    history: History
    counts: CallCounts
    seconds: Seconds
    target: AbstractTarget = dataclasses.field(repr=False)
    method: Method | None = dataclasses.field(repr=False, default=None)
    reason: str = dataclasses.field(repr=False, default="asked for")
    start_elbos: np.ndarray | None = dataclasses.field(repr=False, default=None)
    error_copies: np.ndarray | None = dataclasses.field(repr=False, default=None)
    suspects: tuple[str, ...] = ()
    remaining_sds: float = 0.0
    remaining_sds_se: float = 0.0
    families: tuple[FamilyRow, ...] = ()
    centering: CenteringTable = dataclasses.field(default_factory=CenteringTable)
    checkpoint: Checkpoint | None = dataclasses.field(repr=False, default=None)
    plan: Plan | None = dataclasses.field(repr=False, default=None)

    @property
    def converged(self) -> bool:
        return self.outcome is Outcome.CONVERGED

    @functools.cached_property
    def kind(self) -> str:
        """Which answer `mean`, `sd`, `quantiles`, `sample` and all that builds on them give unasked.

        `"q"` is the fitted distribution. `"linear_response"` is the normal distribution with q's means and the
        linear-response covariance in q's own unconstrained coordinates, mapped to the supports: for factors that leave
        out correlation. `"reweighted"` are draws of q and of wider ones around it under Pareto-smoothed importance
        weights: the default where the family was left to the library and enough draws are effective.
        """
        return best_kind(self)

    def sample(self, key, num_draws: int, kind: str | None = None) -> dict[str, Any]:
        """`num_draws` draws by name, on the model's own supports, with the model's further outputs.
        `kind` is one of those of `Fit.kind`, by default that of the fit. "linear_response" needs normal factors, and
        names those latents that have others. "reweighted" chooses among ten times as many draws, and at least 4,096, by
        their weights: as many values of the log density, and a few draws may occur twice.
        """
        return draws_of(self, check_kind(self, kind), self._keys(key, num_draws), key, num_draws)

    def _keys(self, key, num_draws: int):
        if num_draws < 1:
            raise ValueError(f"num_draws must be at least 1; got {num_draws}")
        return jax.random.split(key, num_draws)

    def log_ratios(self, key, num_draws: int) -> jax.Array:
        """ln p - ln q of fresh draws on the full data; their mean is the ELBO."""
        self._keys(key, num_draws)
        return log_ratios(self.target, self.q, key, num_draws)

    @functools.cached_property
    def moments_of_q(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Mean and sd of q by name, on the model's supports."""
        return mean_and_sd(self.target, self.q)

    def quantiles(self, probabilities, kind: str | None = None) -> dict[str, np.ndarray]:
        """Posterior quantiles by name, on the model's supports, with a first axis for the probabilities (`sample`)."""
        return quantiles_of(self, probabilities, check_kind(self, kind))

    def mean(self, kind: str | None = None) -> dict[str, np.ndarray]:
        """Posterior means by name, on the model's supports; of the `kind` of answer (see `Fit.kind`). Those of linear
        response differ from q's where a support bends a wider distribution.
        """
        return {name: mean for name, (mean, _) in moments_of(self, check_kind(self, kind)).items()}

    def sd(self, kind: str | None = None) -> dict[str, np.ndarray]:
        """Posterior sds by name, on the model's supports: of q, too small where a product of factors leaves out
        correlation, by the response of each mean to a tilt of the log density, or of draws under importance weights.
        """
        return sds_of(self, check_kind(self, kind))

    def covariance(self, kind: str = "linear_response", names=None) -> Covariance:
        """Joint posterior covariance of all or of the named latents and outputs (`matrix`, `labels`, `sd()`)."""
        return covariance_of(self, check_kind(self, kind), names)

    @property
    def draws_error(self) -> dict[str, np.ndarray]:
        """Error of each posterior mean caused by the finite number of draws, in units of its posterior sd.
        One standard error, estimated from few copies of the error, or from the weights of a reweighted answer; empty
        for methods without fixed draws.
        """
        return errors_of(self, self.kind)[0]

    @property
    def draws_error_sd(self) -> dict[str, np.ndarray]:
        """The same of each posterior sd: 0.1 means that the sd is known to a tenth."""
        return errors_of(self, self.kind)[1]

    def draws_error_quantiles(self, probabilities) -> dict[str, np.ndarray]:
        """The same of quantiles of q, with a first axis for the probabilities."""
        return errors_of_quantiles(self, probabilities)

    # -- from the curvature -------------------------------------------------------------------------------------------

    def sensitivity(self, perturbation, at=0.0) -> Sensitivity:
        """The change of posterior means when `perturbation(theta, t)`, a number, is added to ln p, to first order in t.

        At t = `at`, the t of the fit (a number, or an array: one weight per observation), it must be zero or constant
        in theta, the dict of latents.
        """
        return sensitivity(self, perturbation, at)

    def curvature_report(self, num_directions: int = 3) -> CurvatureReport:
        """Directions in which the ELBO is flat, stiff or curves upwards, by latent name: `num_directions` from
        either end of the spectrum of the whitened Hessian.
        """
        return curvature_report(self, num_directions)

    # -- how far q is from the posterior ------------------------------------------------------------------------------

    @functools.cached_property
    def khat(self) -> float:
        """Tail shape of the importance ratios p / q: below 0.5 q is close to the posterior, up to 0.7 importance
        weights can correct it, beyond they cannot. Minus infinity where the ratios do not vary.
        """
        return weights_of(self).khat

    @functools.cached_property
    def weighted_draws(self) -> WeightedDraws:
        """The weights behind `kind="reweighted"`: of 4,096 draws of q, or, where these vary, of draws of a wider
        mixture, up to 65,536; `reliable` says whether moments under them are those of the posterior.
        """
        return weighted_draws(self)

    @functools.cached_property
    def posterior_check(self) -> PosteriorCheck:
        """Whether the posterior is right: "right" as far as can be seen, "doubtful" or "not known", with reasons,
        estimated errors and what to do. Raises nothing.
        """
        return check_posterior(self)

    def resample(self, key, num_draws: int, num_proposals: int | None = None) -> dict[str, np.ndarray]:
        """`num_draws` draws under Pareto-smoothed importance weights: those of `sample(kind="reweighted")`.

        Chosen with replacement among `num_proposals` draws of q and of wider ones around it, by default ten times as
        many and at least 4,096. Warns if too few of them are effective.
        """
        return resample(self.target, self.q, key, num_draws, num_proposals)

    # -- on to Markov chains ------------------------------------------------------------------------------------------

    def to_nuts(self, key, num_chains: int = 4) -> NutsStart:
        """Starts, an inverse mass matrix and the log density, for any NUTS; see `curvi.mcmc.start.NutsStart`."""
        return to_nuts(self.target, self.q, key, num_chains)

    def polish(self, key, num_draws: int = 1000, num_chains: int = 4) -> Polished:
        """`num_draws` draws of the posterior per chain by NUTS from q, and how far they moved the posterior from q.
        Needs BlackJAX, `pip install "curvi[mcmc]"`, continuous latents and a log density with gradients. Chains start
        at draws of q with doubled sds and have q's covariance as inverse mass matrix.
        """
        vars(self)["_polished"] = polish(self, key, num_draws, num_chains)  # for the report
        return vars(self)["_polished"]

    # -- output -------------------------------------------------------------------------------------------------------

    def summary(self, probabilities=(0.05, 0.5, 0.95), kind: str | None = None, names=None):
        """A printable table with one row per scalar: mean, sds, quantiles, errors; has `to_dict()` and `to_pandas()`.
        Means and quantiles are those of `kind`; all sds are shown. `names` chooses quantities and elements (\"x[3]\").
        """
        return summarise(self, probabilities, check_kind(self, kind), names)

    def save(self, path) -> None:
        """Write the fit to one file for `curvi.load`, with the state to resume from but without the target."""
        save(self, path)

    def draws_and_densities(self, key, num_draws: int, kind: str | None = None):
        """The draws of `sample` with ln p(theta, X) on the full data and the log density that they were drawn from, on
        the model's supports; up to a constant where they are reweighted.
        """
        keys = self._keys(key, num_draws)
        return draws_and_densities_of(self, check_kind(self, kind), keys, key, num_draws)

    def predict(self, key, draws: dict) -> dict[str, dict[str, np.ndarray]]:
        """Groups "posterior_predictive" and "log_likelihood" at given draws, where the model has them."""
        if (predict := origin_of(self.target).predict) is None:
            raise ValueError(
                "the target has no model that could predict: a log density alone does not tell how data arise. "
                "Use a target of from_numpyro or from_pymc"
            )
        return predict(key, draws)

    def predictive(self, key, num_draws: int, kind: str | None = None) -> dict[str, dict[str, np.ndarray]]:
        """Groups of draws by name: "posterior" (those of `sample`), and where the model has observations
        "posterior_predictive" (new data) and "log_likelihood" (of each observation, as `arviz.loo` takes it).
        """
        key_draw, key_predict = jax.random.split(key)
        draws = self.sample(key_draw, num_draws, kind)
        return {"posterior": {name: np.asarray(v) for name, v in draws.items()}, **self.predict(key_predict, draws)}

    def to_arviz(self, num_draws: int = 1000, key=None, predictive: bool = False, kind: str | None = None):
        """Draws for ArviZ: InferenceData on ArviZ 0.x, a DataTree on 1.x.
        Groups: posterior; sample_stats with `lp` (ln p) and `log_q` of each draw, for `arviz.psislw(lp - log_q)`;
        observed_data where the model has it; posterior_predictive and log_likelihood with `predictive=True`.
        Attributes record the outcome and the kind of draws (see `sample`). `key` determines the draws.
        """
        key = jax.random.key(0) if key is None else key
        return to_arviz(self, key, num_draws, predictive, check_kind(self, kind))

    def report(self, path, title: str | None = None, correlations=None, polished: Polished | None = None) -> None:
        """Write one self-contained HTML page: the verdict, progress, families, posterior, k-hat, curvature and cost;
        correlations of the named quantities or elements, else of the largest; `polished` against q, else the last one.
        """
        write_report(self, path, title, correlations, polished or vars(self).get("_polished"))

    def __str__(self) -> str:
        return verdict(self)

    def __deepcopy__(self, memo) -> "Fit":
        return self  # nothing in it changes

    def __reduce__(self):  # as in a file: without the target
        return restored, (Fit, io.BytesIO(packed(self)))

    def __repr__(self) -> str:
        # Cheap, since debuggers and lists call it often.
        return f"Fit({self.outcome.name}, elbo={self.elbo:.4f}, remaining_gain={self.remaining_gain:.3g})"
