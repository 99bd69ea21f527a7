"""curvi: curvature-aware variational inference."""

from curvi import curvature as curvature
from curvi import estimate as estimate
from curvi import factors as factors
from curvi import methods as methods
from curvi import solve as solve
from curvi.adapters.numpyro import from_numpyro as from_numpyro
from curvi.black_box import BlackBoxError as BlackBoxError
from curvi.factored import FactoredTarget as FactoredTarget
from curvi.family import MeanField as MeanField
from curvi.fit import fit as fit
from curvi.outcome import Outcome as Outcome
from curvi.results import Fit as Fit
from curvi.target import MinibatchTarget as MinibatchTarget
from curvi.target import Target as Target

__version__ = "0.1.0"
