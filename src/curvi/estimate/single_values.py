"""The gain from single values of discrete factors that a quadratic model of the ELBO misses.

Let A_v = E[r | x_f = v] - E[r] be the advantage of the value v of factor f, r = ln p - ln q. With all other factors
held fixed, the best factor f is proportional to q_v exp(A_v), and gains

    ln sum_v q_v exp(A_v),        to second order  sum_v q_v A_v^2 / 2.

A value with q_v = 1e-8 and A_v = 18 nats adds 0.5 nats to the first and almost nothing to the second. The regression
gives A_v, since whitened scores represent E[r | x_f] - E[r] exactly: A_v = b' s~(v) with b the coefficients of the
scores of f. q_v follows from s~(v)' s~(v) = 1 / q_v - 1.
"""

import numpy as np

_MOST_NOISE = 4.0  # largest variance of A_v, in nats^2; beyond it A_v is unknown
_MOST_WORTH = 500.0  # nats: larger ones overflow


def gain_beyond(scores, row_owner, param_owner, linear, covariance) -> tuple[float, float]:
    """The gain in nats beyond the quadratic model, summed over the discrete factors, and its standard error.

    `scores` are the whitened scores of the rows of `every_value`, `linear` and `covariance` those of the regression.
    The bias of exp(A_v) from noise is removed. The noise enters the error to first order in all values jointly, which
    cancels at the optimum, and to higher orders in each value.
    """
    if not np.all(np.isfinite(covariance)):
        return np.inf, np.inf
    own = np.where(row_owner[:, None] == param_owner, scores, 0.0)
    probability = 1 / (1 + np.sum(own**2, 1))
    worth = own @ linear
    noise = np.minimum(np.sum(own @ covariance * own, 1), _MOST_NOISE)
    weight = probability * np.exp(np.minimum(worth - noise / 2, _MOST_WORTH))
    total = np.bincount(row_owner, weight)
    discrete = total > 0
    quadratic = np.bincount(param_owner, linear**2 - np.diag(covariance))[: len(total)] / 2
    beyond = np.where(discrete, np.log(np.where(discrete, total, 1.0)) - quadratic, 0.0)
    # Only positive terms count: a factor that gains less than the model predicts does not offset others.
    counted = (beyond > 0)[row_owner]
    share = np.where(counted, weight / total[row_owner], 0.0)
    slope = (share - np.where(counted, probability * worth, 0.0)) @ own
    variance = slope @ covariance @ slope + np.sum(share**2 * (np.expm1(noise) - noise))
    return float(np.sum(beyond[beyond > 0])), float(np.sqrt(max(variance, 0.0)))
