"""The ELBO of a q on fresh draws, and the best that long climbs on many draws find in its family."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

NUM_DRAWS, ROWS_OF_DRAWS = 16_384, 2e8  # of an ELBO: fewer where the data have many rows
NUM_PAIRS, STEPS = 2_048, 1_000  # of a long climb
BATCH = 64


@eqx.filter_jit
def _pair_values(target, q, noise):
    def one(e):
        def ratio(e):
            x = q.from_normal(e)
            return q.log_joint(target.full(), x) - q.log_prob(x)

        return (ratio(e) + ratio(-e)) / 2

    return jax.lax.map(one, noise, batch_size=BATCH)


@eqx.filter_jit
def _neg_elbo(target, q, params, noise):
    def neg_elbo(params):
        moved = q.replace(params)
        each = lambda e: moved.log_joint(target.full(), moved.from_normal(e))  # noqa: E731
        return -(jax.lax.map(each, noise, batch_size=BATCH).mean() + moved.entropy())

    return jax.value_and_grad(neg_elbo)(params)


def elbo_values(fit, q, num_rows: int, seed: int = 20_261) -> np.ndarray:
    """ln p - ln q at mirrored pairs of fresh draws, the same noise for every q."""
    count = int(min(NUM_DRAWS, max(256, ROWS_OF_DRAWS / num_rows))) // 2
    noise = np.random.default_rng(seed).standard_normal((count, q.noise_size))
    return np.asarray(_pair_values(fit.target, q, noise))


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)


def refined(fit, seed: int, num_rows: int) -> tuple[float, float]:
    """What the best of two long climbs by L-BFGS gains over a fit on fresh draws, and its standard error.

    One climb starts from q, the other from q with its covariance forgotten.
    """
    noise = np.random.default_rng(seed).standard_normal((NUM_PAIRS, fit.q.noise_size))
    noise = np.concatenate([noise, -noise])

    def function(params):
        value, grad = _neg_elbo(fit.target, fit.q, jnp.asarray(params), noise)
        return float(value), np.asarray(grad, float)

    start = np.asarray(fit.q.params, float)
    forgotten = start.copy()
    forgotten[2 * fit.q.noise_size :] = 0.0
    limits = {"maxiter": STEPS, "maxfun": 2 * STEPS}
    climbs = [
        scipy.optimize.minimize(function, one, jac=True, method="L-BFGS-B", options=limits)
        for one in (start, forgotten)
    ]
    best = fit.q.replace(jnp.asarray(min(climbs, key=lambda climb: climb.fun).x, fit.q.params.dtype))
    before, after = (elbo_values(fit, q, num_rows) for q in (fit.q, best))
    return mean_and_error(after - before)
