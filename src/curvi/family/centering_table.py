"""What a fit says of its centring."""

import dataclasses

import numpy as np

from curvi.family.base import Family
from curvi.family.centering import centering_of
from curvi.record.plain import register


@register
@dataclasses.dataclass(frozen=True)
class CenteredSite:
    """The centring of one latent.

    Attributes
    ----------
    name
        The latent.
    amount
        Its lambda, one number per element: 1 is centred, 0 non-centred.
    as_written
        The lambda that stands for the model as it is written.
    how
        How it was found.
    """

    name: str
    amount: np.ndarray
    as_written: float
    how: str

    def __str__(self) -> str:
        low, high = float(self.amount.min()), float(self.amount.max())
        shown = f"{low:.2f}" if high - low < 0.005 else f"{low:.2f} to {high:.2f}"
        written = "centred" if self.as_written == 1 else "non-centred"
        return f"{self.name}: lambda {shown} (written {written}), {self.how}"


@register
@dataclasses.dataclass(frozen=True)
class CenteringTable:
    """The centring of a fit, one row per latent with a location and a scale; empty where there is none."""

    rows: tuple[CenteredSite, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self):
        return iter(self.rows)

    def __getitem__(self, name: str) -> CenteredSite:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no latent {name!r} with a location and a scale; there are {[row.name for row in self.rows]}")

    def __str__(self) -> str:
        return "\n".join(map(str, self.rows)) or "no latent has a location or a scale that is latent"

    __repr__ = __str__


def centering_table(q: Family, how: str) -> CenteringTable:
    """The table of a q, and how its lambdas were found."""
    if (centering := centering_of(q)) is None:
        return CenteringTable()
    return CenteringTable(
        tuple(
            CenteredSite(site.name, np.asarray(amount, np.float64), 0.0 if site.standardised else 1.0, how)
            for site, amount in zip(centering.sites, centering.amounts)
        )
    )
