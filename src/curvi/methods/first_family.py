"""The family that a fit is asked for, and the q that it begins with."""

from curvi.family import FAMILIES, Family, LowRank, MeanField
from curvi.methods.rungs import MEAN_FIELD, RUNGS
from curvi.model.target import AbstractTarget

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


def names_of(family: Family | str | None) -> tuple[str, ...]:
    """The names of the families that a fit may choose from; none where it is given an instance."""
    if isinstance(family, LowRank) and family.asked is None and not family.begun:
        return ("low_rank",)  # its rank is that of the prediction
    if isinstance(family, Family):
        return ()
    return tuple(FAMILIES) if family in (None, AUTO) else (str(family),)


def asked_for(families: tuple[str, ...]) -> str | None:
    """The only family that is allowed, unless it is the one to begin with."""
    return families[0] if len(families) == 1 and families[0] != MEAN_FIELD else None


def first_q(target: AbstractTarget, families: tuple[str, ...]) -> Family:
    """The q to start from: a mean field, which may become another family, or the one that was asked for where it
    cannot; ValueError where the target has none of that family.
    """
    q = MeanField(target)
    if (name := asked_for(families)) is None:
        return q
    asked = FAMILIES[name](target)
    return q if q.reparameterised and name in _ON_THE_WAY else asked
