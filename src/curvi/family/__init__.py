"""Factorised variational families."""

from curvi.family.factor import Factor as Factor
from curvi.family.mean_field import MeanField as MeanField
