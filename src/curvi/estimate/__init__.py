"""Estimators: (target, q, key) -> a local quadratic model of the ELBO."""

from curvi.estimate.control_variates import MatrixControl as MatrixControl
from curvi.estimate.control_variates import ParameterControl as ParameterControl
from curvi.estimate.control_variates import ScalarControl as ScalarControl
from curvi.estimate.draws import Antithetic as Antithetic
from curvi.estimate.draws import Independent as Independent
from curvi.estimate.draws import Sobol as Sobol
from curvi.estimate.local import Counts as Counts
from curvi.estimate.local import LocalModel as LocalModel
from curvi.estimate.pathwise import Pathwise as Pathwise
from curvi.estimate.regression import SecondOrderRegression as SecondOrderRegression
from curvi.estimate.score import AnchoredScore as AnchoredScore
from curvi.estimate.score import PaperScore as PaperScore
from curvi.estimate.stein import Stein as Stein
from curvi.estimate.strata import Stratified as Stratified
