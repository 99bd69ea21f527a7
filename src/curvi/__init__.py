"""curvi: curvature-aware variational inference."""

from curvi import curvature as curvature
from curvi import estimate as estimate
from curvi import factors as factors
from curvi.family import MeanField as MeanField
from curvi.target import MinibatchTarget as MinibatchTarget
from curvi.target import Target as Target
