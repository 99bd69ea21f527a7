"""Shapes and types in annotations are checked while the tests run (jaxtyping and beartype, `pyproject.toml`)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

jaxtyping = pytest.importorskip("jaxtyping")

from curvi import MeanField, Target  # noqa: E402
from curvi.curvature import BlockDiagonal  # noqa: E402
from curvi.estimate import AnchoredScore  # noqa: E402


def test_wrong_shapes_are_caught():
    blocks = BlockDiagonal((jnp.ones((3, 2, 2)),))
    wrong = {
        "a matrix for a vector": lambda: blocks.mv(jnp.ones((6, 1))),
        "integers for numbers": lambda: blocks.mv(jnp.ones(6, int)),
        "a vector for a block": lambda: BlockDiagonal((jnp.ones(3),)),
    }
    for what, call in wrong.items():
        with pytest.raises(jaxtyping.TypeCheckError):
            call()
            pytest.fail(what)


def test_right_shapes_pass():
    target = Target(lambda theta: -jnp.sum(theta["x"] ** 2), {"x": np.zeros(3)})
    q = MeanField(target)
    local = AnchoredScore(16)(target, q, jax.random.key(0))
    assert local.fisher.mv(local.grad).shape == (6,)
