"""A fit in one file: a zip of one JSON text, plain numpy arrays and a checksum over them. No pickle.

The file holds q, the outcome, the history, and the state to resume from, with every class under its registered name
(`curvi.record.plain`). It does not hold the model: methods that need the target raise an error unless `load` gets it.
"""

import dataclasses
import io
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np

import curvi.methods  # noqa: F401  registers what a fit may hold
from curvi.family.centering_table import CenteringTable
from curvi.model.latents import Latent
from curvi.model.origin import Origin
from curvi.model.target import AbstractTarget
from curvi.outcome import Outcome
from curvi.record.archive import packed_archive, read_archive
from curvi.record.checkpoint import Checkpoint, Leaves
from curvi.record.counts import CallCounts
from curvi.record.history import History, Seconds
from curvi.record.plain import CannotSaveError, from_plain, to_plain
from curvi.record.version import VERSION

if TYPE_CHECKING:
    from curvi.results import Fit

_FORMAT, _FORMAT_VERSION = "curvi fit", 2
_NUMBERS = ("elbo", "elbo_se", "remaining_gain", "remaining_gain_se", "remaining_sds", "remaining_sds_se")
_KNOWN = ("khat", "kind", "weighted_draws", "posterior_check")  # computed on request, and kept where they were


def _refuse(*_):
    raise ValueError("this needs the target, which a file does not hold: curvi.load(path, target=target)")


class MissingTarget(AbstractTarget):
    """Stands in for the target of a fit that was loaded without it: names and shapes, but no log density."""

    latents: tuple[Latent, ...] = eqx.field(static=True)
    init: dict
    order: int = eqx.field(static=True)
    outputs: Callable | None = None
    origin: Origin = eqx.field(static=True, default=Origin(predict=_refuse))

    def batch(self, key):
        return _refuse()

    def full(self):
        return _refuse()


def save(fit: "Fit", path) -> None:
    """Write a fit to `path`: to a new file, flushed to the disk, which then takes the place of the old one."""
    content, path = packed(fit), Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def packed(fit: "Fit") -> bytes:
    """What a file of the fit holds."""
    arrays: list[np.ndarray] = []
    _ = fit.kind  # a fit without its target cannot find out, and would answer otherwise
    text = json.dumps(_describe(fit, arrays), allow_nan=False, indent=1)
    return packed_archive(text, arrays)


def restored(cls: type["Fit"], source, target: AbstractTarget | None = None) -> "Fit":
    """The fit in a file, with what it had computed."""
    fields, known = read(source, target)
    fit = cls(**fields)
    vars(fit).update(known)  # the caches of properties
    return fit


def read(path, target: AbstractTarget | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of the fit in a file, and those of `_KNOWN` that it had computed; see `curvi.load`."""
    text, arrays = read_archive(path if isinstance(path, io.BytesIO) else Path(path))
    said = json.loads(text)
    writer, version = said.get("written by", {}).get("curvi"), said.get("version", 0)
    if said.get("format") != _FORMAT or version > _FORMAT_VERSION:
        raise ValueError(f"{path} was written by a later curvi ({writer}); upgrade curvi to read it")
    if version < _FORMAT_VERSION:
        raise ValueError(
            f"{path} was written by curvi {writer}, whose files name modules that have moved since; "
            f"read it with pip install 'curvi=={writer}', or fit again"
        )
    latents = {latent.name: latent for latent in target.latents} if target is not None else {}
    again = lambda plain: from_plain(plain, arrays, latents)  # noqa: E731
    _check_precision(said["dtype"])
    q = again(said["q"])
    target = MissingTarget(q.latents, {}, said["order"]) if target is None else target
    history, counts = again(said["history"]), CallCounts(**said["counts"])
    fields = {
        "q": q.onto(target),
        "outcome": Outcome[said["outcome"]],
        **{name: again(said.get(name, 0.0)) for name in _NUMBERS},
        "history": history,
        "counts": counts,
        "seconds": Seconds(**said["seconds"]),
        "target": target,
        "method": again(said["method"]),
        "reason": said["reason"],
        "start_elbos": again(said["start_elbos"]),
        "error_copies": again(said["error_copies"]),
        "suspects": tuple(said["suspects"]),
        "families": tuple(again(row) for row in said.get("families", ())),
        "centering": again(said["centering"]) if "centering" in said else CenteringTable(),
        "plan": again(said["plan"]) if "plan" in said else None,
        "checkpoint": _read_checkpoint(said["checkpoint"], again, history, counts),
    }
    return fields, {name: again(said[name]) for name in _KNOWN if said.get(name) is not None}


# -- the text ---------------------------------------------------------------------------------------------------------


def _describe(fit: "Fit", arrays: list[np.ndarray]) -> dict:
    keep = lambda value: to_plain(value, arrays)  # noqa: E731
    return {
        "format": _FORMAT,
        "version": _FORMAT_VERSION,
        "written by": {"curvi": VERSION, "jax": jax.__version__, "numpy": np.__version__},
        "outcome": fit.outcome.name,
        **{name: keep(getattr(fit, name)) for name in _NUMBERS},
        **{name: keep(vars(fit).get(name)) for name in _KNOWN},
        "counts": dataclasses.asdict(fit.counts),
        "seconds": dataclasses.asdict(fit.seconds),
        "history": keep(fit.history),
        "start_elbos": keep(fit.start_elbos),
        "error_copies": keep(fit.error_copies),
        "suspects": list(fit.suspects),
        "families": [keep(row) for row in fit.families],
        "centering": keep(fit.centering),
        "order": fit.target.order,
        "method": _or_none(fit.method, arrays),  # optax optimisers consist of functions, which cannot be saved
        "reason": fit.reason,
        "plan": keep(fit.plan),
        "dtype": str(fit.q.params.dtype),
        "q": keep(fit.q),
        "checkpoint": None if fit.checkpoint is None else _describe_checkpoint(fit.checkpoint, arrays),
    }


def _or_none(value, arrays: list[np.ndarray]):
    kept: list[np.ndarray] = []
    try:
        to_plain(value, kept)
    except CannotSaveError:
        return None
    return to_plain(value, arrays)


def _describe_checkpoint(checkpoint: Checkpoint, arrays) -> dict:
    """The state with its structure if its classes are registered; else its leaves alone, to be put into a new state of
    the method.
    """
    state = _or_none(checkpoint.state, arrays)
    if state is None:
        state = {"leaves": [to_plain(leaf, arrays) for leaf in Leaves.of(checkpoint.state).arrays]}
    return {
        "key": to_plain(checkpoint.key, arrays),
        "state": state,
        "tolerance": checkpoint.tolerance,
        "num_starts": checkpoint.num_starts,
        "families": list(checkpoint.families),
        "mesh": [list(axis) for axis in checkpoint.mesh],
    }


def _read_checkpoint(said: dict | None, again, history: History, counts: CallCounts) -> Checkpoint | None:
    if said is None:
        return None
    state = said["state"]
    if isinstance(state, dict) and "leaves" in state:
        state = Leaves(tuple(again(leaf) for leaf in state["leaves"]))
    else:
        state = again(state)
    families = tuple(said.get("families", ()))
    mesh = tuple((str(name), int(size)) for name, size in said.get("mesh", ()))
    settings = (said["tolerance"], said["num_starts"], families, mesh)
    return Checkpoint(again(said["key"]), state, history, counts, *settings)


def _check_precision(name: str) -> None:
    dtype = np.dtype(name)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(
            f"this fit is in {dtype}, which JAX would cut to {jax.dtypes.canonicalize_dtype(dtype)}; "
            "call jax.config.update('jax_enable_x64', True) first"
        )
