"""The gain from single values of discrete factors that a quadratic model of the ELBO misses.

Let A_v = E[r | x_f = v] - E[r] be the advantage of the value v of factor f, r = ln p - ln q. With all other factors
held fixed, the best factor f is proportional to q_v exp(A_v), and gains

    ln sum_v q_v exp(A_v),        to second order  sum_v q_v A_v^2 / 2.

A value with q_v = 1e-8 and A_v = 18 nats adds 0.5 nats to the first and almost nothing to the second. The regression
gives A_v, since whitened scores represent E[r | x_f] - E[r] exactly: A_v = b' s~(v) with b the coefficients of the
scores of f. q_v follows from s~(v)' s~(v) = 1 / q_v - 1.

Ordinary draws do not show such a value. Draws that do have one factor f set to one rare value v each, all others drawn
from q: r there is A_v and the noise of the others. With n_v draws for the value v, M in all, x is drawn from

    q(x) (1 / M) sum over f with rare x_f of n_v / q_v,      v = x_f.

What an error of A_v costs grows with q_v, and so does n_v: one for the rarest, more for those that ordinary draws show
now and then, too seldom to tell whether A_v depends on the other factors.
"""

import numpy as np

from curvi.record.plain import register
from curvi.record.pytree import pytree

RARE = 0.1  # probability below which ordinary draws may not show a value
_MORE = 16.0  # draws for a value beyond the first one, in units of the root of its probability
_MOST_NOISE = 4.0  # largest variance of A_v, in nats^2; beyond it A_v is unknown
_MOST_WORTH = 500.0  # nats: larger ones overflow


@register
@pytree
class SoughtValues:
    """Single values of discrete factors that draws were made for: the factor of each parameter, -1 where it is not
    discrete, and the number of draws.
    """

    owner: np.ndarray
    count: int

    def log_ratio(self, scores) -> np.ndarray:
        """The log density of the draws that look for the values, less ln q, by the whitened scores of each row."""
        factors = np.unique(self.owner[self.owner >= 0])
        odds = scores**2 @ (self.owner[:, None] == factors)  # 1 / q_f(x_f) - 1
        with np.errstate(divide="ignore"):
            return np.log(np.sum(num_draws(odds) * (1 + odds), 1) / self.count)


def sought_values(scores, row_owner, param_owner) -> tuple[np.ndarray, SoughtValues]:
    """A row of `every_value` for each draw that looks for a rare value, by their whitened scores, and what such draws
    are.
    """
    odds = np.sum(np.where(row_owner[:, None] == param_owner, scores, 0.0) ** 2, 1)
    rows = np.repeat(np.arange(len(odds)), num_draws(odds))
    return rows, SoughtValues(np.where(np.isin(param_owner, row_owner), param_owner, -1), len(rows))


def num_draws(odds) -> np.ndarray:
    """The number of draws for a value with these odds against it, none if it is not rare."""
    more = np.floor(_MORE / np.sqrt(1 + odds)).astype(int)
    return np.where(odds > 1 / RARE - 1, 1 + more, 0)


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
