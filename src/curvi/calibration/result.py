"""The result of simulation-based calibration."""

import textwrap
from pathlib import Path

import numpy as np

from curvi.calibration.plot import picture
from curvi.calibration.ranks import Deviation, deviation, num_bins
from curvi.diagnostics.elements import chosen_elements, label_of, labels_of
from curvi.many.result import ManyFits
from curvi.report.table import Summary

_WIDTH, _SHOWN = 110, 12
NAMES = {"q": "q", "linear_response": "linear response", "polished": "polished draws"}


class Calibration:
    """Ranks of true values among draws of the fits to data that were simulated with them.

    Attributes
    ----------
    ranks
        By kind of draws and name: arrays (simulations, ...) of 0 to `num_draws`, uniform where the kind is right.
    num_draws
        Draws of each kind that a true value is ranked among.
    truths, fits
        The simulated values by name, and the fits (`ManyFits`).
    unavailable
        Kinds of draws that could not be had, with the reason.
    """

    def __init__(self, ranks, num_draws: dict[str, int], truths, fits: ManyFits, unavailable: dict[str, str]):
        self.ranks, self.num_draws, self.truths = ranks, num_draws, truths
        self.fits, self.unavailable = fits, unavailable
        self._shapes = {name: value.shape[1:] for name, value in truths.items()}

    def __len__(self) -> int:
        """The number of simulations."""
        return len(self.fits)

    def deviations(self, kind: str = "q") -> dict[str, Deviation]:
        """What the ranks of each element say, by its label."""
        flat = self._flat(kind)
        labels = labels_of(self._shapes)
        return {
            label: deviation(ranks, self.num_draws[kind], len(labels) * len(self.ranks))
            for label, ranks in zip(labels, flat.T, strict=True)
        }

    def wrong(self, kind: str = "q") -> dict[str, str]:
        """The elements that this kind of draws gets wrong, and how, in words; empty where none is seen to be wrong."""
        return {label: one.words for label, one in self.deviations(kind).items() if one.wrong}

    def p_values(self, kind: str = "q") -> dict[str, float]:
        """The p-value of the chi-square test of uniformity for each element."""
        return {label: one.p_value for label, one in self.deviations(kind).items()}

    def summary(self, kind: str = "q") -> Summary:
        """A printable table with one row per element."""
        found = self.deviations(kind)
        columns = {
            "p (uniform)": np.array([one.p_value for one in found.values()]),
            "shift (sds)": np.array([one.shift for one in found.values()]),
            "z of shift": np.array([one.shift_z for one in found.values()]),
            "spread (sds)": np.array([one.spread for one in found.values()]),
            "z of spread": np.array([one.spread_z for one in found.values()]),
            "outside 90 %": np.array([one.outside for one in found.values()]),
        }
        notes = (*(f"{label}: {words}." for label, words in self.wrong(kind).items()), *self._notes())
        return Summary(tuple(found), columns, notes)

    def plot(self, path=None, names=None) -> str:
        """Histograms of the ranks as SVG, one row per element and one column per kind, with the band that holds 99 % of
        uniform ones; written to `path` if one is given. `names` chooses quantities or elements ("x[3]").
        """
        chosen = chosen_elements(self._shapes, names, _SHOWN)
        starts = dict(zip(self._shapes, np.cumsum([0, *(int(np.prod(shape)) for shape in self._shapes.values())])))
        rows = []
        for name, indices in chosen.items():
            for index in indices:
                columns = {
                    NAMES[kind]: (self._flat(kind)[:, starts[name] + index], self.num_draws[kind])
                    for kind in self.ranks
                }
                rows.append((label_of(name, self._shapes[name], int(index)), columns))
        made = picture(rows)
        if path is not None:
            Path(path).write_text(made, encoding="utf-8")
        return made

    def _flat(self, kind: str) -> np.ndarray:
        if kind not in self.ranks:
            why = self.unavailable.get(kind, f"there are {', '.join(self.ranks)}; sbc(..., kinds=) asks for others")
            raise ValueError(f"no ranks of kind {kind!r}: {why}")
        return np.concatenate([ranks.reshape(len(ranks), -1) for ranks in self.ranks[kind].values()], 1)

    def _notes(self) -> list[str]:
        notes = []
        if bad := int((~self.fits.converged).sum()):
            notes.append(f"{bad:,} of {len(self):,} fits did not converge; their ranks are among the others.")
        notes += [f"No {NAMES[kind]}: {why}." for kind, why in self.unavailable.items()]
        return notes

    def __repr__(self) -> str:
        wrong = ", ".join(f"{len(self.wrong(kind))} wrong by {kind}" for kind in self.ranks)
        return f"Calibration({len(self):,} simulations, {wrong})"

    def __str__(self) -> str:
        size = len(labels_of(self._shapes))
        rows = [f"curvi.sbc: {len(self):,} simulations, {size:,} parameters, ranks in {num_bins(len(self))} bins"]
        for kind in self.ranks:
            wrong = self.wrong(kind)
            said = (
                f"{len(wrong):,} of {size:,} wrong" if wrong else f"uniform, as far as {len(self):,} simulations tell"
            )
            rows.append(_line(NAMES[kind], f"{said}; smallest p {min(self.p_values(kind).values()):.2g}"))
            rows += [_line("", f"{label} is {words}") for label, words in list(wrong.items())[:_SHOWN]]
            rows += [_line("", f"and {len(wrong) - _SHOWN:,} more")] if len(wrong) > _SHOWN else []
        together = int(self.fits.together.sum())
        rows.append(_line("fits", f"{int(self.fits.converged.sum()):,} converged, {together:,} made together"))
        rows += [_line("", note) for note in self._notes()]
        return "\n".join(rows)


def _line(name: str, text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=f"  {name:<16}", subsequent_indent=" " * 18)
