"""Families that cannot be: what was given, what is possible and what to do instead."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions.constraints as constraints
import pytest

from curvi import Banded, LowRank, MeanField, Target


def target(size: int) -> Target:
    return Target(lambda t: -jnp.sum(t["x"] ** 2) / 2 - t["s"] ** 2, {"x": np.zeros(size - 1), "s": np.array(0.0)})


def with_bits() -> Target:
    start, support = {"x": np.zeros(4), "bit": np.array(0)}, {"bit": constraints.boolean}
    return Target(lambda t: -jnp.sum(t["x"] ** 2) + t["bit"], start, support)


@pytest.mark.parametrize(
    ("size", "rank", "message"),
    [
        (10, 7, "rank 7 is above the Ledermann bound of 6 in 10 dimensions.*take rank at most 6, or FullRank"),
        (5, 3, "bound of 2 in 5 dimensions"),
        (2, 1, "bound of 0 in 2 dimensions.*use FullRank"),
        (10, 0, "rank must be a positive integer or None; got 0"),
        (10, 2.0, "rank must be a positive integer or None; got 2.0"),
        (10, True, "rank must be a positive integer or None; got True"),
    ],
)
def test_a_rank_beyond_the_bound_is_refused(size, rank, message):
    with pytest.raises(ValueError, match=message):
        LowRank(target(size), rank=rank)
    LowRank(target(10), rank=6)


@pytest.mark.parametrize("make", [lambda q: np.zeros((10, 7)), lambda q: np.zeros((9, 2))])
def test_factors_of_another_shape_are_refused(make):
    q = MeanField(target(10))
    with pytest.raises(ValueError, match=r"above the Ledermann bound of 6|expected factors of shape"):
        LowRank.of(q, make(q))


def pair() -> Target:
    start = {"level": np.zeros(6), "slope": np.zeros(6), "short": np.zeros(3), "s": np.array(0.0)}
    return Target(lambda t: -sum(jnp.sum(x**2) for x in t.values()) / 2, start)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"width": 15},
            "width must be less than the length of the chain, 15; got 15: take a smaller width, or Full",
        ),
        ({"order": ["level", "slope"], "width": 12}, "the length of the chain, 12; got 12"),
        ({"width": 0}, "width must be a positive integer, how many elements each is tied to; got 0"),
        ({"width": 1.5}, "width must be a positive integer"),
        ({"order": ["level", "speed"]}, "order names an unknown latent 'speed'; the target has level, slope, short, s"),
        ({"order": ["level", "level"]}, "order names a latent twice"),
        ({"order": ["level", "short"]}, "must be equally long; they have level 6, short 3"),
        ({"order": "level"}, "order must be a list of names of latents"),
        ({"order": []}, "order must be a list of names of latents"),
    ],
)
def test_a_chain_that_cannot_be_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Banded(pair(), **settings)
    Banded(pair(), order=["level", "slope"], width=11)


def test_a_chain_of_scalars_alone_names_its_remedy():
    scalars = Target(lambda t: -(t["a"] ** 2) - t["b"] ** 2, {"a": np.array(0.0), "b": np.array(0.0)})
    with pytest.raises(ValueError, match='order=\\["a", "b", "c"\\], or use FullRank'):
        Banded(scalars)
    Banded(scalars, order=["a", "b"])


@pytest.mark.parametrize("make", [lambda t: Banded(t, order=["x", "bit"]), lambda t: Banded(t, order=["bit"])])
def test_discrete_latents_have_no_place_in_a_chain(make):
    with pytest.raises(ValueError, match="latent 'bit' of order is discrete: leave it out, it is independent"):
        make(with_bits())
