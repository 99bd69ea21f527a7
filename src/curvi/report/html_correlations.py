"""The section on how some latents are correlated: under q, and by linear response."""

from typing import TYPE_CHECKING

import jax
import numpy as np

from curvi.diagnostics.elements import chosen_elements, label_of
from curvi.diagnostics.response import affordable_response
from curvi.report.html_parts import figure, section
from curvi.report.svg_bars import matrix

if TYPE_CHECKING:
    from curvi.results import Fit

MOST = 8  # elements of their own choice
MOST_NAMED = 12  # of those that were asked for
LITTLE = 0.1  # of a correlation: about what 4,096 draws of a posterior and a reader can tell from none
_MOST_COMPARED, _DRAWS = 256, 4096
_LARGE = 2**14  # numbers behind a draw beyond which no draws are kept


def correlations_section(fit: "Fit", names=None) -> str:
    """The correlations of the named quantities and elements, or of those that are correlated most."""
    if names is None and (fit.q.noise_size > _LARGE or _num_elements(fit) < 2):
        return ""
    shapes = {name: value.shape for name, value in fit.mean().items()}
    asked = [latent.name for latent in fit.q.latents] if names is None else names
    chosen = chosen_elements(shapes, asked, None if names is not None else _MOST_COMPARED)
    labels = [label_of(name, shapes[name], i) for name, index in chosen.items() for i in index]
    draws = fit.sample(jax.random.key(0), _DRAWS, "q")
    flat = np.column_stack([np.reshape(draws[name], (_DRAWS, -1))[:, index] for name, index in chosen.items()])
    of_q = _correlation(np.cov(flat.T, ddof=0))
    if names is None:
        response = _response(fit, list(chosen), labels) if _num_elements(fit) <= _MOST_COMPARED else None
        kept = _most_correlated(of_q if response is None else response)
        of_q, labels = of_q[np.ix_(kept, kept)], [labels[i] for i in kept]
        response = None if response is None else response[np.ix_(kept, kept)]
    else:
        of_q, labels = of_q[:MOST_NAMED, :MOST_NAMED], labels[:MOST_NAMED]
        whole = sum(int(np.prod(shapes[name])) for name in chosen)
        response = _response(fit, list(chosen), labels) if whole <= _MOST_COMPARED else None
    both = of_q if response is None else np.tril(of_q) + np.triu(response, 1)
    words = "Correlations under q." if response is None else "Below the diagonal: under q; above: by linear response."
    what = "those that were asked for" if names is not None else _which(fit, both)
    caption = f"{words} Shown are {what}, on the model's supports."
    return section("Correlations", figure(matrix(labels, both, "Correlations of some latents"), caption))


def _num_elements(fit: "Fit") -> int:
    return sum(int(np.prod(latent.shape)) for latent in fit.q.latents)


def _which(fit: "Fit", shown: np.ndarray) -> str:
    if len(shown) == _num_elements(fit):
        return "all latents"
    if np.nanmax(np.abs(shown - np.diag(np.diag(shown)))) < LITTLE:
        return f"the first {len(shown)} latents: no two are correlated"
    return f"the {len(shown)} latents that are correlated most"


def _correlation(covariance: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = 1.0 / np.sqrt(np.diag(covariance))
        return covariance * scale * scale[:, None]


def _response(fit: "Fit", names: list[str], labels: list[str]) -> np.ndarray | None:
    """Correlations of some elements of these quantities; None where linear response is not available, or would cost
    more than the fit.
    """
    try:
        affordable_response(fit)
        found = fit.covariance("linear_response", names)
    except ValueError:
        return None
    kept = [found.labels.index(label) for label in labels]
    return _correlation(found.matrix[np.ix_(kept, kept)])


def _most_correlated(correlation: np.ndarray) -> list[int]:
    """The elements of the largest correlations, in their own order; all where they are few, and the first ones where
    nothing is correlated.
    """
    if len(correlation) <= MOST:
        return list(range(len(correlation)))
    size = np.abs(np.nan_to_num(np.triu(correlation, 1)))
    kept: set[int] = set()
    for at in np.argsort(-size, axis=None, kind="stable"):
        if len(kept) >= MOST - 1 or np.ravel(size)[at] < LITTLE:
            break
        kept |= set(map(int, np.unravel_index(at, size.shape)))
    return sorted(kept) or list(range(MOST // 2))
