"""The names of the shapes that marginals may have."""

NORMAL, SKEWED = "normal", "sinh_arcsinh"
MARGINALS = (NORMAL, SKEWED)


def check_marginals(marginals: str) -> str:
    """The name; ValueError where there are no such marginals."""
    if marginals not in MARGINALS:
        raise ValueError(f"marginals must be one of {', '.join(MARGINALS)}; got {marginals!r}")
    return marginals
