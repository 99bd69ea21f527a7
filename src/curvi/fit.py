"""The front door: `fit` runs a method on a target until a certificate says that little is left to gain."""

import equinox as eqx
import jax

from curvi.estimate.hybrid import num_staying_params
from curvi.family import MeanField
from curvi.methods import AnyMethod, GrowingDraws, PlateRegression, PooledRegression, SchemeI
from curvi.methods.base import check_fit
from curvi.methods.growing_draws.run import GrowingRun
from curvi.methods.plate_regression.run import PlateRun
from curvi.methods.pooled_regression.run import PooledRun
from curvi.methods.stepwise_run import StepwiseRun
from curvi.model.factored import FactoredTarget
from curvi.model.minibatch import MinibatchTarget, check_scale
from curvi.model.target import AbstractTarget
from curvi.record.checkpoint import going_on, pause
from curvi.record.clock import Clock
from curvi.record.progress import open_progress
from curvi.results import Fit

_MOST_REGRESSED = 512
_MOST_WEIGHED = 24  # parameters of discrete latents beyond which the noise of the score's curvature is too large


def fit(
    target: AbstractTarget,
    *,
    key=None,
    family: MeanField | None = None,
    method: AnyMethod | None = None,
    num_steps: int | None = None,
    tolerance: float = 0.05,
    progress: bool = True,
    num_starts: int = 1,
    start: Fit | None = None,
) -> Fit:
    """Fit a factorised q to a target.

    Parameters
    ----------
    target
        What to fit: `Target`, `MinibatchTarget`, or `from_numpyro(...)`.
    key
        A key from `jax.random.key(seed)`. The same key and inputs give the same bits.
    family
        Where to start and with which factors; `MeanField(target)` by default.
    method
        One of `curvi.methods`; by default Newton on growing draws for differentiable targets, with scores in the place
        of derivatives for the discrete latents of mixed ones if they are few; regression on pooled draws elsewhere
        (Scheme I beyond 512 variational parameters).
    num_steps
        Most steps; the method's own default if None.
    tolerance
        Stop when the remaining gain plus two standard errors is below this many nats.
    progress
        Whether to show progress. The computation is the same with and without.
    num_starts
        Starts of the default method: the given one and random ones around it. The fit goes on from the best;
        `fit.start_elbos` shows what each led to on the first round's draws.
    start
        A fit of this target to go on from, as if it had never stopped: after N steps and M more, q and the ELBO have
        the same bits as after N + M. It has its key, family and method; `num_steps` counts the further steps.

    Returns
    -------
    A `Fit`. Numerical trouble is an outcome of it; ValueError is raised for wrong input and where no finite start
    exists, BlackBoxError where a black-box log density fails: its `fit` holds the fit so far.
    """
    paused = None
    if start is not None:
        _check_target(target)
        key, family, method, paused = going_on(target, start, key, family, method, num_starts)
    _check_input(target, key, family, method, num_steps, tolerance)
    if not isinstance(num_starts, int) or num_starts < 1:
        raise ValueError(f"num_starts must be a positive integer; got {num_starts!r}")
    q = MeanField(target) if family is None else family
    method = _default_method(target, q) if method is None else method
    check_fit(method, target, q)
    if num_starts > 1 and not isinstance(method, GrowingDraws):
        raise ValueError(f"num_starts works with the default method, GrowingDraws; got {type(method).__name__}")
    if start is not None and start.converged and start.remaining_gain + 2 * start.remaining_gain_se <= tolerance:
        return start
    clock = Clock() if start is None else Clock(start.seconds)
    checks = 0
    if isinstance(target, MinibatchTarget) and paused is None:
        checks = check_scale(target, key)
        clock.compiled()
    limit = method.default_num_steps if num_steps is None else num_steps
    with open_progress(progress, limit, tolerance) as display:
        if isinstance(method, GrowingDraws):
            run = GrowingRun(method, target, q, key, clock, display, num_starts, paused)
        elif isinstance(method, PlateRegression):
            run = PlateRun(method, target, q, key, clock, display)
        elif isinstance(method, PooledRegression):
            run = PooledRun(method, target, q, key, clock, display)
        else:
            run = StepwiseRun(method, target, q, key, clock, display, paused)
        outcome = run.until(limit, tolerance)
        elbo, elbo_se = run.final_elbo()
    counts = run.counts.plus(log_density=checks)
    found = Fit(
        q=run.q,
        outcome=outcome,
        elbo=elbo,
        elbo_se=elbo_se,
        remaining_gain=run.gain,
        remaining_gain_se=run.gain_se,
        history=run.history(),
        counts=counts,
        seconds=clock.seconds(),
        target=target,
        method=method,
        error_copies=run.error_copies(),
        start_elbos=run.start_elbos if start is None or run.start_elbos is not None else start.start_elbos,
        suspects=run.suspects,
        paused=pause(run, key, counts, tolerance) if isinstance(run, GrowingRun | StepwiseRun) else None,
    )
    if isinstance(run, PooledRun) and run.failure is not None:
        run.failure.fit = found
        raise run.failure
    return found


