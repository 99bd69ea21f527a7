"""A black box: rates of an epidemic from a simulator in NumPy that can only be called.

Influenza in a boarding school, 1978. The likelihood is simulated anew at every call, and so is noisy.
"""

import jax
import numpy as np
from numpyro.distributions import constraints

import curvi

jax.config.update("jax_enable_x64", True)

DAYS = 14
POPULATION = 763
# Influenza in an English boarding school, boys in bed on days 1 to 14: British Medical Journal, 4 March 1978, page 587.
IN_BED = np.array([3, 8, 26, 76, 225, 298, 258, 233, 189, 128, 68, 29, 14, 4])


def simulate(rng: np.random.Generator, infection: float, recovery: float, num_paths: int = 64) -> np.ndarray:
    """Infected on each day in paths of a discrete-time SIR epidemic with binomial transitions, (paths, days)."""
    susceptible, infected = np.full(num_paths, POPULATION - 3), np.full(num_paths, 3)
    days = []
    for _ in range(DAYS):
        days.append(infected)
        caught = rng.binomial(susceptible, -np.expm1(-infection * infected / POPULATION))
        recovered = rng.binomial(infected, -np.expm1(-recovery))
        susceptible, infected = susceptible - caught, infected + caught - recovered
    return np.stack(days, 1)


def log_density(theta) -> float:
    """ln prior plus a synthetic likelihood of the square roots of the counts (Wood 2010), of fresh simulations.

    The square root makes the spread of counts even; each day is normal around the mean of the simulated paths, with
    the variance of the paths and one of observation.
    """
    infection, recovery = float(theta["infection"]), float(theta["recovery"])
    roots = np.sqrt(simulate(np.random.default_rng(), infection, recovery))
    mean, variance = roots.mean(0), roots.var(0) + 1.0
    log_likelihood = -0.5 * np.sum((np.sqrt(IN_BED) - mean) ** 2 / variance + np.log(2 * np.pi * variance))
    log_prior = -0.5 * (np.log(infection / 1.5) ** 2 + np.log(recovery / 0.5) ** 2) - np.log(infection * recovery)
    return float(log_likelihood + log_prior)


def epidemic(workers: int = 0) -> curvi.Target:
    """Rates of infection and recovery, from noisy values of a simulated log likelihood."""
    return curvi.Target(
        log_density,
        {"infection": 1.5, "recovery": 0.5},
        {"infection": constraints.positive, "recovery": constraints.positive},
        order=0,
        black_box=True,
        workers=workers,
    )


# Under this test, since worker processes import the script again.
if __name__ == "__main__":
    fit = curvi.fit(epidemic(), key=jax.random.key(0), progress=False, tolerance=0.2)
    print(fit)

    mean, sd = fit.mean(), fit.sd()
    for name in ("infection", "recovery"):
        print(f"{name:<10} {mean[name]:.3f} +- {sd[name]:.3f} a day")
    print(f"reproduction number about {np.round(mean['infection'] / mean['recovery'], 1)}")
