"""Fits from files."""

from curvi.model.target import AbstractTarget
from curvi.results import Fit
from curvi.storage import restored


def load(path, target: AbstractTarget | None = None) -> Fit:
    """The fit written by `fit.save(path)`.

    Parameters
    ----------
    path
        The file.
    target
        The target of the fit, constructed again. Without it the fit has its draws, moments, outcome and history, but
        outputs of the model, `log_ratios`, k-hat, linear response and predictions raise an error.

    Raises ValueError if the file is damaged, is not a fit, or belongs to another model.
    """
    return restored(Fit, path, target)
