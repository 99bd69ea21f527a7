"""Symmetric operators for the Hessian of the ELBO."""

from curvi.curvature.blocks import BlockDiagonal as BlockDiagonal
from curvi.curvature.blocks import BlockFactor as BlockFactor
from curvi.curvature.made_low_rank import MadeLowRank as MadeLowRank
from curvi.curvature.operators import BlockLowRank as BlockLowRank
from curvi.curvature.operators import DenseMatrix as DenseMatrix
from curvi.curvature.operators import MatrixFree as MatrixFree
from curvi.curvature.operators import Operator as Operator
from curvi.curvature.sampled import Sampled as Sampled
