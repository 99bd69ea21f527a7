"""When a correction has gained less than it promised: noise explains a little, curvature that is too flat the rest."""

import types

import numpy as np
import pytest

from curvi.methods.growing_draws.enough_draws import fell_short, has_lost


@pytest.mark.parametrize(
    ("before", "after", "short", "lost"),
    [
        (np.zeros(0), [-10.0, 0.1], False, False),  # the first correction
        ([-10.0, 0.02, 1.0], [-9.1, 0.02], False, False),
        ([-10.0, 0.02, 1.0], [-10.0, 0.02], True, False),  # to and fro
        ([-10.0, 0.1, 1.0], [-10.0, 0.1], False, False),  # noise may hide it
        ([-10.0, 0.02, 0.05], [-10.0, 0.02], False, False),  # next to nothing was promised
        ([-10.0, 0.02, 1.0], [-10.3, 0.02], True, True),
        ([-10.0, 0.0, 0.0], [-10.0, 0.0], False, False),  # no step was taken
    ],
)
def test_a_correction_that_gains_less_than_it_promised(before, after, short, lost):
    state = types.SimpleNamespace(last_value=np.asarray(before, float))
    assert fell_short(state, np.array(after)) == short  # pyright: ignore[reportArgumentType]
    assert has_lost(state, np.array(after)) == lost  # pyright: ignore[reportArgumentType]
