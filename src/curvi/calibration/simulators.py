"""What simulates parameters and data from a prior. Modelling languages put theirs in here (`curvi.adapters`)."""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Simulated:
    """True values and data of all simulations, and how they are fitted.

    Attributes
    ----------
    truths
        Arrays by name, with a first axis for the simulations.
    model, data, options
        What `fit_many` takes: a model, its stacked data, and further arguments by name.
    """

    truths: dict[str, np.ndarray]
    model: Callable
    data: tuple
    options: dict


# (model, args, named arguments, observed, key, num_simulations) -> Simulated
SIMULATORS: dict[str, Callable[..., Simulated]] = {}


def simulate_pair(simulate, log_density, init, supports, key, num_simulations: int) -> Simulated:
    """Simulations of a pair of functions, `simulate(key)` for latents and data, and `log_density(theta, data)`."""
    keys = jax.random.split(key, num_simulations)
    try:
        found = jax.device_get(jax.jit(jax.vmap(simulate))(keys))
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):
        # numpy and branches are fine, too.
        rows = [jax.tree.map(np.asarray, simulate(one)) for one in keys]
        found = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[0], dict):
        raise ValueError("simulate(key) must return a pair: a dict of latents by name, and the data")
    truths, data = found
    if missing := sorted(set(init) - set(truths)):
        raise ValueError(f"simulate(key) returned no value of {', '.join(missing)}, which init names")
    for name, value in init.items():
        if (shape := truths[name].shape[1:]) != np.shape(value):
            raise ValueError(f"simulate(key) gives '{name}' the shape {shape}; init gives it {np.shape(value)}")
    # In a dict every array has the axis of the simulations, whatever the tree is.
    leaves, tree = jax.tree.flatten(data)
    stacked = {f"data[{at}]": leaf for at, leaf in enumerate(leaves)}

    def of_leaves(theta, stacked):
        return log_density(theta, jax.tree.unflatten(tree, list(stacked.values())))

    options = {"init": init, "supports": supports}
    return Simulated({name: np.asarray(truths[name]) for name in init}, of_leaves, (stacked,), options)
