"""NumPyro models with a subsampled plate, split into the sites outside the plate and those of each row.

`numpyro.plate("rows", N, subsample_size=B)` declares that the sites inside are independent given the rest. So the log
density is that of the sites outside plus a sum over rows of that of the sites inside, with the plate run on one row.
NumPyro scales the sites inside by N over the number of rows; that factor is removed again, since `MinibatchTarget`
applies its own.
"""

import dataclasses

import jax.numpy as jnp
from numpyro.primitives import Messenger


@dataclasses.dataclass(frozen=True)
class Subsample:
    """A subsampled plate."""

    name: str
    size: int
    subsample_size: int


def find_subsample(trace) -> Subsample | None:
    """The subsampled plate of a traced model, if any. Raises ValueError if a target does not support it."""
    plates = [
        Subsample(name, *site["args"])
        for name, site in trace.items()
        if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0])
    ]
    if len(plates) > 1:
        raise ValueError(
            f"plates {', '.join(repr(plate.name) for plate in plates)} are all subsampled; from_numpyro takes one "
            "subsampled plate. Give the others all their rows"
        )
    if not plates:
        return None
    plate = plates[0]
    for name, site in trace.items():
        if site["type"] == "sample" and not site["is_observed"] and is_within(site, plate.name):
            raise ValueError(
                f"latent '{name}' lies in plate '{plate.name}', which subsamples {plate.subsample_size} of "
                f"{plate.size} rows: every batch would have latents of its own. Leave subsample_size out, or sum "
                "the latent out"
            )
    return plate


def is_within(site, plate: str) -> bool:
    return any(frame.name == plate for frame in site["cond_indep_stack"])


class OnRow(Messenger):
    """Runs a model with its subsampled plate on one row; counts only the sites inside the plate, or only those outside.

    Parameters
    ----------
    model
        The model.
    plate
        Its subsampled plate.
    row
        An index.
    inside
        Which sites count.
    """

    def __init__(self, model, plate: Subsample, row, inside: bool):
        self.plate, self.row, self.inside = plate, row, inside
        super().__init__(model)

    def process_message(self, msg):
        if msg["type"] == "plate" and msg["name"] == self.plate.name:
            msg["args"], msg["value"] = (self.plate.size, 1), jnp.reshape(self.row, (1,))
        elif msg["type"] == "sample":
            within = is_within(msg, self.plate.name)
            if within is not self.inside:
                msg["fn"] = msg["fn"].mask(False)
            elif within:
                scale = 1.0 if msg["scale"] is None else msg["scale"]
                msg["scale"] = scale / self.plate.size
