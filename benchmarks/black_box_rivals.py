"""Rivals that see values alone: adaptive importance sampling with a full covariance, and Adam on the score gradient.

Both work in unconstrained coordinates, a row per draw. Each yields, as often as its answer changes, the calls spent and
its means and sds: what they would be worth to somebody who knew when to stop.
"""

import numpy as np

_LEAST = 1e-10  # share of the identity that keeps a covariance definite


def importance_sampling(log_density, mean, start, size, rate, window, share, rng, most):
    """Populations of `size` draws from a normal distribution that follows their weighted mean and covariance, as in
    CMA-ES (Hansen and Ostermeier 2001) and adaptive multiple importance sampling (Cornuet et al. 2012).

    The first has the sd `start`. The weights are those of the mixture of the last `window` populations. Where fewer
    than `share` of the draws of a population, or two a dimension, would be effective, they are tempered until so many
    are; `rate` is the share of the new moments in the next proposal. The answer is that of the whole weights.
    """
    dimension = len(mean)
    scale, spent, kept = start**2 * np.eye(dimension), 0, []
    while spent < most:
        root = np.linalg.cholesky(scale + _LEAST * np.trace(scale) * np.eye(dimension))
        x = mean + rng.normal(size=(size, dimension)) @ root.T
        kept = [*kept, (x, log_density(x), mean, root)][-window:]
        spent += size
        draws = np.concatenate([one[0] for one in kept])
        values = np.concatenate([one[1] for one in kept])
        mixture = np.logaddexp.reduce([_log_normal(draws, *one[2:]) for one in kept], 0) - np.log(len(kept))
        logs = np.where(np.isfinite(values), values - mixture, -np.inf)
        found, covariance = _moments(draws, _weights(logs, 1.0))
        yield spent, found, np.sqrt(np.diag(covariance))
        target = max(share * size, 2.0 * dimension)
        weights = _weights(logs, _power(logs, target))
        if _effective(weights) < target / 2:
            continue
        found, covariance = _moments(draws, weights)
        mean, scale = (1 - rate) * mean + rate * found, (1 - rate) * scale + rate * covariance


def _log_normal(x, mean, root):
    e = np.linalg.solve(root, (x - mean).T)
    return -0.5 * np.sum(e**2, 0) - np.log(np.diag(root)).sum()


def _weights(logs, power):
    with np.errstate(invalid="ignore"):
        w = np.exp(power * (logs - logs.max()))
    w = np.where(np.isfinite(w), w, 0.0)
    return w / max(w.sum(), 1e-300)


def _effective(weights):
    return 1 / max(np.sum(weights**2), 1e-300)


def _power(logs, target):
    """The largest power of the weights, at most one, at which so many draws are effective."""
    if _effective(_weights(logs, 1.0)) >= target:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _effective(_weights(logs, middle)) >= target else (low, middle)
    return low


def _moments(x, weights):
    mean = weights @ x
    off = x - mean
    return mean, (off.T * weights) @ off


def score_adam(log_density, mean, start, num_draws, rates, rng, most):
    """Adam on the score gradient of the ELBO of full-rank normals with a leave-one-out baseline (Ranganath et al. 2014,
    Kingma and Ba 2015), one run for each of the rates side by side; yields calls of one run, means and sds of all.

    The gradient is whitened, which is kind to it: steps in units of q, invariant to the condition of the posterior.
    """
    count, dimension = len(rates), len(mean)
    rates = np.asarray(rates)
    place, root = np.tile(mean, (count, 1)), np.tile(start * np.eye(dimension), (count, 1, 1))
    moments = [np.zeros((count, dimension + dimension**2)) for _ in range(2)]
    rows = np.tril_indices(dimension)
    spent, number = 0, 0
    while spent < most:
        e = rng.normal(size=(count, num_draws, dimension))
        x = place[:, None] + np.einsum("rij,rsj->rsi", root, e)
        values = log_density(x.reshape(-1, dimension)).reshape(count, num_draws)
        spent, number = spent + num_draws, number + 1
        log_q = -0.5 * np.sum(e**2, -1) - np.log(np.abs(np.diagonal(root, axis1=1, axis2=2))).sum(-1)[:, None]
        signal = np.where(np.isfinite(values), values, -1e10) - log_q
        signal = (signal - signal.mean(1, keepdims=True)) / (num_draws - 1)
        slope = np.einsum("rs,rsi->ri", signal, e)
        bent = np.einsum("rs,rsi,rsj->rij", signal, e, e)
        grad = np.concatenate([slope, np.tril(bent).reshape(count, -1)], 1)
        moments[0] = 0.9 * moments[0] + 0.1 * grad
        moments[1] = 0.999 * moments[1] + 0.001 * grad**2
        step = moments[0] / (1 - 0.9**number) / (np.sqrt(moments[1] / (1 - 0.999**number)) + 1e-8)
        step = rates[:, None] * step
        lower = np.zeros((count, dimension, dimension))
        part = step[:, dimension:].reshape(count, dimension, dimension)
        lower[:, rows[0], rows[1]] = part[:, rows[0], rows[1]]
        diagonal = np.exp(np.diagonal(lower, axis1=1, axis2=2))
        lower[:, np.arange(dimension), np.arange(dimension)] = diagonal - 1
        place = place + np.einsum("rij,rj->ri", root, step[:, :dimension])
        root = root + root @ lower
        if number % 10 == 0:
            yield spent, place, np.sqrt(np.sum(root**2, -1))
