"""Information from a PyMC model besides its log density: observations, dims and coords, predictions, likelihoods."""

import jax
import numpy as np

from curvi.model.origin import Origin


def pymc_origin(model, names, inputs, terms, predictions) -> Origin:
    """The origin of a target.

    Parameters
    ----------
    model
        The PyMC model.
    names, inputs
        Names of the latents, and their PyTensor variables.
    terms
        Takes the latents in that order, returns the log likelihoods of the observed variables, element by element.
    predictions
        Graphs of the observed variables as random functions of `inputs`.
    """
    observed = {rv.name: np.asarray(_value(model.rvs_to_values[rv])) for rv in model.observed_RVs}
    dims = {
        name: [f"{name}_dim_{at}" if axis is None else axis for at, axis in enumerate(axes)]
        for name, axes in model.named_vars_to_dims.items()
    }
    coords = {name: np.asarray(values) for name, values in model.coords.items() if values is not None}

    def predict(key, draws):
        if not observed:
            return {}
        values = [np.asarray(draws[name]) for name in names]
        likelihood = jax.jit(jax.vmap(lambda *one: terms(*one)))(*values)
        drawn = _draw(predictions, inputs, values, int(jax.random.bits(key)))
        return {
            "posterior_predictive": dict(zip(observed, drawn)),
            "log_likelihood": dict(zip(observed, map(np.asarray, likelihood))),
        }

    return Origin(observed, dims, coords, predict, _plates(names, model.named_vars_to_dims))


def _plates(names, dims) -> dict[str, dict[str, int]]:
    """For each dim, its axis in each latent that has it."""
    plates: dict[str, dict[str, int]] = {}
    for name in names:
        for at, axis in enumerate(dims.get(name, ())):
            if axis is not None:
                plates.setdefault(axis, {})[name] = at
    return plates


def _value(variable):
    """The data of an observed variable: a constant, or shared data."""
    return variable.data if hasattr(variable, "data") else variable.eval()


def _draw(graphs, inputs, values, seed: int) -> list[np.ndarray]:
    """One random value of each graph for every draw, from PyMC's own generators."""
    from pymc.pytensorf import compile as compile_with_seed
    from pytensor.configdefaults import config

    with config.change_flags(mode="FAST_COMPILE", linker="py", cxx=""):
        function = compile_with_seed(inputs, graphs, random_seed=seed, on_unused_input="ignore")
        rows = [function(*(np.asarray(one, var.dtype) for one, var in zip(row, inputs))) for row in zip(*values)]
    return [np.stack(column) for column in zip(*rows)]
