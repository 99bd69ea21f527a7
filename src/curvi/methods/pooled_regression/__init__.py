from curvi.methods.pooled_regression.method import PooledRegression as PooledRegression
