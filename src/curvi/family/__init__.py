"""Variational families."""

from curvi.family.banded import Banded as Banded
from curvi.family.base import Family as Family
from curvi.family.bordered import Bordered as Bordered
from curvi.family.factor import Factor as Factor
from curvi.family.full_rank import FullRank as FullRank
from curvi.family.low_rank import LowRank as LowRank
from curvi.family.mean_field import MeanField as MeanField

# The families that can be asked for by name.
FAMILIES = {"mean_field": MeanField, "full_rank": FullRank, "bordered": Bordered, "banded": Banded, "low_rank": LowRank}
