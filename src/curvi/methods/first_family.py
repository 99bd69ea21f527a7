"""The family that a fit is asked for, and the q that it begins with."""

import dataclasses

import jax

from curvi.family import FAMILIES, Family, LowRank, MeanField
from curvi.family.path import HostPath
from curvi.family.shapes import SKEWED, check_marginals, has_skew, is_skewed_name, normal_name, skewed_name
from curvi.methods.rungs import MEAN_FIELD, RUNGS
from curvi.model.target import AbstractTarget
from curvi.record.checkpoint import Checkpoint

AUTO = "auto"
_ON_THE_WAY = {one.name for one in RUNGS}  # what a mean field may become


def check_family(family: Family | str | None, target: AbstractTarget) -> None:
    """Raise ValueError unless this is a name of a family or an instance for the target."""
    if family is None or (isinstance(family, str) and family in (AUTO, *FAMILIES)):
        return
    if isinstance(family, str):
        raise ValueError(f"family must be one of {', '.join((AUTO, *FAMILIES))}, or an instance; got {family!r}")
    if isinstance(family, type) and issubclass(family, Family):
        raise ValueError(f"family must be a name or an instance, such as {family.__name__}(target); got the class")
    if not isinstance(family, Family):
        raise ValueError(f"family must be a name or a curvi.MeanField of the target; got {type(family).__name__}")
    if family.latents != target.latents:
        kind = type(family).__name__
        raise ValueError(f"family was made for another target; make a {kind} of this one, or pass the name of a family")


def names_of(family: Family | str | None, marginals: str | None = None) -> tuple[str, ...]:
    """The names of the families that a fit may choose from; none where it is given an instance. ValueError where that
    has other marginals than are asked for.
    """
    if marginals is not None:
        check_marginals(marginals)
    if isinstance(family, LowRank) and family.asked is None and not family.begun:
        return (skewed_name("low_rank") if family.skewed else "low_rank",)  # its rank is that of the prediction
    if isinstance(family, Family):
        if marginals is not None and has_skew(family) != (marginals == SKEWED):
            kind = type(family).__name__
            raise ValueError(
                f"marginals={marginals!r} is not what the {kind} has that is given as family; leave marginals out, and "
                f"make it with {kind}(target, marginals={marginals!r}), or of the q of a fit with q.with_skew()"
            )
        return ()
    free = family in (None, AUTO)
    names = tuple(FAMILIES) if free else (str(family),)
    skewed = tuple(skewed_name(name) for name in names)
    if marginals == SKEWED:
        return skewed
    return (*names, *skewed) if free and marginals is None else names


def asked_for(families: tuple[str, ...]) -> str | None:
    """The only family that is allowed, whatever its marginals, unless it is the one to begin with."""
    names = {normal_name(name) for name in families}
    return names.pop() if len(names) == 1 and MEAN_FIELD not in names else None


def skewed_from_start(target: AbstractTarget, q: Family, families: tuple[str, ...], method) -> Family:
    """The q to begin with where marginals are to be skewed: skewed if the method does not do so on its way, from a
    normal mean field, which is easier to climb with.
    """
    if not families or not all(map(is_skewed_name, families)):
        return q
    others = any(normal_name(name) != MEAN_FIELD for name in families)
    if has_skew(q) or (method.skews and isinstance(q.path, HostPath) and others):
        return q
    asked = asked_for(families)
    q = q if asked is None else FAMILIES[asked](target)
    return q.with_skew()  # pyright: ignore[reportAttributeAccessIssue]


def first_q(target: AbstractTarget, families: tuple[str, ...]) -> Family:
    """The q to start from: a mean field, which may become another family, or the one that was asked for where it
    cannot; ValueError where the target has none of that family.
    """
    q = MeanField(target)
    if (name := asked_for(families)) is None:
        return q
    asked = FAMILIES[name](target)
    return q if q.reparameterised and name in _ON_THE_WAY else asked


def rebound_to(target: AbstractTarget, checkpoint: Checkpoint | None) -> Checkpoint:
    """The checkpoint of a fit that is resumed, every q in its state over this target, which may be a new object."""
    assert checkpoint is not None
    rebind = lambda node: node.rebound_to(target) if isinstance(node, Family) else node  # noqa: E731
    state = jax.tree.map(rebind, checkpoint.state, is_leaf=lambda node: isinstance(node, Family))
    return dataclasses.replace(checkpoint, state=state)
