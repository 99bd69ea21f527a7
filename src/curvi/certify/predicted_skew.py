"""What skewed marginals would add to a normal q, before they are fitted: the Newton decrement in their parameters at q.

With u the standardised draws of a normal q, R their correlations and w(u_i) what a parameter of the shape of marginal i
does to u_i, the gradient of the ELBO in it is

    E[w(u_i) (s_i d ln p / d x_i + (R^-1 u)_i)],

in which the second term, whose mean is known, takes away the noise of all that is normal. The curvature is that of a
posterior that is q: the Fisher information of the shapes. The gradients at the draws are those of a correction, so that
the prediction costs no evaluation.
"""

import numpy as np

from curvi.certify.predicted import UNKNOWN_GAIN, PredictedGain
from curvi.estimate.fixed_draws.local import FixedDrawsModel
from curvi.family.path import HostPath
from curvi.family.sinh_arcsinh_host import HostShape

LARGEST = 500  # coordinates


def predict_skew(local: FixedDrawsModel) -> PredictedGain:
    """The predicted gain of skewed marginals at the normal q of a local model on fresh draws; unknown where there are
    too few or none of their gradients were kept. Its third number is not in use.
    """
    path, slopes = local.curvature.objective.path, local.kept()
    if not isinstance(path, HostPath) or not path.gaussian or slopes is None or path.size > LARGEST:
        return UNKNOWN_GAIN
    noise, slopes = local.fixed.values[: len(slopes)], slopes[:, : path.size]
    sds = path.sds(local.params)
    rows = path.away(local.params, np.eye(noise.shape[1])).T / sds[:, None]
    correlation = rows @ rows.T
    u = noise @ rows.T
    try:
        rest = slopes * sds + np.linalg.solve(correlation, u.T).T
        shape = HostShape(np.zeros((2, path.size)))
        lower = np.linalg.inv(np.linalg.cholesky(shape.information(correlation)))
    except np.linalg.LinAlgError:
        return UNKNOWN_GAIN
    by_draw = np.concatenate([move * rest for move in shape.displacements_at(u)], 1)
    pairs = by_draw.reshape(len(by_draw) // 2, 2, -1).mean(1) @ lower.T
    mean, variance = pairs.mean(0), pairs.var(0, ddof=1) / len(pairs)
    nats = float(np.sum(mean**2 - variance)) / 2
    error = float(np.sqrt(np.sum(np.maximum(mean**2 - variance, 0) * variance + variance**2 / 2)))
    return PredictedGain(max(nats, 0.0), error, np.nan)
