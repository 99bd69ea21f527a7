"""A fit in one file: a zip of one JSON text, plain numpy arrays and a checksum over them. No pickle.

The file holds q, the verdict, the history, and what going on takes. It does not hold the model: what needs the target
says so, unless `load` is given it.
"""

import dataclasses
import hashlib
import io
import json
import os
import tempfile
import zipfile
from pathlib import Path

import equinox as eqx
import jax
import numpy as np

from curvi.family.mean_field import Layout, MeanField, Slot
from curvi.model.latents import Latent
from curvi.model.origin import Origin
from curvi.model.target import AbstractTarget
from curvi.outcome import Outcome
from curvi.record.checkpoint import Paused
from curvi.record.counts import CallCounts
from curvi.record.history import History, Seconds
from curvi.record.plain import CannotSaveError, from_plain, to_plain
from curvi.results import Fit

_FORMAT, _VERSION = "curvi fit", 1
_TEXT, _CHECKSUM = "fit.json", "sha256"
_NUMBERS = ("elbo", "elbo_se", "remaining_gain", "remaining_gain_se")


def _refuse(*_):
    raise ValueError("this needs the target, which a file does not hold: curvi.load(path, target=target)")


class MissingTarget(AbstractTarget):
    """In place of the target of a fit that was loaded without it: names and shapes, but no log density."""

    latents: tuple[Latent, ...] = eqx.field(static=True)
    init: dict
    order: int = eqx.field(static=True)
    outputs: None = None
    origin: Origin = eqx.field(static=True, default=Origin(predict=_refuse))

    def batch(self, key):
        return _refuse()

    def full(self):
        return _refuse()


def save(fit: Fit, path) -> None:
    """Write a fit to `path`, whole or not at all."""
    arrays: list[np.ndarray] = []
    text = json.dumps(_describe(fit, arrays), allow_nan=False, indent=1)
    members = {_TEXT: text.encode(), **{_array_name(i): _array_bytes(array) for i, array in enumerate(arrays)}}
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
            archive.writestr(_CHECKSUM, _checksum(members))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load(path, target: AbstractTarget | None = None) -> Fit:
    """The fit that `fit.save(path)` wrote.

    Parameters
    ----------
    path
        The file.
    target
        The target of the fit, made anew. Without it the fit has its draws, moments, verdict and history; outputs of the
        model, `log_ratios`, k-hat, linear response and predictions need it, and say so.

    Raises ValueError where the file is damaged, is no fit, or belongs to another model.
    """
    members = _read(Path(path))
    said = json.loads(members[_TEXT])
    if said.get("format") != _FORMAT or said.get("version", 0) > _VERSION:
        raise ValueError(
            f"{path} was written by a later curvi ({said.get('written by', {}).get('curvi')}); upgrade curvi to read it"
        )
    arrays = [_array(members[_array_name(i)]) for i in range(len(members) - 1)]
    q = _read_q(said["q"], arrays, target)
    target = MissingTarget(tuple(s.latent for s in q.layout.slots), {}, said["order"]) if target is None else target
    history = History(**{name: from_plain(column, arrays) for name, column in said["history"].items()})
    counts = CallCounts(**said["counts"])
    fit = Fit(
        q=q.onto(target),
        outcome=Outcome[said["outcome"]],
        **{name: from_plain(said[name], arrays) for name in _NUMBERS},
        history=history,
        counts=counts,
        seconds=Seconds(**said["seconds"]),
        target=target,
        method=from_plain(said["method"], arrays),
        start_elbos=from_plain(said["start_elbos"], arrays),
        error_copies=from_plain(said["error_copies"], arrays),
        suspects=tuple(said["suspects"]),
        paused=_read_paused(said["paused"], arrays, history, counts),
    )
    if said["khat"] is not None:
        vars(fit)["khat"] = from_plain(said["khat"], arrays)  # where the cached property keeps it
    return fit


# -- the text ---------------------------------------------------------------------------------------------------------


