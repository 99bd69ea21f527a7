"""curvi: curvature-aware variational inference."""

from curvi import bambi as bambi
from curvi import curvature as curvature
from curvi import estimate as estimate
from curvi import factors as factors
from curvi import methods as methods
from curvi import moved as _moved
from curvi import numpyro as numpyro
from curvi import pymc as pymc
from curvi import solve as solve
from curvi.adapters.numpyro import from_numpyro as from_numpyro
from curvi.adapters.pymc import from_pymc as from_pymc
from curvi.adapters.stan import from_stan as from_stan
from curvi.calibration.result import Calibration as Calibration
from curvi.calibration.sbc import sbc as sbc
from curvi.check import check as check
from curvi.comparison import Comparison as Comparison
from curvi.comparison import compare as compare
from curvi.diagnostics.loo import Loo as Loo
from curvi.diagnostics.loo import loo as loo
from curvi.family import Banded as Banded
from curvi.family import Bordered as Bordered
from curvi.family import FullRank as FullRank
from curvi.family import LowRank as LowRank
from curvi.family import MeanField as MeanField
from curvi.fit import fit as fit
from curvi.loading import load as load
from curvi.many.fit_many import fit_many as fit_many
from curvi.many.result import ManyFits as ManyFits
from curvi.model.black_box import BlackBoxError as BlackBoxError
from curvi.model.factored import FactoredTarget as FactoredTarget
from curvi.model.minibatch import MinibatchTarget as MinibatchTarget
from curvi.model.rows.rows import Rows as Rows
from curvi.model.rows.source import RowsError as RowsError
from curvi.model.target import Target as Target
from curvi.outcome import Outcome as Outcome
from curvi.record.keeper import CheckpointError as CheckpointError
from curvi.record.version import VERSION
from curvi.results import Fit as Fit

__version__ = VERSION

_moved.find_old_names()
