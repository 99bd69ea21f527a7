"""Second-order regression on pooled draws."""

from curvi.methods.pooled_regression.method import PooledRegression as PooledRegression
from curvi.methods.pooled_regression.widening import MAX_PARAMS_REGRESSION as MAX_PARAMS_REGRESSION
