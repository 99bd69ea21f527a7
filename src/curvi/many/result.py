"""The result of many fits."""

from collections.abc import Iterator

import jax
import numpy as np

from curvi.diagnostics.kinds import known_kind
from curvi.many.batch import Batch
from curvi.many.words import numbered, screen
from curvi.outcome import Outcome
from curvi.record.counts import CallCounts
from curvi.record.history import Seconds
from curvi.report.table import Summary
from curvi.results import Fit


class ManyFits:
    """Fits of one model to many data sets: `many[i]` is the `Fit` of data set i.

    Attributes
    ----------
    outcomes, converged
        How each fit ended, and whether it converged.
    elbo, elbo_se, remaining_gain, remaining_gain_se
        The certificate of each: the ELBO on fresh draws, the nats left to gain, and their standard errors.
    together
        Whether each was made together with others, or singly by `curvi.fit`.
    reasons
        Why some were made singly, by data set.
    seconds
        Wall time of all of them.
    """

    def __init__(self, batches: list[Batch], singles: dict[int, Fit], reasons: dict[int, str], seconds: Seconds):
        self.batches, self._singles, self.reasons, self.seconds = batches, singles, reasons, seconds
        count = len(singles) + sum(len(batch.good) for batch in batches)
        self.together = np.ones(count, bool)
        self.together[list(singles)] = False
        self._place = {int(batch.members[at]): (batch, int(at)) for batch in batches for at in batch.good}
        self._made: dict[int, Fit] = {}
        self.outcomes = tuple(singles[i].outcome if i in singles else Outcome.CONVERGED for i in range(count))
        self.converged = np.array([outcome is Outcome.CONVERGED for outcome in self.outcomes])
        self.elbo, self.elbo_se = self._numbers("elbo", "elbo"), self._numbers("elbo_se", "elbo_se")
        self.remaining_gain = self._numbers("gain", "remaining_gain")
        self.remaining_gain_se = self._numbers("gain_se", "remaining_gain_se")

    def _numbers(self, name: str, own: str) -> np.ndarray:
        out = np.full(len(self.together), np.nan)
        for batch in self.batches:
            out[batch.members[batch.good]] = getattr(batch.advanced.certificates, name)[batch.good]
        for index, fit in self._singles.items():
            out[index] = getattr(fit, own)
        return out

    # -- each fit -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.together)

    def __getitem__(self, index: int) -> Fit:
        """The fit of one data set."""
        if not isinstance(index, int | np.integer) or not -len(self) <= index < len(self):
            raise IndexError(f"there are fits 0 to {len(self) - 1}; got {index!r}")
        index = int(index) % len(self)
        if index in self._singles:
            return self._singles[index]
        if index not in self._made:
            batch, at = self._place[index]
            share = Seconds(self.seconds.compile / len(self), self.seconds.run / len(self))
            self._made[index] = batch.fit_at(at, share)
        return self._made[index]

    def __iter__(self) -> Iterator[Fit]:
        return (self[index] for index in range(len(self)))

    @property
    def counts(self) -> CallCounts:
        """Evaluations of all fits, also of those that were made singly in the end."""
        total = CallCounts()
        for batch in self.batches:
            calls = batch.advanced.state.gradients.sum()
            total = total.plus(calls, calls)
        for fit in self._singles.values():
            total = total.with_all(fit.counts)
        return total

    # -- all of them --------------------------------------------------------------------------------------------------

    def mean(self) -> dict[str, np.ndarray]:
        """Posterior means by name, on the model's supports, with a first axis for the data sets; a list where shapes
        differ.
        """
        return self._stacked(lambda batch: {n: m for n, (m, _) in batch.moments.items()}, lambda fit: fit.mean("q"))

    def sd(self) -> dict[str, np.ndarray]:
        """Posterior standard deviations under q, in the same form."""
        return self._stacked(lambda batch: {n: s for n, (_, s) in batch.moments.items()}, lambda fit: fit.sd("q"))

    def sample(self, key, num_draws: int, kind: str = "q") -> dict[str, np.ndarray]:
        """Draws of each fit by name, with first axes for data sets and draws; `kind` is "q" or "linear_response"."""
        if (kind := known_kind(kind)) == "reweighted":
            raise ValueError('many fits sample kind="q" or "linear_response"; many[i].sample(key, n, kind) weighs one')
        if not isinstance(num_draws, int) or isinstance(num_draws, bool) or num_draws < 1:
            raise ValueError(f"num_draws must be at least 1; got {num_draws!r}")
        words = np.asarray(jax.random.key_data(key)).astype(np.uint32).ravel()
        keys = dict(zip(self._singles, jax.random.split(key, len(self._singles)))) if self._singles else {}
        fits = {id(fit): keys[index] for index, fit in self._singles.items()}
        streams = {id(batch): np.random.default_rng([*map(int, words), at]) for at, batch in enumerate(self.batches)}
        return self._stacked(
            lambda batch: batch.draws(streams[id(batch)], num_draws, kind),
            lambda fit: fit.sample(fits[id(fit)], num_draws, kind),
        )

    def _stacked(self, of_batch, of_fit) -> dict:
        rows: dict[str, dict[int, np.ndarray]] = {}
        for batch in self.batches:
            if len(batch.good):
                for name, values in of_batch(batch).items():
                    rows.setdefault(name, {}).update(zip(batch.members[batch.good].tolist(), values))
        for index, fit in self._singles.items():
            for name, value in of_fit(fit).items():
                rows.setdefault(name, {})[index] = np.asarray(value)
        ordered = {name: [values[index] for index in sorted(values)] for name, values in rows.items()}
        return {
            name: np.stack(values) if len({value.shape for value in values}) == 1 else values
            for name, values in ordered.items()
        }

    def summary(self) -> Summary:
        """A printable table with one row per data set: its certificate, and whether it converged."""
        columns = {
            "elbo": self.elbo,
            "error of elbo": self.elbo_se,
            "left to gain": self.remaining_gain,
            "error of gain": self.remaining_gain_se,
            "converged": self.converged.astype(float),
        }
        notes = () if self.converged.all() else (f"Not converged: {numbered(np.flatnonzero(~self.converged))}.",)
        return Summary(tuple(map(str, range(len(self)))), columns, notes)

    def __repr__(self) -> str:
        return f"ManyFits({len(self):,} fits, {int(self.converged.sum()):,} converged)"

    def __str__(self) -> str:
        return screen(self)
