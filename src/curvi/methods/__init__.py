"""Methods to maximise the ELBO, one per file."""

from curvi.methods.algorithm0 import Algorithm0 as Algorithm0
from curvi.methods.base import Method as Method
from curvi.methods.bbvi import BBVI as BBVI
from curvi.methods.bbvi import adaptive_rate as adaptive_rate
from curvi.methods.bbvi import robbins_monro as robbins_monro
from curvi.methods.defaults import DEFAULTS as DEFAULTS
from curvi.methods.growing_draws import GrowingDraws as GrowingDraws
from curvi.methods.growing_rows import GrowingRows as GrowingRows
from curvi.methods.hessian_free import HessianFree as HessianFree
from curvi.methods.lbfgs import LBFGS as LBFGS
from curvi.methods.natural_gradient import NaturalGradient as NaturalGradient
from curvi.methods.plate_regression import PlateRegression as PlateRegression
from curvi.methods.pooled_regression import PooledRegression as PooledRegression
from curvi.methods.scheme_i import SchemeI as SchemeI
from curvi.methods.scheme_ii import SchemeII as SchemeII
from curvi.methods.second_order import Safeguard as Safeguard
from curvi.methods.stepwise import StepMethod as StepMethod
from curvi.methods.streamed_newton import StreamedNewton as StreamedNewton
