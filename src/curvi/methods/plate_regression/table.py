"""Draws of the global latents with the factors of all rows at every value of their local latent."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import log_softmax

from curvi.family import Family
from curvi.model.factored import FactoredTarget, num_values

_LEAST_LOG_PROBABILITY = -30.0


@dataclasses.dataclass(frozen=True)
class Table:
    """A batch of global draws: scores, ln p - ln q without the rows, and the factors of the rows by local latent."""

    scores: np.ndarray
    rest: np.ndarray
    rows: dict[str, np.ndarray]

    def finite(self) -> bool:
        return bool(np.all(np.isfinite(self.rest)) and all(np.all(np.isfinite(part)) for part in self.rows.values()))

    def halves(self) -> "tuple[Table, Table]":
        """Two independent tables of half the draws each: even and odd draws."""
        first, second = ({name: part[i::2] for name, part in self.rows.items()} for i in (0, 1))
        ends = [(self.scores[i::2], self.rest[i::2]) for i in (0, 1)]
        return Table(*ends[0], first), Table(*ends[1], second)

    def joined(self, halves: list[np.ndarray]) -> np.ndarray:
        """One number per draw, from those of both halves."""
        out = np.empty(len(self.rest))
        for i, half in enumerate(halves):
            out[i::2] = half
        return out

    def optimism(self, log_rows) -> float:
        """Expected overestimate in nats from fitting rows to these draws: sum_n Var_q_n(error of E f_n) / 2, with the
        error from two half samples.
        """
        total = 0.0
        one, other = self.halves()
        for name in self.rows:
            p, error = np.exp(log_rows[name]), (one.rows[name].mean(0) - other.rows[name].mean(0)) / 2
            total += float(np.sum(p * error**2) - np.sum(np.sum(p * error, 1) ** 2)) / 2
        return total

    def best_rows(self) -> dict[str, np.ndarray]:
        """ln q(z_n = k) of the optimal rows given the global q of these draws."""
        means = {name: log_softmax(part.mean(0), -1) for name, part in self.rows.items()}
        return {name: log_softmax(np.maximum(part, _LEAST_LOG_PROBABILITY), -1) for name, part in means.items()}

    def response(self, log_rows) -> np.ndarray:
        """ln p - ln q of each draw, averaged over the local latents under q."""
        parts = [
            np.einsum("snk,nk->s", self.rows[name], np.exp(log_q)) - np.sum(np.exp(log_q) * log_q)
            for name, log_q in log_rows.items()
        ]
        return self.rest + sum(parts)


@eqx.filter_jit
def _tabulate(target: FactoredTarget, q: Family, key, index, size: int):
    """`size` draws of the global q: ln q, whitened scores, the other factors with the Jacobian, and the row factors of
    each local latent at each of its values, (draws, rows, values).
    """
    factor = q.fisher().factorise()
    finite = {
        latent.name: (latent, *num_values(latent)) for latent in target.latents if latent.name in dict(target.local)
    }

    def one(key):
        x = q.sample(key)
        theta, log_det = q.to_model(x)
        lows = {name: jnp.full(latent.shape, low, latent.dtype) for name, (latent, low, _) in finite.items()}
        tables, rest = {}, jnp.zeros((), q.params.dtype)
        for name, (latent, low, count) in finite.items():

            def at(value, name=name, latent=latent):
                here = {**theta, **lows, name: jnp.full(latent.shape, value, latent.dtype)}
                rows, rest = target.row_factors(here)
                return rows[name], rest

            columns, rests = jax.lax.map(at, low + jnp.arange(count))
            tables[name], rest = columns.T, rests[0]
        return q.log_prob(x), factor.solve(q.score(x)), rest + log_det, tables

    return jax.lax.map(one, jax.random.split(jax.random.fold_in(key, index), size))


def tabulate(target: FactoredTarget, q: Family, key, first: int, size: int, unit: int) -> Table:
    """A table of `size` draws of the global q, `unit` of them per compiled call, starting at call number `first`."""
    parts = []
    for index in range(first, first + size // unit):
        found = _tabulate(target, q, key, np.asarray(index, np.uint32), unit)
        parts.append(jax.tree.map(np.asarray, found))
    log_q, scores, rest, rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    rows = {name: _without_impossible(part) for name, part in rows.items()}
    return Table(scores.astype(np.float64), rest.astype(np.float64) - log_q, rows)


def _without_impossible(part: np.ndarray) -> np.ndarray:
    """Row factors (draws, rows, values) where values that are impossible in all draws get a finite low value: q gives
    them its least probability, and they do not change the ELBO.
    """
    impossible = np.all(np.isneginf(part), 0)
    if not np.any(impossible):
        return part
    lowest = np.min(np.where(impossible, np.inf, part), -1, keepdims=True)
    return np.where(impossible, lowest + _LEAST_LOG_PROBABILITY, part)