def _describe(fit: Fit, arrays: list[np.ndarray]) -> dict:
    from curvi import __version__

    keep = lambda value: to_plain(value, arrays)  # noqa: E731
    try:
        method = keep(fit.method)
    except CannotSaveError:  # an optimiser of optax is made of functions
        method = None
    paused = fit.paused
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "written by": {"curvi": __version__, "jax": jax.__version__, "numpy": np.__version__},
        "outcome": fit.outcome.name,
        **{name: keep(getattr(fit, name)) for name in _NUMBERS},
        "khat": keep(vars(fit).get("khat")),
        "counts": dataclasses.asdict(fit.counts),
        "seconds": dataclasses.asdict(fit.seconds),
        "history": {name: keep(np.asarray(column)) for name, column in vars(fit.history).items()},
        "start_elbos": keep(fit.start_elbos),
        "error_copies": keep(fit.error_copies),
        "suspects": list(fit.suspects),
        "order": fit.target.order,
        "method": method,
        "q": _describe_q(fit.q, arrays),
        "paused": None
        if paused is None
        else {
            "key": keep(paused.key),
            "key_kind": paused.key_kind,
            "tolerance": paused.tolerance,
            "state": {name: keep(value) for name, value in paused.state.items()},
        },
    }


def _describe_q(q: MeanField, arrays) -> dict:
    slots = []
    for slot in q.layout.slots:
        try:
            support = to_plain(slot.latent.support, arrays)
        except CannotSaveError:
            support = None
        slots.append(
            {
                "name": slot.latent.name,
                "shape": list(slot.latent.shape),
                "dtype": str(slot.latent.dtype),
                "support": support,
                "place": [slot.group, slot.start, slot.count, slot.pushed],
            }
        )
    return {
        "params": to_plain(q.params, arrays),
        "factors": [to_plain(factor, arrays) for factor in q.layout.factors],
        "counts": list(q.layout.counts),
        "slots": slots,
    }


def _read_q(said: dict, arrays, target: AbstractTarget | None) -> MeanField:
    params = from_plain(said["params"], arrays)
    if jax.dtypes.canonicalize_dtype(params.dtype) != params.dtype:
        raise ValueError(
            f"this fit is in {params.dtype}, which JAX would cut to {jax.dtypes.canonicalize_dtype(params.dtype)}; "
            "call jax.config.update('jax_enable_x64', True) first"
        )
    given = {latent.name: latent for latent in target.latents} if target is not None else {}
    slots = []
    for one in said["slots"]:
        support = from_plain(one["support"], arrays)
        if support is None and one["name"] not in given:
            raise ValueError(f"the support of latent '{one['name']}' has no plain form; pass target= to curvi.load")
        support = given[one["name"]].support if support is None else support
        latent = Latent(one["name"], tuple(one["shape"]), np.dtype(one["dtype"]), support)
        group, start, count, pushed = one["place"]
        slots.append(Slot(latent, group, start, count, pushed))
    factors = tuple(from_plain(factor, arrays) for factor in said["factors"])
    return MeanField.assemble(params, Layout(factors, tuple(said["counts"]), tuple(slots)))


def _read_paused(said: dict | None, arrays, history: History, counts: CallCounts) -> Paused | None:
    if said is None:
        return None
    state = {name: from_plain(value, arrays) for name, value in said["state"].items()}
    return Paused(from_plain(said["key"], arrays), said["key_kind"], state, history, counts, said["tolerance"])


# -- the file ---------------------------------------------------------------------------------------------------------


def _read(path: Path) -> dict[str, bytes]:
    """The members of the file, checked to be all of what was written."""
    content = path.read_bytes()
    if not content.startswith(b"PK\x03\x04"):
        raise ValueError(f"{path} is not a curvi fit (fit.save writes one), or is empty or damaged")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    # What zipfile raises on damaged files is anybody's guess.
    except Exception as error:
        raise ValueError(f"{path} is truncated or damaged ({error}); take another copy, or fit again") from None
    if _TEXT not in members or _CHECKSUM not in members:
        raise ValueError(f"{path} is a zip file, but not a curvi fit")
    if members.pop(_CHECKSUM) != _checksum(members):
        raise ValueError(f"{path} is damaged: its checksum does not agree; take another copy, or fit again")
    return members


def _checksum(members: dict[str, bytes]) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(members):
        digest.update(f"{name} {len(members[name])}\n".encode())
        digest.update(members[name])
    return digest.hexdigest().encode()


def _array_name(index: int) -> str:
    return f"arrays/{index}.npy"


def _array_bytes(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _array(content: bytes) -> np.ndarray:
    return np.load(io.BytesIO(content), allow_pickle=False)
