"""Python functions for worker processes, which must be able to import them."""

import os
import time
from pathlib import Path

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


def dies_far_out(theta):
    """Ends its process where x[0] is large, unless it is the process of the tests."""
    if theta["x"][0] > 0.9:
        os._exit(7)
    return quadratic(theta)


def dies_once(theta):
    """Ends its process the first time that a file of the environment is not there yet."""
    mark = Path(os.environ["CURVI_TEST_MARK"])
    if not mark.exists():
        mark.touch()
        os._exit(7)
    return quadratic(theta)
