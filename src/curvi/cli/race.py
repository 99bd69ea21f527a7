"""The demonstration: one Bayesian logistic regression, fitted by the paper's methods, the default and Adam.

Needs scikit-learn for its data. Rows hold all that tables and pictures show: both can be made again from their file.
"""

import dataclasses
import json
import math
import platform
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from curvi.estimate import AnchoredScore
from curvi.fit import fit
from curvi.methods import BBVI, Algorithm0, GrowingDraws, Method, NaturalGradient, SchemeI, SchemeII
from curvi.model.target import Target
from curvi.outcome import Outcome
from curvi.record.history import History, mean_and_error
from curvi.record.version import VERSION
from curvi.results import Fit
from curvi.solve import ShermanMorrison, Woodbury

_CURVE_POINTS = 200
_MEASURED_POINTS = 12  # each needs a fit
_COMPARED_DRAWS = 16_384


def breast_cancer_target() -> Target:
    """Logistic regression on the Wisconsin breast cancer data (1 is benign): 569 rows, 31 latents in one vector `beta`.

    beta[0] is the intercept, the rest belong to the 30 standardised features; each has a standard normal prior. The
    dtype is JAX's default. Raises ImportError, with what to install, if scikit-learn is missing.
    """
    try:
        from sklearn.datasets import load_breast_cancer
    except ImportError as error:
        raise ImportError(f"the breast cancer data need scikit-learn ({error}): pip install scikit-learn") from error
    features, benign = (np.asarray(part) for part in load_breast_cancer(return_X_y=True))
    standardised = (features - features.mean(0)) / features.std(0)
    dtype = jnp.result_type(float)
    design = jnp.asarray(np.column_stack([np.ones(len(benign)), standardised]), dtype)
    sign = jnp.asarray(2 * benign - 1, dtype)

    def log_density(theta):
        beta = theta["beta"]
        log_prior = jnp.sum(jax.scipy.stats.norm.logpdf(beta))
        return log_prior + jnp.sum(jax.nn.log_sigmoid(sign * (design @ beta)))

    return Target(log_density, {"beta": jnp.zeros(design.shape[1], dtype)})


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A method with its display name and largest number of steps; None leaves method or steps to `curvi.fit`."""

    name: str
    method: Method | None
    num_steps: int | None


def contestants(quick: bool = False) -> list[Contestant]:
    """The methods of the demonstration; with `quick` two of them, with too few steps to converge."""
    if quick:
        return [
            Contestant("Scheme I, CG", SchemeI(), 40),
            Contestant("curvi.fit default", None, 10),
        ]
    # The best mean ELBO over seeds 1 and 2 for rates 0.01, 0.03, 0.1 with 32 or 128 draws per step, 96,000 draws each.
    adam = BBVI(optax.adam(0.03), AnchoredScore(128))
    # Methods with the same draws per step have the same steps, so that rows compare methods rather than limits.
    return [
        Contestant("Algorithm 0", Algorithm0(), 100),
        Contestant("Scheme I, CG", SchemeI(), 200),
        Contestant("Scheme I, Sherman-Morrison", SchemeI(solver=ShermanMorrison()), 200),
        Contestant("Scheme I, Woodbury", SchemeI(solver=Woodbury()), 200),
        Contestant("Scheme II", SchemeII(), 100),
        Contestant("natural gradient", NaturalGradient(), 200),
        Contestant("curvi.fit default", None, None),
        Contestant("BBVI, Adam 0.03", adam, 750),
    ]


def run(target: Target, chosen: list[Contestant], seed: int, *, progress: bool = True) -> Iterator[dict]:
    """The row of each contestant, one after the other; ends after a fit that was interrupted.

    ELBOs are those of the final q on the same fresh draws for all, so that their differences have little noise. These
    draws are not part of the fits, and not counted among their evaluations.
    """
    key, key_compare = jax.random.split(jax.random.key(seed))
    for contestant in chosen:
        result = _fit(target, contestant, key, contestant.num_steps, progress)
        interrupted = result.outcome is Outcome.INTERRUPTED
        if isinstance(result.method, GrowingDraws) and not interrupted:
            curve = _measured_curve(target, contestant, key, key_compare, result)
        else:
            curve = _smoothed_curve(result.history)
        yield as_row(contestant, result, compared_elbo(result, key_compare), curve, seed)
        if interrupted:
            return


def _fit(target: Target, contestant: Contestant, key, num_steps: int | None, progress: bool) -> Fit:
    return fit(target, key=key, method=contestant.method, num_steps=num_steps, progress=progress)


def compared_elbo(result: Fit, key) -> tuple[float, float]:
    """The ELBO and its standard error on the draws given by `key`."""
    return mean_and_error(result.log_ratios(key, _COMPARED_DRAWS))


def as_row(contestant: Contestant, result: Fit, elbo: tuple[float, float], curve: dict[str, list], seed: int) -> dict:
    """A fit as one flat record of numbers and strings for JSON, with its curve; non-finite numbers become None."""
    method = result.method
    return {
        "name": contestant.name,
        "method": type(method).__name__,
        "uses_derivatives": method is not None and method.needs.order > 0,
        "elbo": _number(elbo[0]),
        "elbo_se": _number(elbo[1]),
        "remaining_gain": _number(result.remaining_gain),
        "remaining_gain_se": _number(result.remaining_gain_se),
        "converged": result.converged,
        "outcome": result.outcome.name,
        "message": result.outcome.message,
        "num_steps": len(result.history),
        "num_log_density": result.counts.log_density,
        "num_gradient": result.counts.gradient,
        "num_hvp": result.counts.hvp,
        "compile_seconds": result.seconds.compile,
        "run_seconds": result.seconds.run,
        "seed": seed,
        "dtype": str(result.q.params.dtype),
        "device": jax.devices()[0].device_kind,
        "versions": {
            "curvi": VERSION,
            "jax": jax.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "curve": curve,
    }


def _smoothed_curve(history: History) -> dict[str, list]:
    """A method's own ELBO estimates against cost, averaged over the last fifth of the steps to reduce noise.

    Rejected steps repeat an older estimate, often too high by chance, and are left out.
    """
    ends = _spread(len(history), _CURVE_POINTS)
    elbo = []
    for end in ends:
        last = slice(end - max(1, end // 5), end)
        fresh = history.elbo[last][np.asarray(history.accepted[last], bool)]
        elbo.append(float(np.mean(fresh)) if len(fresh) else float("nan"))
    return _curve(history, ends, elbo)


def _measured_curve(target: Target, contestant: Contestant, key, key_compare, result: Fit) -> dict[str, list]:
    """ELBO on fresh draws against cost, from fits that end after fewer steps of the same path.

    A method's own ELBO on its fixed draws is biased upwards, and above the optimum for few draws.
    """
    ends = _spread(len(result.history), _MEASURED_POINTS)
    shorter = [_fit(target, contestant, key, int(end), False) for end in ends]
    return _curve(result.history, ends, [compared_elbo(one, key_compare)[0] for one in shorter])


def _spread(count: int, num_points: int) -> np.ndarray:
    """Numbers of steps from 1 to `count`, evenly spread on a logarithmic scale."""
    return np.unique(np.geomspace(1, count, num_points).round().astype(int)) if count else np.zeros(0, int)


def _curve(history: History, ends, elbo: list[float]) -> dict[str, list]:
    return {
        "elbo": [_number(value) for value in elbo],
        "num_log_density": [int(history.log_density[end - 1]) for end in ends],
        "seconds": [float(history.seconds[end - 1]) for end in ends],
    }


def write_rows(rows: list[dict], path: Path) -> None:
    """Write one line of JSON per row."""
    path.write_text("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows), encoding="utf-8")


def _number(value: float) -> float | None:
    # JSON has neither infinity nor NaN.
    return float(value) if math.isfinite(value) else None
