"""Statistical assertions on fixed seeds."""

import numpy as np


def z_scores(samples) -> np.ndarray:
    """Mean over standard error of the mean, for every entry after the first axis, the independent samples.

    The error is kept above the rounding of the samples: entries that are constantly zero up to rounding pass,
    entries that are constantly something else do not.
    """
    samples = np.asarray(samples)
    wide = samples.astype(np.float64)
    error = wide.std(axis=0, ddof=1) / np.sqrt(wide.shape[0])
    eps = np.finfo(samples.dtype).eps if np.issubdtype(samples.dtype, np.floating) else 0.0
    floor = 10 * eps * np.abs(wide).max(axis=0) + np.finfo(np.float64).tiny
    return wide.mean(axis=0) / np.maximum(error, floor)


def assert_zero_mean(samples, max_z: float = 4.5) -> None:
    """Raise AssertionError unless every mean over the first axis is within `max_z` standard errors of zero.

    A true zero exceeds 4.5 with probability 7e-6: a fixed seed that passes is no lucky one.
    """
    z = np.abs(z_scores(samples))
    assert np.all(z <= max_z), f"mean is {np.max(z):.1f} standard errors from zero, allowed are {max_z}"