def _default_method(target: AbstractTarget, q: MeanField) -> AnyMethod:
    if isinstance(target, FactoredTarget) and q.num_params - _num_local(target, q) <= _MOST_REGRESSED:
        return PlateRegression()
    # Least squares on all scores needs more draws than parameters, and time like the cube of their number.
    few = q.num_params <= _MOST_REGRESSED
    if target.order >= 1 and _differentiable(q) and (num_staying_params(q) <= _MOST_WEIGHED or not few):
        return GrowingDraws()
    return PooledRegression() if few else SchemeI()


def _differentiable(q: MeanField) -> bool:
    """Whether derivatives of the model help: some factors are reparameterised, and all others discrete."""
    kinds = [(q.layout.factors[slot.group].reparameterised, slot.latent.discrete) for slot in q.layout.slots]
    return any(smooth for smooth, _ in kinds) and all(smooth or discrete for smooth, discrete in kinds)


def _num_local(target: FactoredTarget, q: MeanField) -> int:
    places = q.parameter_slices()
    return sum(places[name].stop - places[name].start for name, _ in target.local)


def _check_target(target) -> None:
    if not isinstance(target, AbstractTarget):
        raise ValueError(
            f"target must be a curvi Target, MinibatchTarget or from_numpyro(model, ...); got {type(target).__name__}"
        )


def _check_input(target, key, family, method, num_steps, tolerance) -> None:
    _check_target(target)
    check_key(key)
    if family is not None and not isinstance(family, MeanField):
        raise ValueError(f"family must be a curvi.MeanField of the target; got {type(family).__name__}")
    if family is not None and tuple(slot.latent for slot in family.layout.slots) != target.latents:
        raise ValueError("family was made for another target; make it with curvi.MeanField(target, factors)")
    if method is not None and not isinstance(method, AnyMethod):
        raise ValueError(f"method must be one of curvi.methods, as an instance; got {method!r}")
    if num_steps is not None and (not isinstance(num_steps, int) or num_steps < 1):
        raise ValueError(f"num_steps must be a positive integer or None; got {num_steps!r}")
    if not (isinstance(tolerance, int | float) and tolerance > 0):
        raise ValueError(f"tolerance must be a positive number of nats; got {tolerance!r}")


def check_key(key) -> None:
    """Raise ValueError unless `key` is one typed random key."""
    if key is None:
        raise ValueError("fit needs a random key: pass key=jax.random.key(0)")
    if not eqx.is_array(key) or not jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise ValueError(
            "key must be a typed key from jax.random.key(seed); "
            "old-style jax.random.PRNGKey arrays and integers are not taken"
        )
    if key.shape != ():
        raise ValueError(f"key must be a single key; got an array of keys of shape {key.shape}")
