"""The entry point: `fit` runs a method on a target until the remaining gain is certified to be small."""

import os
from collections.abc import Mapping
from pathlib import Path

import equinox as eqx
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from curvi.certify.gain import default_tolerance
from curvi.family import FAMILIES, Family
from curvi.loading import load
from curvi.methods.arguments import check_arguments
from curvi.methods.base import Method, Problem
from curvi.methods.centering import first_centering
from curvi.methods.defaults import default_method
from curvi.methods.first_family import asked_for, first_q, names_of, rebound_to, skewed_from_start
from curvi.model.latents import num_elements
from curvi.model.memory import default_budget
from curvi.model.minibatch import MinibatchTarget, check_scale
from curvi.model.placement import Placement, only_writer
from curvi.model.rows.source import RowsError
from curvi.model.spread import place
from curvi.model.target import AbstractTarget
from curvi.outcome import Outcome
from curvi.record.checkpoint import check_mesh, same_key
from curvi.record.clock import Clock
from curvi.record.keeper import CheckpointError, Keeper, checked_path
from curvi.record.progress import open_progress
from curvi.results import Fit
from curvi.run import Limits, Run


def fit(
    target: AbstractTarget,
    *,
    key: PRNGKeyArray | None = None,
    family: Family | str | None = None,
    centering: Mapping | str | bool | None = None,
    marginals: str | None = None,
    method: Method | None = None,
    num_steps: int | None = None,
    tolerance: float | None = None,
    progress: bool = True,
    num_starts: int = 1,
    start: Fit | str | os.PathLike | None = None,
    checkpoint: str | os.PathLike | None = None,
    checkpoint_seconds: float = 60.0,
    max_seconds: float | None = None,
    max_evaluations: int | None = None,
    mesh: Mesh | None = None,
    memory: int | None = None,
) -> Fit:
    """Fit a variational distribution q to a target.

    Parameters
    ----------
    target
        What to fit: `Target`, `MinibatchTarget`, or `from_numpyro(...)`.
    key
        A key from `jax.random.key(seed)`. The same key and inputs give bitwise identical results.
    family
        "auto", the default, begins with a mean field and goes on with the cheapest family whose predicted gain is
        within 0.2 nats of the best, where that is more than 0.05 nats (`fit.families` says why). Or "mean_field",
        "bordered", "banded", "low_rank", "full_rank"; or an instance, which also says where to start and is never
        replaced: `Bordered(target, blocks)`, or the q of another fit.
    centering
        How far q's coordinates of latents a ~ Normal(loc, tau), loc or tau latent, are centred: from lambda = 1, a
        itself, to 0, (a - loc) / tau. "learn" is the default unless `family` is an instance; "off" leaves the model as
        written; a dict gives lambdas by latent. Names, draws and the ELBO's meaning stay the model's.
    marginals
        "normal", or "sinh_arcsinh": with a skewness and tails of their own. By default those of an instance, normal
        where `family` is a name, and under "auto" skewed where that should gain more than 0.05 nats.
    method
        One of `curvi.methods`; by default the first row of `curvi.methods.DEFAULTS` that applies: Newton on growing
        draws for differentiable targets, regression on pooled draws where only values are available.
    num_steps
        Maximum number of steps; the method's own default if None.
    tolerance
        Stop when the remaining gain plus two standard errors is at most this many nats, and no mean or sd would move by
        more than 0.1 sd. None takes 0.05 nats, or 0.001 per latent where that is more.
    progress
        Whether to show progress. The computation is the same with and without.
    num_starts
        Starts of the default method: the given one and random ones around it. The fit continues from the best;
        `fit.start_elbos` has the ELBO that each reached on the first round's draws.
    start
        A fit of this target to resume, as if it had never stopped: q and the ELBO after N steps and M more are bitwise
        identical to those after N + M. Key, family and method are those of that fit; `num_steps` counts further steps.
        Or its file, as `fit.save` or `checkpoint` writes it; where that is the path of `checkpoint` and does not exist
        yet, the fit begins with `key`, so that the same call serves the first time and later.
    checkpoint, checkpoint_seconds
        A file to which the fit is written every so many seconds, between two steps, and at its end. It is replaced in
        one step: a process that is killed at any moment leaves the last one whole, for `start`.
    max_seconds, max_evaluations
        Limits on wall time, including compilation, and on evaluations of the model per draw (a Hessian-vector product
        counts as two). They end the fit between two steps; estimating the remaining gain then comes on top.
    mesh
        Devices to share the work, such as `jax.make_mesh((8,), ("draws",))`: with an axis `draws` each computes some of
        the draws, with `rows` some rows of the data, with `latents` (many latents) some of these. See docs/devices.md.
    memory
        Bytes that the fit may take, on the device and on the host: buffers are cut for it before anything runs, and
        `fit.plan` says how; what cannot fit is refused. By default three quarters of the total of the smaller.

    Returns
    -------
    A `Fit`, whose outcome reports numerical problems. Raises ValueError for invalid input or without a finite start;
    BlackBoxError, RowsError (rows changed) or CheckpointError (not written) with the `fit` so far.
    """
    if not isinstance(target, AbstractTarget):
        what = "a curvi Target, MinibatchTarget or from_numpyro(model, ...)"
        raise ValueError(f"target must be {what}; got {type(target).__name__}")
    placement = None if mesh is None else Placement.on(mesh)
    writes = only_writer() or placement is None
    kept_at = None if checkpoint is None else checked_path(checkpoint, checkpoint_seconds)
    if isinstance(start, str | os.PathLike):
        path = Path(start)
        start = _opened(path, target, kept_at, key)
        if placement is not None and len(set(placement.of_all(start is not None))) > 1:
            raise ValueError(f"start: some processes see {path}, others do not; put it on a disk that all share")
    if start is not None:
        check_mesh(getattr(start, "checkpoint", None), () if placement is None else placement.shape)
        given = family, centering, marginals
        key, family, method, num_starts = _resumed(target, start, key, given, method, num_starts)
    check_arguments(target, key, family, method, num_steps, tolerance, num_starts, max_seconds, max_evaluations, memory)
    assert key is not None
    target = target if placement is None else place(target, placement)
    if memory is None and start is not None and start.plan is not None:
        memory = start.plan.memory  # the same bits as if it had never stopped
    if memory is None and placement is not None:
        memory = min(placement.of_all(default_budget()))
    tolerance = default_tolerance(num_elements(target.latents)) if tolerance is None else tolerance
    families = start.checkpoint.families if start is not None and start.checkpoint is not None else ()
    families = names_of(family, marginals) if start is None else families
    # A fit that is resumed began with this q, whatever it has become.
    q = first_q(target, families) if families or not isinstance(family, Family) else family
    reason = "asked for"
    if method is None:
        method, reason = default_method(Problem(target, q, num_starts, families, False, placement, memory))
    asked = asked_for(families)
    if asked is not None and not method.widens and start is None:
        q = FAMILIES[asked](target)
    q = skewed_from_start(target, q, families, method) if start is None else q
    learns, clock = False, Clock() if start is None else Clock(start.seconds)
    with clock:
        if start is None:
            q, learns = first_centering(target, q, centering, method, isinstance(family, Family))
    problem = Problem(target, q, num_starts, families, learns, placement, memory)
    # What the mean field will become.
    wider = None if asked is None else FAMILIES[asked](target)
    last = problem if wider is None else Problem(target, wider, num_starts, families, False, placement, memory)
    if (why := method.why_not(last)) is not None:
        raise ValueError(why)
    plan = problem.once("plan", lambda: method.plan(last))
    if (why := plan.why_not(type(method).__name__)) is not None:
        raise ValueError(why)
    if start is not None:
        reason = start.reason
        if start.converged and start.remaining_gain + 2 * start.remaining_gain_se <= tolerance:
            return start
    limits = Limits(method.default_num_steps if num_steps is None else num_steps, max_seconds, max_evaluations)
    with clock, open_progress(progress and writes, limits.num_steps, tolerance) as display:
        if start is None:
            checks = check_scale(target, key) if isinstance(target, MinibatchTarget) and not target.streamed else 0
            run = Run.begin(method, problem, key, clock, display)
            run.counts = run.counts.plus(log_density=checks)
        else:
            run = Run.resume(method, problem, rebound_to(target, start.checkpoint), clock, display)
        if kept_at is not None and writes:
            write = lambda: _as_fit(run, Outcome.INTERRUPTED, tolerance, reason).save(kept_at)  # noqa: E731
            run.keeper = Keeper(kept_at, checkpoint_seconds, write)
        outcome = run.until(limits, tolerance)
    found = _as_fit(run, outcome, tolerance, reason)
    if kept_at is not None and writes and (run.failure is None or isinstance(run.failure, RowsError)):
        try:
            Keeper(kept_at, 0.0, lambda: found.save(kept_at)).keep()
        except CheckpointError as error:
            run.failure = error
    if kept_at is not None and placement is not None:
        placement.of_all(0)  # no process goes on before the file is there
    if run.failure is not None:
        run.failure.fit = found
        raise run.failure
    return found


