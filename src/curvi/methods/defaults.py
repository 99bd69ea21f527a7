"""The default method of a problem: the first row of a table whose condition holds."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from curvi.family import Family
from curvi.family.on_device import normal_on_device
from curvi.methods.base import Method, Problem
from curvi.methods.choice import asked_for, open_rungs
from curvi.methods.growing_draws import GrowingDraws
from curvi.methods.growing_rows import GrowingRows
from curvi.methods.plate_regression import PlateRegression
from curvi.methods.pooled_regression import MAX_PARAMS_REGRESSION, PooledRegression
from curvi.methods.rungs import MEAN_FIELD
from curvi.methods.scheme_i import SchemeI
from curvi.methods.streamed_newton import StreamedNewton
from curvi.model.factored import FactoredTarget

# Number of parameters of discrete latents beyond which the noise of the score curvature is too large.
MAX_SCORE_PARAMS = 24
# Latents from which a loop on the host and stored draws cost more than compiling programs that need neither.
MANY_LATENTS = {"cpu": 2048, "gpu": 1024, "tpu": 1024}


class Default(NamedTuple):
    """A row of the table: the condition, the method, and the reason given to the user."""

    name: str
    holds: Callable[[Problem], bool]
    method: Callable[[], Method]
    reason: str


def _plates(problem: Problem) -> bool:
    target, q = problem.target, problem.q
    if not isinstance(target, FactoredTarget) or not q.separable:
        return False
    local = sum(len(q.params_of(name)) for name, _ in target.local)
    return q.num_params - local <= MAX_PARAMS_REGRESSION


def _derivatives_help(problem: Problem) -> bool:
    """Whether the model has derivatives, some latents are reparameterised, and all others are discrete."""
    target, q = problem.target, problem.q
    discrete = {latent.name for latent in target.latents if latent.discrete}
    followed = {latent.name for latent in q.latents} - set(q.latents_without_path)
    return target.order >= 1 and bool(followed) and set(q.latents_without_path) <= discrete


def _many(problem: Problem) -> bool:
    """Whether a mean field of normal factors has so many latents that draws are better made than stored."""
    target, q = problem.target, problem.q
    # From a mean field to another family: that is for draws on the host.
    other = asked_for(problem)
    asked = (bool(open_rungs(problem)) if other is None else other != MEAN_FIELD) and bool(problem.families)
    asked = asked or problem.num_starts > 1 or target.minibatched
    many = q.noise_size >= MANY_LATENTS.get(jax.default_backend(), 1024)
    return many and not asked and target.order >= 2 and normal_on_device(q)


def _rows(problem: Problem) -> bool:
    """Whether rows of data are visible, and all latents are reparameterised."""
    target, q = problem.target, problem.q
    return (target.minibatched or target.streamed) and target.order >= 1 and not q.latents_without_path


def _few(q: Family) -> bool:
    return q.num_params <= MAX_PARAMS_REGRESSION


DEFAULTS: tuple[Default, ...] = (
    Default(
        "rows of a plate",
        _plates,
        PlateRegression,
        "discrete latents belong to the rows of a plate: their best q is known in closed form given the other latents",
    ),
    Default(
        "many rows",
        _rows,
        GrowingRows,
        "rows of data with derivatives: Newton's method on a sample of the rows, corrected by passes over all of them",
    ),
    Default(
        "derivatives, many latents",
        _many,
        StreamedNewton,
        "many latents with two derivatives: Newton's method on the device, on draws that are made where they are used",
    ),
    Default(
        "derivatives",
        lambda p: _derivatives_help(p) and (p.q.num_score_params <= MAX_SCORE_PARAMS or not _few(p.q)),
        GrowingDraws,
        "the log density has derivatives: Newton's method along the draws of q",
    ),
    Default(
        "values, few parameters",
        lambda p: _few(p.q) or p.target.black_box,
        PooledRegression,
        "values of the log density are all there is, or all that helps: second-order regression on pooled draws",
    ),
    Default(
        "values, many parameters",
        lambda p: True,
        SchemeI,
        f"values alone and more than {MAX_PARAMS_REGRESSION} parameters: curvature of rank S by conjugate gradients",
    ),
)


def default_method(problem: Problem) -> tuple[Method, str]:
    """The default method for a problem, and why."""
    rows = [(row.method(), row.reason) for row in DEFAULTS if row.holds(problem)]
    if problem.placement is None:
        return rows[0]
    # On a mesh the first that can use it; where none can, the first says why not.
    return next((row for row in rows if row[0].why_not(problem) is None), rows[0])
