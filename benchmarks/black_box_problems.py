"""Correlated posteriors that are known by their values alone: a Gaussian, a regression on real data, and a simulator.

Each is a Python function of a dict of NumPy arrays, as a user would hand it over, beside the same log density in JAX
for the reference chains, which no method sees.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints
from sklearn.datasets import load_breast_cancer

import curvi


@dataclasses.dataclass(frozen=True)
class BlackBox:
    """A log density known by its values.

    Attributes
    ----------
    values
        The function that methods call; `noise` is the sd of its values.
    init, supports
        Where all methods start, and on what supports.
    traced
        The expectation of the same in JAX.
    """

    values: Callable
    init: dict
    supports: dict
    traced: Callable
    noise: float = 0.0

    def target(self) -> curvi.Target:
        return curvi.Target(self.values, self.init, self.supports, order=0, black_box=True)

    def differentiable(self) -> curvi.Target:
        return curvi.Target(self.traced, self.init, self.supports)


def gaussian(seed: int = 0, size: int = 10, condition: float = 1e4) -> BlackBox:
    """A Gaussian of ten dimensions, rotated at random, with variances from 10^-2 to 10^2, off the start."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(size, size)))[0]
    variances = np.geomspace(condition**-0.5, condition**0.5, size)
    precision = turn @ np.diag(1 / variances) @ turn.T
    mean = turn @ (np.sqrt(variances) * rng.normal(size=size))

    def values(theta):
        off = theta["x"] - mean
        return -0.5 * float(off @ precision @ off)

    def traced(theta):
        off = theta["x"] - mean
        return -0.5 * off @ precision @ off

    return BlackBox(values, {"x": np.zeros(size)}, {}, traced)


def tumours() -> BlackBox:
    """Logistic regression of 569 tumours, malignant or not, on eight mean features of their cells (scikit-learn):
    radius, perimeter and area are almost copies of each other.
    """
    x, y = load_breast_cancer(return_X_y=True)
    x, y = np.asarray(x)[:, :8], np.asarray(y, float)
    x = (x - x.mean(0)) / x.std(0)

    def density(np, theta):
        logits = theta["intercept"] + x @ theta["slopes"]
        prior = -0.5 * (theta["intercept"] ** 2 / 25 + np.sum(theta["slopes"] ** 2) / 25)
        return np.sum(y * logits - np.logaddexp(0.0, logits)) + prior

    init = {"intercept": np.array(0.0), "slopes": np.zeros(8)}
    return BlackBox(lambda t: float(density(np, t)), init, {}, lambda t: density(jnp, t))


# Pelts in thousands, Hudson's Bay Company, 1900 to 1920 (Howard 2009; Carpenter 2018).
HARES = np.array(
    [
        30,
        47.2,
        70.2,
        77.4,
        36.3,
        20.6,
        18.1,
        21.4,
        22,
        25.4,
        27.1,
        40.3,
        57,
        76.6,
        52.3,
        19.5,
        11.2,
        7.6,
        14.6,
        16.2,
        24.7,
    ]
)
LYNXES = np.array(
    [4, 6.1, 9.8, 35.2, 59.4, 41.7, 19, 13, 8.3, 9.1, 7.4, 8, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7, 10.1, 8.6]
)
_STEPS = 20  # of Runge and Kutta in a year


def step(np, z, rates):
    """The logarithms of hares and lynxes a twentieth of a year later (Lotka and Volterra), by Runge and Kutta."""
    born, eaten, died, fed = (rates[i] for i in range(4))

    def slope(z):
        return np.stack([born - eaten * np.exp(z[1]), fed * np.exp(z[0]) - died])

    h = 1 / _STEPS
    a = slope(z)
    b = slope(z + h / 2 * a)
    c = slope(z + h / 2 * b)
    return z + h / 6 * (a + 2 * b + 2 * c + slope(z + h * c))


def simulated(theta):
    """The path of the logarithms in NumPy, (years, 2)."""
    z, path = np.log(theta["first"]), []
    for number in range(_STEPS * (len(HARES) - 1) + 1):
        if number % _STEPS == 0:
            path.append(z)
        z = step(np, z, theta["rates"])
    return np.stack(path)


def traced_path(theta):
    """The same in JAX."""
    first, moved = jnp.log(theta["first"]), lambda z, _: (step(jnp, z, theta["rates"]), z)
    return jax.lax.scan(moved, first, None, length=_STEPS * (len(HARES) - 1) + 1)[1][::_STEPS]


def lynxes(noise: float = 0.5, seed: int = 0) -> BlackBox:
    """Hares and lynxes: four rates, two first populations and two errors of measurement (Carpenter 2018), in NumPy; a
    value is off by a normal error of half a nat, as that of a likelihood that is itself estimated.
    """
    logs = np.log(np.stack([HARES, LYNXES], 1))
    centres = np.log([0.5, 0.025, 0.8, 0.025])
    rng = np.random.default_rng(seed)

    def density(np, theta, path):
        error = theta["errors"]
        off = (logs - path) / error
        likelihood = -0.5 * np.sum(off**2) - len(logs) * np.sum(np.log(error))
        rates = -0.5 * np.sum((np.log(theta["rates"]) - centres) ** 2 + 2 * np.log(theta["rates"]))
        first = -0.5 * np.sum((np.log(theta["first"]) - np.log(10.0)) ** 2 + 2 * np.log(theta["first"]))
        errors = -0.5 * np.sum((np.log(error) + 1) ** 2 + 2 * np.log(error))
        return likelihood + rates + first + errors

    def values(theta):
        with np.errstate(over="ignore", invalid="ignore"):
            found = float(density(np, theta, simulated(theta))) + noise * rng.normal()
        return found if np.isfinite(found) else -np.inf

    init = {"rates": np.exp(centres), "first": np.array([30.0, 4.0]), "errors": np.array([0.3, 0.3])}
    supports = {name: constraints.positive for name in init}
    return BlackBox(values, init, supports, lambda t: density(jnp, t, traced_path(t)), noise)


def problems() -> dict[str, Callable[[int], BlackBox]]:
    """The problems by name, each a function of the seed of the noise of its values."""
    return {"Gaussian": lambda _: gaussian(), "tumours": lambda _: tumours(), "lynxes": lambda seed: lynxes(seed=seed)}
