"""Second-order regression on a plate."""

from curvi.methods.plate_regression.method import PlateRegression as PlateRegression
