"""The names of the shapes that marginals may have, and of families with such marginals."""

NORMAL, SKEWED = "normal", "sinh_arcsinh"
MARGINALS = (NORMAL, SKEWED)


_SKEWED = f" + {SKEWED}"  # after the name of a family


def skewed_name(name: str) -> str:
    """The name of a family with skewed marginals."""
    return name + _SKEWED


def is_skewed_name(name: str) -> bool:
    """Whether this is the name of a family with skewed marginals."""
    return name.endswith(_SKEWED)


def normal_name(name: str) -> str:
    """The name of the family, whatever its marginals."""
    return name.removesuffix(_SKEWED)


def has_skew(q) -> bool:
    """Whether marginals of q have a skewness and tails of their own."""
    return getattr(q, "skewed", False)


def check_marginals(marginals: str) -> str:
    """The name; ValueError where there are no such marginals."""
    if marginals not in MARGINALS:
        raise ValueError(f"marginals must be one of {', '.join(MARGINALS)}; got {marginals!r}")
    return marginals
