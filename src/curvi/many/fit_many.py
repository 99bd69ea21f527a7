"""The front door of many fits: `fit_many` fits one model to many data sets, together where shapes agree."""

from collections.abc import Callable, Iterable

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from curvi.certify.gain import default_tolerance
from curvi.family import FAMILIES
from curvi.fit import fit
from curvi.many.batch import Batch, start_of
from curvi.many.programs import CHUNK, Programs
from curvi.many.readers import READERS, Reader, Reading, log_density_reader
from curvi.many.result import ManyFits
from curvi.many.stacking import Group, read_groups
from curvi.many.steps import look
from curvi.methods.first_family import AUTO
from curvi.model.latents import num_elements
from curvi.model.target import AbstractTarget
from curvi.record.checkpoint import check_key
from curvi.record.clock import Clock
from curvi.results import Fit

# Latents up to which fits are made together: their certificates are dense matrices of the parameters.
MOST_FULL_RANK, MOST_MEAN_FIELD = 32, 128
_FEWEST = 3  # fits of equal shapes: fewer would not pay for the programs
_SHOWN = 20  # data sets without a finite start that are looked at one by one


def fit_many(
    model: Callable,
    /,
    *data,
    key: PRNGKeyArray | None = None,
    shared: str | Iterable[str] = (),
    family: str | None = None,
    tolerance: float | None = None,
    init: dict | None = None,
    supports: dict | None = None,
    outputs: Callable | None = None,
    **named_data,
) -> ManyFits:
    """Fit one model to many data sets: cross-validation, backtests, bootstraps, simulations.

    Data sets of equal shapes are fitted together, by one compiled program for all of them, each with a certificate of
    its own on fresh draws. What does not converge there, and models that cannot be fitted together, are fitted singly
    by `curvi.fit`; the result says which, and why.

    Parameters
    ----------
    model
        A NumPyro model; or with `init`, a function `log_density(theta, *data)` as in `curvi.Target`.
    *data, **named_data
        The arguments of the model. Arrays, also in dicts, have a first axis for the data sets; a list has one entry per
        data set, whose shapes may differ; everything else (None, numbers, strings) is common to all.
    key
        A key from `jax.random.key(seed)`. The same key and inputs give the same results.
    shared
        Names of arguments that all data sets have in common, such as a design matrix.
    family
        "full_rank" for up to 32 latents or "mean_field" for up to 128 are fitted together, others singly. None takes
        full rank together. Models are fitted as they are written; centring and skewed marginals are for single fits.
    tolerance
        As in `curvi.fit`, for each fit.
    init, supports, outputs
        As in `curvi.Target`, for a log density; `outputs(theta, *data)` takes data, too.

    Returns
    -------
    `ManyFits`: `many[i]` is a `Fit`; `many.mean()`, `many.sd()`, `many.elbo`, `many.converged` have one entry per data
    set. Raises ValueError for invalid input.
    """
    groups, read = _checked(model, data, named_data, key, shared, family, tolerance, init, supports, outputs)
    assert key is not None
    # Random numbers are numpy's: splitting the key would be compiled.
    words, clock = [int(word) for word in np.asarray(jax.random.key_data(key)).ravel()], Clock()
    batches: list[Batch] = []
    left: dict[int, tuple[Reading, int, str]] = {}
    with clock:
        readings = [read(model, group) for group in groups]
        for number, (group, reading) in enumerate(zip(groups, readings, strict=True)):
            batch, why = _together(group, reading, family, tolerance, [*words, number])
            missing = range(len(group.members))
            if batch is not None:
                batches.append(batch)
                missing = np.flatnonzero(~batch.advanced.certified)
            for at in map(int, missing):
                left[int(group.members[at])] = (reading, at, why)
        singles = _singly(left, key, family, tolerance)
    return ManyFits(batches, singles, {index: why for index, (_, _, why) in left.items()}, clock.seconds())


def _checked(model, data, named, key, shared, family, tolerance, init, supports, outputs) -> tuple[list[Group], Reader]:
    """The groups of data sets and the reader of the model; ValueError, with the name of the argument, for bad ones."""
    if isinstance(model, AbstractTarget):
        raise ValueError(
            "fit_many takes a NumPyro model, or a function log_density(theta, *data) and init=; a target has its data "
            "inside already: curvi.fit(target) fits one"
        )
    if not callable(model):
        raise ValueError(f"fit_many takes a model, which is a function; got {type(model).__name__}")
    check_key(key)
    if family is not None and family not in (AUTO, *FAMILIES):
        raise ValueError(f"family must be one of {', '.join((AUTO, *FAMILIES))}, or None; got {family!r}")
    if tolerance is not None and not (isinstance(tolerance, int | float) and tolerance > 0):
        raise ValueError(f"tolerance must be a positive number of nats or None; got {tolerance!r}")
    if init is None and (supports is not None or outputs is not None):
        raise ValueError("supports and outputs are those of a log density: pass init= as well, as to curvi.Target")
    groups = read_groups(model, data, named, shared, latents_first=init is not None)
    return groups, READERS["numpyro"] if init is None else log_density_reader(init, supports, outputs)


def _together(group: Group, reading: Reading, family, tolerance, words) -> tuple[Batch | None, str]:
    """The fits of a group together, with the reason why those that are not good there are made singly."""
    name = "full_rank" if family in (None, AUTO) else family
    model = reading.model
    if model is None:
        return None, reading.why_not
    most = {"full_rank": MOST_FULL_RANK, "mean_field": MOST_MEAN_FIELD}.get(name, 0)
    size = num_elements(model.template.latents)
    if not most:
        return None, f"{name} is fitted singly"
    if size > most:
        return None, f"{size} latents are more than the {most} that {name} takes together"
    if len(group.members) < _FEWEST:
        return None, f"fewer than {_FEWEST} data sets have these shapes"
    q = FAMILIES[name](model.template)
    programs = Programs(model, q)
    _check_start(programs, group, reading, start_of(q))
    tolerance = default_tolerance(size) if tolerance is None else tolerance
    return Batch.run(group.members, programs, name == "mean_field", tolerance, words), "not certified together"


def _check_start(programs: Programs, group: Group, reading: Reading, start) -> None:
    """ValueError for data sets whose log density is not finite at the start, before anything is fitted."""
    mean, factor = (np.broadcast_to(part, (len(group.members), *part.shape)) for part in start)
    at_mean = np.zeros((CHUNK, len(start[0])))
    value = look(programs, np.arange(len(group.members)), mean, factor, at_mean)[0]
    bad = np.flatnonzero(~np.isfinite(value))
    for at in map(int, bad[:_SHOWN]):
        try:
            reading.target_of(at)  # which may know the site
        except ValueError as error:
            raise ValueError(f"data set {group.members[at]}: {error}") from None
    if len(bad):
        raise ValueError(
            f"the log density of data set {group.members[bad[0]]} and of {len(bad) - 1:,} others, or its gradient, is "
            "not finite at the start: look for NaN and values outside of supports in the data, or give another init"
        )


def _singly(left: dict[int, tuple[Reading, int, str]], key, family, tolerance) -> dict[int, Fit]:
    """Single fits of what is left."""
    found = {}
    keys = jax.random.split(key, len(left)) if left else []
    centering = None if family in (None, AUTO) else "off"
    for (index, (reading, at, _)), own in zip(left.items(), keys):
        try:
            target = reading.target_of(at)
            found[index] = fit(target, key=own, family=family, centering=centering, tolerance=tolerance, progress=False)
        except ValueError as error:
            raise ValueError(f"data set {index}: {error}") from None
    return found
