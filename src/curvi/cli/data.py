"""Data files for models: columns or arrays by name, from CSV, NPZ, Parquet or JSON."""

import csv
import glob
import json
from pathlib import Path

import numpy as np

from curvi.cli.common import InputError
from curvi.model.rows.rows import Rows

_MISSING = {"", "na", "nan", "null", "none"}


def read_data(path: Path) -> tuple[dict, list[str]]:
    """Arrays by name, and remarks on how they were converted; columns of `Rows` where they are many files."""
    if path.is_dir() or glob.has_magic(str(path)):
        rows = Rows(str(path))
        return {"rows": rows, **{name: rows[name] for name in rows.columns}}, [repr(rows)]
    readers = {".csv": _read_csv, ".npz": _read_npz, ".parquet": _read_parquet, ".json": _read_json}
    if (reader := readers.get(path.suffix.lower())) is None:
        raise InputError(f"{path}: data files are .csv, .npz, .parquet or .json; got '{path.suffix}'")
    if not path.exists():
        raise InputError(f"no data file {path}")
    remarks: list[str] = []
    data = {name: _as_numbers(name, column, remarks) for name, column in reader(path).items()}
    return data, remarks


def _read_csv(path: Path) -> dict:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row]
    if len(rows) < 2:
        raise InputError(f"{path}: expected a line of column names and at least one row")
    names, *body = rows
    if len(set(names)) != len(names):
        raise InputError(f"{path}: column names must differ; got {', '.join(names)}")
    for at, row in enumerate(body, 2):
        if len(row) != len(names):
            raise InputError(f"{path}, line {at}: {len(row)} fields, where the first line names {len(names)} columns")
    for name, column in zip(names, zip(*body)):
        for at, field in enumerate(column, 2):
            if field.strip().lower() in _MISSING:
                raise InputError(f"{path}, line {at}: no value for '{name}'; leave incomplete rows out")
    return {name.strip(): _parse(column) for name, column in zip(names, zip(*body))}


def _parse(column) -> np.ndarray:
    """The column as integers if possible, else floats, else strings."""
    for kind in (int, float):
        try:
            return np.asarray([kind(field) for field in column])
        except ValueError:
            pass
    return np.asarray([field.strip() for field in column])


def _read_npz(path: Path) -> dict:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path}: not an NPZ file of plain arrays ({error}); write it with numpy.savez") from error


def _read_json(path: Path) -> dict:
    """One object of numbers and nested lists, as Stan's interfaces take it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not a JSON file ({error})") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected one object of numbers and lists by name; got {type(found).__name__}")
    return {name: _as_array(path, name, value) for name, value in found.items()}


def _as_array(path: Path, name: str, value) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:
        raise InputError(f"{path}: the lists of '{name}' differ in length") from None
    if array.dtype.kind not in "biufU":
        raise InputError(f"{path}: '{name}' has entries that are no numbers, such as null; leave incomplete rows out")
    return array


def _read_parquet(path: Path) -> dict:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(f'Parquet files need pyarrow ({error}): pip install "curvi[parquet]"') from error
    try:
        table = parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{path}: not a Parquet file ({error})") from error
    for name, column in zip(table.column_names, table.columns):
        if column.null_count:
            raise InputError(f"{path}: column '{name}' has {column.null_count} missing values; leave these rows out")
    return {name: column.to_numpy() for name, column in zip(table.column_names, table.columns)}


def _as_numbers(name: str, column: np.ndarray, remarks: list[str]):
    """The column as numbers: scalars become Python numbers, strings become codes in alphabetical order."""
    if column.ndim == 0 and column.dtype.kind in "biuf":
        return column.item()
    if column.dtype.kind == "f" and not np.all(np.isfinite(column)):
        raise InputError(f"'{name}' has values that are not finite; leave these rows out")
    if column.dtype.kind in "biuf":
        return column
    levels, codes = np.unique(column.astype(str), return_inverse=True)
    shown = ", ".join(levels[:5]) + (", ..." if len(levels) > 5 else "")
    remarks.append(f"'{name}' has {len(levels)} levels, coded from 0 in alphabetical order: {shown}")
    return codes.reshape(column.shape)
