"""Python functions for worker processes, which must be able to import them."""

import time

import numpy as np


def quadratic(theta):
    return -0.5 * float(np.sum((theta["x"] - 1.0) ** 2))


def raises_far_out(theta):
    if theta["x"][0] > 0.9:
        raise RuntimeError("the solver gave up")
    return quadratic(theta)


def hangs_far_out(theta):
    if theta["x"][0] > 0.9:
        time.sleep(60)
    return quadratic(theta)
