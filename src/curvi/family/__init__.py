"""Variational families."""

from curvi.family.base import Family as Family
from curvi.family.factor import Factor as Factor
from curvi.family.mean_field import MeanField as MeanField
