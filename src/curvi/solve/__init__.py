"""Solvers of a symmetric linear system (operator) x = rhs, one method per file; each returns its outcome."""

from curvi.solve.cg import CG as CG
from curvi.solve.dense import Dense as Dense
from curvi.solve.lissa import LiSSA as LiSSA
from curvi.solve.sherman_morrison import ShermanMorrison as ShermanMorrison
from curvi.solve.solution import Solution as Solution
from curvi.solve.solution import SolveOutcome as SolveOutcome
from curvi.solve.solution import Solver as Solver
from curvi.solve.woodbury import Woodbury as Woodbury
