"""curvi: curvature-aware variational inference."""

from curvi import curvature as curvature
from curvi import estimate as estimate
from curvi import factors as factors
from curvi import methods as methods
from curvi import solve as solve
from curvi.adapters.numpyro import from_numpyro as from_numpyro
from curvi.adapters.pymc import from_pymc as from_pymc
from curvi.adapters.stan import from_stan as from_stan
from curvi.black_box import BlackBoxError as BlackBoxError
from curvi.check import check as check
from curvi.comparison import Comparison as Comparison
from curvi.comparison import compare as compare
from curvi.factored import FactoredTarget as FactoredTarget
from curvi.family import MeanField as MeanField
from curvi.fit import fit as fit
from curvi.outcome import Outcome as Outcome
from curvi.results import Fit as Fit
from curvi.storage import load as load
from curvi.target import MinibatchTarget as MinibatchTarget
from curvi.target import Target as Target

__version__ = "0.1.0"
