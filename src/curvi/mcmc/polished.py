"""The result of polishing a fit: draws of Markov chains with their diagnostics."""

import dataclasses

import jax
import numpy as np

from curvi.diagnostics.elements import labels_of
from curvi.mcmc.moved import Moved
from curvi.model.origin import origin_of
from curvi.model.target import AbstractTarget
from curvi.record.counts import CallCounts
from curvi.record.history import Seconds
from curvi.record.version import VERSION
from curvi.report.arviz import container
from curvi.report.table import Summary

_MOST_R_HAT = 1.01  # Vehtari et al. 2021
_EFFECTIVE_PER_CHAIN = 100  # the same; below, R-hat itself is not reliable


@dataclasses.dataclass(frozen=True, repr=False)
class Polished:
    """Draws of the posterior by NUTS, started from q. Dicts have one entry per latent and output, by its name.

    Attributes
    ----------
    draws
        Arrays (chains, draws, ...) on the model's own supports.
    r_hat
        Per element, whether chains agree: the larger of rank-normalised split R-hat of bulk and tail. Above 1.01 they
        do not. Not a number for constants.
    effective_size, effective_size_tail
        Per element, the number of independent draws worth as much, for the bulk and for the 5 % and 95 % quantiles.
    moved
        By how many sds of q each mean (`moved.mean`), and by what factor each sd (`moved.sd`), left q.
    log_density, diverging, num_leapfrogs, acceptance_rate
        Of each draw (chains, draws): ln p in unconstrained coordinates; whether its trajectory diverged, which means
        that the chains cannot follow the posterior there; the gradients that it took; the mean acceptance probability.
    step_size
        The step size of all chains, in units of q's sds.
    counts, seconds
        Evaluations of the model, adaptation included, and wall time.
    target
        The target of the fit.
    """

    draws: dict[str, np.ndarray]
    r_hat: dict[str, np.ndarray]
    effective_size: dict[str, np.ndarray]
    effective_size_tail: dict[str, np.ndarray]
    moved: Moved
    log_density: np.ndarray
    diverging: np.ndarray
    num_leapfrogs: np.ndarray
    acceptance_rate: np.ndarray
    step_size: float
    counts: CallCounts
    seconds: Seconds
    target: AbstractTarget

    @property
    def num_chains(self) -> int:
        return self.diverging.shape[0]

    @property
    def num_draws(self) -> int:
        """Draws per chain."""
        return self.diverging.shape[1]

    @property
    def num_divergences(self) -> int:
        return int(self.diverging.sum())

    @property
    def largest_r_hat(self) -> float:
        """Over all elements that vary."""
        return _extreme(self.r_hat, np.max)

    @property
    def smallest_effective_size(self) -> float:
        """Of bulk and tail, over all elements that vary."""
        sizes = (_extreme(self.effective_size, np.min), _extreme(self.effective_size_tail, np.min))
        return float(np.min(sizes))

    @property
    def problems(self) -> tuple[str, ...]:
        """What speaks against these draws, each with what to do; empty if nothing does."""
        found = []
        if not self.largest_r_hat <= _MOST_R_HAT:
            found.append(f"chains do not agree (R-hat up to {self.largest_r_hat:.4f}): more draws, or a better family")
        if not self.smallest_effective_size >= _EFFECTIVE_PER_CHAIN * self.num_chains:
            found.append(f"only {self.smallest_effective_size:,.0f} effective draws of an element: more draws")
        if self.num_divergences:
            found.append(
                f"{self.num_divergences} of {self.diverging.size:,} trajectories diverged: there may be a region that "
                "the chains do not enter; write hierarchical effects in non-centred form"
            )
        return tuple(found)

    # -- the posterior ------------------------------------------------------------------------------------------------

    def mean(self) -> dict[str, np.ndarray]:
        """Posterior means by name."""
        return {name: values.mean((0, 1), dtype=np.float64) for name, values in self.draws.items()}

    def sd(self) -> dict[str, np.ndarray]:
        """Posterior standard deviations by name."""
        return {name: values.std((0, 1), dtype=np.float64) for name, values in self.draws.items()}

    def quantiles(self, probabilities) -> dict[str, np.ndarray]:
        """Posterior quantiles by name, with a first axis for the probabilities."""
        wanted = np.atleast_1d(np.asarray(probabilities, dtype=float))
        if wanted.size == 0 or not np.all((wanted > 0) & (wanted < 1)):
            raise ValueError(f"probabilities must lie between 0 and 1; got {probabilities!r}")
        return {name: np.quantile(values, wanted, axis=(0, 1)) for name, values in self.draws.items()}

    # -- output -------------------------------------------------------------------------------------------------------

    def summary(self) -> Summary:
        """A printable table with one row per scalar: mean, sd, R-hat, effective sizes, and how far it left q."""
        columns = {
            "mean": self.mean(),
            "sd": self.sd(),
            "R-hat": self.r_hat,
            "effective": self.effective_size,
            "in the tail": self.effective_size_tail,
            "mean moved (sds of q)": self.moved.mean,
            "sd / sd of q": self.moved.sd,
        }
        flat = {heading: np.concatenate([np.ravel(v) for v in values.values()]) for heading, values in columns.items()}
        labels = labels_of({name: values.shape[2:] for name, values in self.draws.items()})
        return Summary(labels, flat, unknown="unknown")

    def to_arviz(self, key=None, predictive: bool = False):
        """The chains for ArviZ: InferenceData on ArviZ 0.x, a DataTree on 1.x.

        Groups: posterior; sample_stats; observed_data where the model has it; posterior_predictive and log_likelihood
        with `predictive=True`, whose new data `key` determines.
        """
        stats = {
            "lp": self.log_density,
            "diverging": self.diverging,
            "n_steps": self.num_leapfrogs,
            "acceptance_rate": self.acceptance_rate,
            "step_size": np.full(self.diverging.shape, self.step_size),
        }
        groups, origin = {"posterior": self.draws, "sample_stats": stats}, origin_of(self.target)
        if predictive:
            groups.update(self._predicted(origin, jax.random.key(0) if key is None else key))
        attributes = {
            "inference_library": "curvi",
            "inference_library_version": VERSION,
            "method": "NUTS from q, by BlackJAX",
            "num_gradient": self.counts.gradient,
            "compile_seconds": self.seconds.compile,
            "run_seconds": self.seconds.run,
        }
        return container(groups, origin, attributes)

    def _predicted(self, origin, key) -> dict[str, dict]:
        if origin.predict is None:
            raise ValueError(
                "the target has no model that could predict: a log density alone does not tell how data arise. "
                "Use a target of from_numpyro or from_pymc"
            )
        flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in self.draws.items()}
        groups, leading = origin.predict(key, flat), self.diverging.shape
        return jax.tree.map(lambda values: values.reshape(*leading, *values.shape[1:]), groups)

    def __str__(self) -> str:
        problems = self.problems or ("nothing speaks against these draws",)
        seconds = self.seconds
        rows = [
            f"NUTS from q: {self.num_chains} chains of {self.num_draws:,} draws",
            *(f"  {problem}" for problem in problems),
            f"  R-hat at most {self.largest_r_hat:.3f}, effective draws at least {self.smallest_effective_size:,.0f}, "
            f"{self.num_divergences} divergences",
            f"  {self.counts.gradient:,} gradients; {seconds.compile:.2f} s compiling, {seconds.run:.2f} s running",
        ]
        return "\n".join([*rows, str(self.summary())])

    def __repr__(self) -> str:
        return (
            f"Polished({self.num_chains} chains of {self.num_draws}, r_hat<={self.largest_r_hat:.3f}, "
            f"effective_size>={self.smallest_effective_size:.0f}, {self.num_divergences} divergences)"
        )


def _extreme(values: dict[str, np.ndarray], of) -> float:
    """The largest or smallest of the entries that are numbers; not a number if there are none."""
    flat = np.concatenate([np.ravel(value) for value in values.values()])
    known = flat[~np.isnan(flat)]
    return float(of(known)) if known.size else float("nan")
