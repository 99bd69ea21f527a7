"""One file of a text and arrays: a zip with a checksum over its members, without pickle."""

import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np

_TEXT, _CHECKSUM = "fit.json", "sha256"


def packed_archive(text: str, arrays: list[np.ndarray]) -> bytes:
    """The content of the file."""
    members = {_TEXT: text.encode(), **{_array_name(i): _array_bytes(array) for i, array in enumerate(arrays)}}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(_CHECKSUM, _checksum(members))
    return buffer.getvalue()


def read_archive(source: Path | io.BytesIO) -> tuple[bytes, list[np.ndarray]]:
    """The text and the arrays; ValueError where the file is none of ours, or damaged."""
    content = source.getvalue() if isinstance(source, io.BytesIO) else source.read_bytes()
    if not content.startswith(b"PK\x03\x04"):
        raise ValueError(f"{source} is not a curvi fit (fit.save writes one), or is empty or damaged")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    # zipfile raises various exceptions on damaged files.
    except Exception as error:
        raise ValueError(f"{source} is truncated or damaged ({error}); take another copy, or fit again") from None
    if _TEXT not in members or _CHECKSUM not in members:
        raise ValueError(f"{source} is a zip file, but not a curvi fit")
    if members.pop(_CHECKSUM) != _checksum(members):
        raise ValueError(f"{source} is damaged: its checksum does not agree; take another copy, or fit again")
    return members[_TEXT], [_array(members[_array_name(i)]) for i in range(len(members) - 1)]


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
