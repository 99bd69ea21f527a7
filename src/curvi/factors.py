"""The factors of a mean field."""

from curvi.family.continuous import Beta as Beta
from curvi.family.continuous import Dirichlet as Dirichlet
from curvi.family.continuous import Gamma as Gamma
from curvi.family.continuous import LogNormal as LogNormal
from curvi.family.continuous import Normal as Normal
from curvi.family.discrete import Bernoulli as Bernoulli
from curvi.family.discrete import Categorical as Categorical
from curvi.family.discrete import Poisson as Poisson
from curvi.family.skewed_factor import SinhArcsinh as SinhArcsinh
from curvi.family.student_t import StudentT as StudentT