def _as_fit(run: Run, outcome: Outcome, tolerance: float, reason: str) -> Fit:
    """The `Fit` of a run."""
    q, copies, starts = run.q, run.gain.copies, getattr(run.state, "start_elbos", None)
    elbo, elbo_se = run.known_elbo()
    return Fit(
        q=q,
        outcome=outcome,
        elbo=elbo,
        elbo_se=elbo_se,
        remaining_gain=run.gain.nats,
        remaining_gain_se=run.gain.error,
        history=run.history(),
        counts=run.counts,
        seconds=run.clock.seconds(),
        target=run.problem.target,
        method=run.method,
        reason=reason,
        error_copies=np.stack(copies).astype(q.params.dtype) if copies else None,
        start_elbos=starts if starts is not None and len(starts) else None,
        suspects=() if outcome is Outcome.CONVERGED else run.suspects(),
        remaining_sds=run.gain.sds,
        remaining_sds_se=run.gain.sds_error,
        families=run.method.families(run.problem, run.state),
        centering=run.method.centering(run.state),
        checkpoint=run.checkpoint(tolerance),
        plan=run.problem.once("plan", lambda: run.method.plan(run.problem)),
    )


def _opened(path: Path, target, kept_at: Path | None, key) -> Fit | None:
    """The fit in a file; None where there is none yet, and the fit that is to begin will write it."""
    if path.exists():
        return load(path, target)
    if key is not None and kept_at is not None and path.absolute() == kept_at.absolute():
        return None
    raise ValueError(
        f"start: there is no file {path}. To begin with it, pass key= and checkpoint={str(path)!r} as well; otherwise "
        "leave start out"
    )


def _resumed(target, start, key, given, method, num_starts) -> tuple:
    """Key, q, method and number of starts of a fit that is resumed; ValueError if they do not match."""
    if not isinstance(start, Fit):
        wanted = "a fit, as curvi.fit or curvi.load returns it, or the path of its file"
        raise ValueError(f"start must be {wanted}; got {type(start).__name__}")
    if start.checkpoint is None:
        raise ValueError("start carries no state to resume from; family=start.q starts anew from its q")
    if num_starts != 1 or any(one is not None for one in given):
        what = "family, centring, marginals and starts; leave family, centering, marginals and num_starts out"
        raise ValueError(f"start has its own {what}")
    if key is not None and not same_key(key, start.checkpoint.key):
        raise ValueError("start is resumed with its own random key; leave key out")
    if start.method is None and method is None:
        raise ValueError("the method of this fit could not be saved; pass method= with the settings that it had")
    if method is not None and start.method is not None and not eqx.tree_equal(method, start.method):
        raise ValueError(
            f"start is resumed with its own method, {type(start.method).__name__}; leave method out. "
            "To go on with another one, pass family=start.q instead of start"
        )
    return start.checkpoint.key, start.q.onto(target), method or start.method, start.checkpoint.num_starts
