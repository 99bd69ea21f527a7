"""Targets that return their factors by name, with latents that belong to the rows of a plate.

A local latent z has one entry per row, and row i of it affects only row i of the factors named for it (the assignment
of a data point to a component affects only the likelihood of that point). Given the other, global latents its rows are
independent, and one evaluation with every row set to the same value k gives the factors of all rows at k: one
evaluation per value of z replaces sampling it (Titsias and Lazaro-Gredilla 2015).
"""

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi.model import support as supports_of
from curvi.model.latents import Latent, check_order, read_latents
from curvi.model.location_scale import LocationScale, read_location_scale
from curvi.model.origin import Origin
from curvi.model.target import AbstractTarget
from curvi.model.tracing import convert, trace_outputs


class FactoredTarget(AbstractTarget):
    """A log density as a dict of named terms, some of them with one entry per row.

    Parameters
    ----------
    log_factors
        Takes the dict of latents, returns a dict of arrays by name; their sum is ln p(theta, X).
    init, supports, order, outputs, origin, location_scale
        As for `Target`.
    local
        The names of the row factors that each local latent affects, by the name of the latent: one name or several. A
        local latent is a vector of bits or bounded integers with one entry per row; its factors have the same shape.
    """

    latents: tuple[Latent, ...] = eqx.field(static=True)
    init: dict[str, Array]
    order: int = eqx.field(static=True)
    outputs: Callable | None
    factors: Callable
    location_scale: tuple[LocationScale, ...]
    local: tuple[tuple[str, tuple[str, ...]], ...] = eqx.field(static=True)
    origin: Origin | None = eqx.field(static=True)

    def __init__(
        self,
        log_factors,
        init,
        supports=None,
        order=0,
        *,
        local: Mapping,
        outputs=None,
        origin=None,
        location_scale=None,
    ):
        self.origin = origin
        self.latents, self.init = read_latents(init, supports)
        self.order = check_order(order)
        self.outputs = trace_outputs(outputs, self.init)
        self.location_scale = read_location_scale(location_scale, self.latents, self.init)
        if not callable(log_factors):
            raise ValueError(f"log_factors must be a function of a dict of latents; got {type(log_factors).__name__}")
        self.factors = convert(log_factors, self.init)
        found = jax.eval_shape(self.factors, self.init)
        if not isinstance(found, dict) or not all(hasattr(term, "shape") for term in found.values()):
            raise ValueError(f"log_factors must return a dict of arrays by name; it returned {type(found).__name__}")
        named = {name: (terms,) if isinstance(terms, str) else tuple(terms) for name, terms in local.items()}
        self.local = tuple(named.items())
        _check_local(named, {latent.name: latent for latent in self.latents}, found)

    def terms(self, theta):
        """The factors by name."""
        return self.factors(theta)

    def row_factors(self, theta) -> tuple[dict[str, Float[Array, " n"]], Float[Array, ""]]:
        """The row factors of each local latent, summed over their names; and the sum of all other factors."""
        found = self.factors(theta)
        rows = {name: jnp.asarray(sum(found[term] for term in terms)) for name, terms in self.local}
        taken = {term for _, terms in self.local for term in terms}
        rest = [jnp.sum(term) for name, term in found.items() if name not in taken]
        return rows, sum(rest, jnp.zeros((), self.dtype))

    def batch(self, key):
        return self.full()

    def full(self):
        def log_density(theta):
            rows, rest = self.row_factors(theta)
            return rest + sum(jnp.sum(part) for part in rows.values())

        return log_density


def _check_local(named, latents, found) -> None:
    if not named:
        raise ValueError("local names no latent; without local latents, use Target")
    used: dict[str, str] = {}
    for name, terms in named.items():
        if name not in latents:
            raise ValueError(f"local names '{name}', which is not in init; init has {', '.join(latents)}")
        latent = latents[name]
        if len(latent.shape) != 1 or not is_finite(latent):
            raise ValueError(
                f"local latent '{name}' must be a vector of bits or bounded integers, one a row; it has shape "
                f"{latent.shape} and support {supports_of.describe(latent.support)}"
            )
        for term in terms:
            if term not in found:
                raise ValueError(f"'{name}' is said to touch factor '{term}'; log_factors returned {', '.join(found)}")
            if found[term].shape != latent.shape:
                raise ValueError(
                    f"factor '{term}' must have one entry a row of '{name}', shape {latent.shape}; "
                    f"it has shape {found[term].shape}"
                )
            if term in used:
                raise ValueError(
                    f"factor '{term}' is named for '{used[term]}' and for '{name}'; join them to one latent"
                )
            used[term] = name


def is_finite(latent: Latent) -> bool:
    return supports_of.is_boolean(latent.support) or supports_of.integer_range(latent.support) is not None


def num_values(latent: Latent) -> tuple[int, int]:
    """Lowest value and number of values of a finite latent."""
    lowest, highest = supports_of.integer_range(latent.support) or (0, 1)
    return lowest, highest - lowest + 1


def check_rows(target: FactoredTarget) -> int:
    """The evaluations spent; raises ValueError if a local latent affects another row or another factor."""
    rng = np.random.default_rng(0)
    base = {latent.name: target.init[latent.name] for latent in target.latents}
    for latent in target.latents:
        if latent.name in dict(target.local):
            # Start from mixed values: at zeros, a product of neighbours would not be detected.
            lowest, count = num_values(latent)
            base[latent.name] = jnp.asarray(lowest + rng.integers(count, size=latent.shape), jnp.int32)
    rows, rest = (jax.tree.map(np.asarray, part) for part in _terms(target, base))
    for name, _ in target.local:
        latent = next(latent for latent in target.latents if latent.name == name)
        lowest, count = num_values(latent)
        even = np.arange(latent.shape[0]) % 2 == 0
        value = np.asarray(base[name])
        changed = jnp.asarray(np.where(even, lowest + (value - lowest + 1) % count, value), jnp.int32)
        moved, moved_rest = (jax.tree.map(np.asarray, part) for part in _terms(target, {**base, name: changed}))
        same = np.allclose(moved[name][~even], rows[name][~even], rtol=1e-5, equal_nan=True)
        others = all(np.allclose(moved[other], rows[other], rtol=1e-5) for other in rows if other != name)
        if not (same and others and np.allclose(moved_rest, rest, rtol=1e-5)):
            raise ValueError(
                f"local latent '{name}' touches more than its own row of its factors: changing even rows of it changed "
                "odd rows, or another factor; leave it out of `local`, or name all factors that it touches"
            )
    return 1 + len(target.local)


@eqx.filter_jit
def _terms(target, theta):
    return target.row_factors(theta)
