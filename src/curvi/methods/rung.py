"""A family that a fit may choose, as one row of a table: what it costs and what it should gain."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from curvi.certify.predicted import UNKNOWN_GAIN, Precision, PredictedGain
from curvi.family import Family
from curvi.model.memory import device_bytes, words
from curvi.model.target import AbstractTarget

# Evaluations that a fit may be expected to take: 16 for each latent that is tied to others and 6,000, as measured on
# regressions; so full rank goes up to 500 latents.
MOST_EVALUATIONS = 14_000
_EACH, _ANYWAY = 16, 6_000
# Products of a prediction without the whole expected precision, and the same from so many latents.
MOST_PRODUCTS, MOST_PRODUCTS_OF_MANY, MANY = 200, 64, 20_000
FEW_PRODUCTS = 16  # where another family is known to be open
_MEMORY = 1 / 8  # of the total of the device
_COPIES = 24  # vectors of parameters that a fit holds at a time


class Rung(ABC):
    """A family that a mean field of normal factors may become; `q` is that mean field."""

    name: ClassVar[str]

    @abstractmethod
    def why_not(self, target: AbstractTarget, q: Family) -> str | None:
        """Why q cannot become one, as a sentence; None if it can."""

    @abstractmethod
    def num_params(self, target: AbstractTarget, q: Family) -> int:
        """The number of parameters."""

    @abstractmethod
    def num_tied(self, target: AbstractTarget, q: Family) -> int:
        """The largest number of latents that are tied to each other: a climb needs as many pairs of draws."""

    @abstractmethod
    def predict(self, precision: Precision | None, target: AbstractTarget, q: Family) -> PredictedGain:
        """The gain predicted by the whole expected precision."""

    def predict_by_products(
        self, product, sds: np.ndarray, target: AbstractTarget, q: Family, most: int
    ) -> PredictedGain:
        """The gain predicted by at most so many products with the expected Hessian; unknown where they are not
        enough.
        """
        return UNKNOWN_GAIN

    @abstractmethod
    def of(self, target: AbstractTarget, q: Family) -> Family:
        """The member of the family that equals q."""

    def of_curved(self, target: AbstractTarget, q: Family, hessian: np.ndarray | None, product, sds) -> Family:
        """The member of the family to go on with from q, given the expected Hessian, or products with it, if known."""
        return self.of(target, q)

    def evaluations(self, target: AbstractTarget, q: Family) -> int:
        """Evaluations that a fit is expected to take."""
        return _EACH * self.num_tied(target, q) + _ANYWAY

    def num_bytes(self, target: AbstractTarget, q: Family) -> int:
        """Memory that a fit is expected to take."""
        return 8 * _COPIES * self.num_params(target, q)

    def why_not_afforded(self, target: AbstractTarget, q: Family) -> str | None:
        """What a fit would take more than the budget has, in words; None if it is within it."""
        wanted, most = self.evaluations(target, q), int(_MEMORY * device_bytes())
        if wanted > MOST_EVALUATIONS:
            tied = (MOST_EVALUATIONS - _ANYWAY) // _EACH
            return (
                f"about {wanted:,} evaluations; {self.num_tied(target, q):,} latents tied together are more than {tied}"
            )
        if (size := self.num_bytes(target, q)) > most:
            return f"about {words(size)} of memory, more than {words(most)}, an eighth of all"
        return None


def most_products(q: Family) -> int:
    """Products that a prediction may take."""
    return MOST_PRODUCTS if q.noise_size <= MANY else MOST_PRODUCTS_OF_MANY
