"""Stan programs from files, compiled by PyStan."""

import contextlib
import re
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from curvi.adapters.stan.program import from_stan
from curvi.model.target import Target


def from_stan_file(path: Path, data: Mapping) -> Target:
    """The target of a Stan program in a file, with numbers and arrays by name as its data.

    PyStan compiles it, which takes a minute the first time; it keeps what it has compiled. What it prints goes to
    standard error. Raises ValueError where the program does not compile or the data do not fit it.
    """
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")  # those of PyStan's server and of the libraries under it
        try:
            import stan  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError(f'Stan programs need PyStan 3 ({error}): pip install "curvi[stan]"') from error
        try:
            model = stan.build(path.read_text("utf-8"), data=_plain(data))  # pyright: ignore[reportAttributeAccessIssue]
        except RuntimeError as error:
            # The program has compiled: what is wrong are the data.
            found = re.search(r"Exception: (.*?)(?: \(in '|`|$)", str(error), flags=re.DOTALL)
            said = found[1] if found else str(error)
            raise ValueError(
                f"{path}: Stan refuses the data ({said}); they have {', '.join(data) or 'nothing'}"
            ) from None
        except ValueError as error:
            raise ValueError(f"{path}: Stan cannot compile it: {error}; the lines above say where") from None
        return from_stan(model)


def _plain(data: Mapping) -> dict:
    """Numbers and nested lists, as PyStan writes them to JSON; truth values as Stan's integers."""
    arrays = {name: np.asarray(value) for name, value in data.items()}
    return {name: (array.astype(int) if array.dtype == bool else array).tolist() for name, array in arrays.items()}
