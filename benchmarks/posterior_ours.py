"""Our fits as records for lines: what they found, what they cost, and what they say of themselves."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import curvi
import posterior_clock as clock
from curvi.diagnostics.weighted_draws import LOOKS
from curvi.estimate.sampling import FINAL_DRAWS
from curvi.family.shapes import has_skew
from peer_methods import Gaussian
from peer_problems import Flat
from posterior_errors import Judge, errors, number

NUM_DRAWS = 20_480
# What is handed to `curvi.fit` beside target and key.
OPTIONS: dict[str, dict[str, Any]] = {
    "mean_field": {"family": "mean_field"},
    "full_rank": {"family": "full_rank", "tolerance": 0.05},
    "default": {},
}
NAMES = {"mean_field": "curvi mean field", "full_rank": "curvi full rank", "default": "curvi default"}
RESPONSE = "curvi mean field, linear response"
REFINE_STEPS, REFINE_PAIRS, REFINE_RATES = 2_000, 64, (0.01, 0.0003)


def verdict_warns(fit) -> bool | None:
    """Whether the fit says that its posterior may be wrong; None where it says nothing about that."""
    check = getattr(fit, "posterior_check", None)
    return None if check is None else check.warns


def fits(posterior, reference: dict, method: str, seed: int, max_seconds: float) -> Iterator[tuple[str, dict, dict]]:
    """Name, setting and record of a fit; of a mean field a second time, with the sds of its linear response."""
    target: Any = None

    def once(key):
        """A fit with its means and sds: what a user waits for."""
        fit = curvi.fit(target, key=key, progress=False, max_seconds=max_seconds, **OPTIONS[method])
        jax.block_until_ready((fit.q.params, fit.mean(), fit.sd()))
        return fit

    key, began = jax.random.key(seed), clock.now()
    target = posterior.target()
    fit = once(key)
    cold = clock.now() - began
    warm = clock.repeated(lambda: once(key))
    record = {**_said(fit), "num_latents": Flat(target).size, **clock.fields(cold, warm)}
    yield NAMES[method], OPTIONS[method], {**record, "errors": errors(reference, fit.mean(), fit.sd())}
    if method == "mean_field":
        response, cold_more, warm_more, problem = _response(fit)
        seconds = clock.fields(cold + cold_more, warm + warm_more)
        found = errors(reference, fit.mean(), response) if response else None
        outcome = problem or record["outcome"]
        # What the verdict says is about the sds of q, not about these.
        yield (
            RESPONSE,
            OPTIONS[method],
            {**record, **seconds, "outcome": outcome, "errors": found, "warns": None, "elbo": None},
        )


def _said(fit) -> dict:
    """What the fit says, and its ELBO on draws of our own, the same for every seed."""
    ratios = np.asarray(fit.log_ratios(jax.random.key(20_261), NUM_DRAWS), float)
    counts = fit.counts
    family = {"MeanField": "mean field", "FullRank": "full rank"}.get(type(fit.q).__name__, type(fit.q).__name__)
    family += ", skewed" if has_skew(fit.q) else ""
    return {
        "outcome": fit.outcome.name,
        "family": family + (", reweighted" if fit.kind == "reweighted" else ""),
        "elbo": number6(ratios.mean()),
        "elbo_se": number(ratios.std(ddof=1) / NUM_DRAWS**0.5),
        "said_elbo": [number6(fit.elbo), number(fit.elbo_se)],
        "remaining_gain": [number(fit.remaining_gain), number(fit.remaining_gain_se)],
        "calls": {"log_density": counts.log_density, "gradient": counts.gradient, "hvp": counts.hvp},
        "evaluations": counts.evaluations + _to_answer(fit),
        "khat": number(fit.khat),
        "families": [_plain(row) for row in getattr(fit, "families", None) or ()],
        "warns": verdict_warns(fit),
    }


def _to_answer(fit) -> int:
    """Values of the log density behind a reweighted answer: the look at q, and those at wider draws after it."""
    if fit.kind != "reweighted":
        return 0
    looks = [FINAL_DRAWS, *LOOKS]
    return sum(looks[: looks.index(len(fit.weighted_draws.log_weights), 1) + 1])


def _plain(row) -> dict:
    """A row of `fit.families` as words and numbers."""
    fields = row if isinstance(row, dict) else dataclasses.asdict(row)
    return {k: v if isinstance(v, str | bool | int) or v is None else number(v) for k, v in fields.items()}


def _response(fit) -> tuple[dict | None, clock.Seconds, clock.Seconds, str]:
    """Sds, their seconds cold and warm, and why there are none."""
    began = clock.now()
    try:
        sds = fit.sd("linear_response")
    except ValueError as error:
        return None, clock.now() - began, clock.Seconds(0.0, 0.0), f"no linear response: {error}"
    cold = clock.now() - began
    return sds, cold, clock.repeated(lambda: fit.sd("linear_response")), ""


def best_full_rank(posterior, reference: dict, seed: int, max_seconds: float) -> tuple[str, dict, dict]:
    """The best Gaussian that a fit at a small tolerance, and long stochastic ascent from its q, arrive at."""
    began = time.perf_counter()
    target = posterior.target()
    fit = curvi.fit(
        target, key=jax.random.key(seed), family="full_rank", tolerance=0.01, progress=False, max_seconds=max_seconds
    )
    assert isinstance(fit.q, curvi.FullRank)
    flat, size = Flat(target), fit.q.noise_size
    judge = Judge(flat)
    start = Gaussian(np.asarray(fit.q.params[:size]), np.asarray(fit.q.factor()))
    found = refine(flat, start, seed, max_seconds)
    elbos = [judge.elbo(start), judge.elbo(found)]
    kept = int(elbos[1][0] > elbos[0][0])
    record = {
        "outcome": fit.outcome.name,
        "family": "full rank",
        "elbo": number6(elbos[kept][0]),
        "elbo_se": number(elbos[kept][1]),
        "refined_gain": number(elbos[1][0] - elbos[0][0]),
        "errors": errors(reference, *judge.moments((start, found)[kept])),
        "cold_seconds": time.perf_counter() - began,
    }
    return "long full rank", {"tolerance": 0.01, "steps": REFINE_STEPS, "pairs": REFINE_PAIRS}, record


def refine(flat: Flat, start: Gaussian, seed: int, max_seconds: float) -> Gaussian:
    """Adam at a falling rate in the whitened coordinates of the start, on fresh mirrored draws at each step."""
    size, mean, root = flat.size, jnp.asarray(start.mean), jnp.asarray(start.cholesky)
    schedule = optax.exponential_decay(REFINE_RATES[0], REFINE_STEPS, REFINE_RATES[1] / REFINE_RATES[0])
    optimiser = optax.adam(schedule)

    def neg_elbo(params, data, noise):
        delta, lower, log_diagonal = params
        inner = jnp.tril(lower, -1) + jnp.diag(jnp.exp(log_diagonal))
        step = noise @ (root @ inner).T
        centre = mean + root @ delta
        value = lambda z: flat(data, z)  # noqa: E731
        values = jax.lax.map(value, jnp.concatenate([centre + step, centre - step]), batch_size=2 * REFINE_PAIRS)
        return -values.mean() - log_diagonal.sum()

    @jax.jit
    def advance(data, params, state, key):
        noise = jax.random.normal(key, (REFINE_PAIRS, size))
        update, state = optimiser.update(jax.grad(neg_elbo)(params, data, noise), state)
        return optax.apply_updates(params, update), state

    params = jnp.zeros(size), jnp.zeros((size, size)), jnp.zeros(size)
    state, began = optimiser.init(params), time.perf_counter()
    for index in range(REFINE_STEPS):
        params, state = advance(flat.data, params, state, jax.random.fold_in(jax.random.key(seed), index))
        if index % 50 == 0 and time.perf_counter() - began > max_seconds:
            break
    delta, lower, log_diagonal = jax.block_until_ready(params)
    inner = jnp.tril(lower, -1) + jnp.diag(jnp.exp(log_diagonal))
    return Gaussian(np.asarray(mean + root @ delta), np.asarray(root @ inner))


def number6(value) -> float | None:
    """A number for a line to a ten-thousandth: ELBOs are compared by differences."""
    return round(float(value), 4) if np.isfinite(value) else None
