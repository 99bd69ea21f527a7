"""The latents that trouble points to, by name."""

import numpy as np

from curvi.family import MeanField

_MOST = 3
_SHARE = 0.3  # of the largest weight: what is far below is not to blame


def name_suspects(q: MeanField, weights: np.ndarray | None) -> tuple[str, ...]:
    """Elements of latents such as x[2] whose parameters have the largest weights, at most three."""
    if weights is None:
        return ()
    weights = np.nan_to_num(np.asarray(weights, float), nan=np.inf, posinf=np.finfo(float).max)
    found: list[tuple[float, str]] = []
    for slot in q.layout.slots:
        part = weights[q.parameter_slices()[slot.latent.name]].reshape(slot.count, -1).max(1)
        shape = slot.latent.shape
        for index in np.argsort(-part)[:_MOST]:
            scalar = not shape or slot.count != int(np.prod(shape))
            element = "" if scalar else f"[{', '.join(str(i) for i in np.unravel_index(index, shape))}]"
            found.append((float(part[index]), slot.latent.name + element))
    found = sorted(found, key=lambda pair: -pair[0])[:_MOST]
    return tuple(name for weight, name in found if weight > 0 and weight >= _SHARE * found[0][0])
