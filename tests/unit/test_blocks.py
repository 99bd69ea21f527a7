"""Which plates of a model make blocks, and which are global: tied to all blocks, where that is cheap."""

import jax.numpy as jnp
import numpy as np
import pytest

from curvi import Bordered, Target
from curvi.model.origin import Origin


def nested(num_places: int, num_broods: int, num_chicks: int) -> Target:
    """Chicks in broods at places, and a scale for each of the three."""
    counts = {"place": num_places, "brood": num_broods, "chick": num_chicks}
    start = {name: np.zeros(count) for name, count in counts.items()} | {"scales": np.zeros(3)}
    origin = Origin(plates={f"{name}s": {name: 0} for name in counts})
    return Target(lambda t: -sum(jnp.sum(x**2) for x in t.values()), start, origin=origin)


@pytest.mark.parametrize(
    ("counts", "num_global", "sets"),
    [
        ((20, 100, 400), 123, ["chicks"]),  # a model with few latents
        ((60, 250, 400), 63, ["chicks", "broods"]),
        ((60, 90, 400), 153, ["chicks"]),
        ((60, 118, 9_000), 3, ["chicks", "broods", "places"]),  # of one with many they would be half a million entries
        ((20, 118, 9_000), 23, ["chicks", "broods"]),
        ((170, 200, 300), 173, ["chicks", "broods"]),
        ((260, 270, 300), 3, ["chicks", "broods", "places"]),
        ((5, 6, 7), 14, ["chicks"]),  # the largest set is never global
    ],
)
def test_small_sets_of_blocks_are_global_while_that_is_cheap(counts, num_global, sets):
    arrow = Bordered(nested(*counts)).arrow
    assert arrow.num_global == num_global and sorted(one.name for one in arrow.sets) == sorted(sets)
