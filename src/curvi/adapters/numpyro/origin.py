"""Information from a NumPyro model besides its log density: observations, predictions, likelihoods."""

import jax
import numpy as np
import numpyro
from numpyro.infer import Predictive, log_likelihood
from numpyro.primitives import Messenger

from curvi.model.origin import Origin


class Unobserved(Messenger):
    """A handler that samples observed sites as well."""

    def process_message(self, msg):
        if msg["type"] == "sample" and msg["is_observed"]:
            msg["is_observed"], msg["value"] = False, None


def numpyro_origin(model, args, kwargs, latents, observed, plates) -> Origin:
    """The origin of a target.

    Parameters
    ----------
    model, args, kwargs
        The model and its arguments.
    latents
        Names of its latent sites.
    observed
        Observations by name; those of `factor` sites are empty, and left out like those spread over processes.
    plates
        For each plate, the axis of each latent inside.
    """
    here = lambda value: not isinstance(value, jax.Array) or value.is_fully_addressable  # noqa: E731
    data = {name: np.asarray(value) for name, value in observed.items() if np.size(value) and here(value)}

    def predict(key, draws):
        values = {name: draws[name] for name in latents}
        if not data:
            return {}
        with numpyro.validation_enabled(False):
            predicted = Predictive(Unobserved(model), posterior_samples=values, return_sites=list(data))(
                key, *args, **kwargs
            )
            terms = log_likelihood(model, values, *args, **kwargs)
        groups = {"posterior_predictive": predicted, "log_likelihood": {name: terms[name] for name in data}}
        return jax.tree.map(np.asarray, groups)

    return Origin(observed_data=data, predict=predict, plates=plates)
