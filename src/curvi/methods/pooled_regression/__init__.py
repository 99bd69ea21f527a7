"""Second-order regression on pooled draws."""

from curvi.methods.pooled_regression.method import PooledRegression as PooledRegression
