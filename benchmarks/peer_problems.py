"""The posteriors on which curvi meets other libraries, each as one log density on unconstrained coordinates."""

import dataclasses
import importlib
import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import curvi
from curvi.model.target import AbstractTarget

POSTERIORDB = Path(__file__).parents[2] / "shared" / "posteriordb"
CONDITIONS = (1.0, 1e2, 1e4, 1e6)


class UnavailableError(Exception):
    """Why a problem cannot be posed here."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """A target with, where known, the moments of its posterior and a function that writes the model in PyMC."""

    name: str
    target: AbstractTarget
    reference: dict | None = None
    pymc: Callable | None = None


class Flat:
    """The log density of a target, Jacobians included, over one real vector z.

    The data of the target are an argument, so that no program has them as constants.
    """

    def __init__(self, target: AbstractTarget):
        self.q = curvi.MeanField(target)
        self.size = self.q.num_factors
        self.data, self._code = eqx.partition(target, eqx.is_array)

    def __call__(self, data, z):
        theta, log_det = self.q.to_model((z,))
        return eqx.combine(data, self._code).full()(theta) + log_det

    def outputs(self, data, z) -> dict:
        """Latents on their supports, and what the model computes from them."""
        target = eqx.combine(data, self._code)
        theta, _ = self.q.to_model((z,))
        return theta if target.outputs is None else {**theta, **target.outputs(theta)}


def pick(values: dict, name: str, lead: int = 0):
    """The element of `values` that a name such as theta[2] stands for, behind `lead` axes; None if there is none."""
    found = re.fullmatch(r"(\w+)(?:\[([\d,]+)\])?", name)
    if found is None or found[1] not in values:
        return None
    index = tuple(int(i) - 1 for i in found[2].split(",")) if found[2] else ()
    array = np.asarray(values[found[1]])
    if array.ndim - lead != len(index):
        return array[..., 0] if not index and array.shape[lead:] == (1,) else None
    return array[(..., *index)] if index else array


# -- posteriordb ------------------------------------------------------------------------------------------------------


def posteriordb(name: str) -> Problem:
    model, arguments, reference = posteriordb_model(name)
    build = _PYMC.get(name)
    target = curvi.from_numpyro(model, **arguments)
    return Problem(short(name), target, reference, None if build is None else lambda: build(arguments))


def posteriordb_model(name: str) -> tuple[Callable, dict, dict]:
    """The NumPyro model of a posterior, its arguments, and the moments of each scalar that its draws gave."""
    folder = POSTERIORDB / "open" / name
    if not folder.is_dir():
        raise UnavailableError(f"no {folder}: the posteriors are not part of this repository")
    spec = importlib.util.spec_from_file_location("posteriordb_models", POSTERIORDB / "models.py")
    assert spec is not None and spec.loader is not None
    models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)
    model, to_arguments = models.MODELS[name]
    arguments = to_arguments(json.loads((folder / "data.json").read_text()))
    reference = json.loads((folder / "reference.json").read_text())["parameters"]
    return model, arguments, reference


def full_name(short_name: str) -> str:
    """The name in posteriordb of what tables call otherwise."""
    return next(name for name, found in _SHORT.items() if found == short_name)


def short(name: str) -> str:
    """What a posterior is called in tables."""
    return _SHORT[name]


_SHORT = {
    "eight_schools-eight_schools_noncentered": "eight_schools",
    "kidiq-kidscore_interaction": "kidiq",
    "wells_data-wells_dae_inter_model": "wells",
    "garch-garch11": "garch",
    "radon_mn-radon_hierarchical_intercept_noncentered": "radon",
    "arK-arK": "arK",
    "eight_schools-eight_schools_centered": "eight_schools_centered",
    "gp_pois_regr-gp_pois_regr": "gp_pois_regr",
    "gp_pois_regr-gp_regr": "gp_regr",
    "hmm_example-hmm_example": "hmm",
    "irt_2pl-irt_2pl": "irt_2pl",
    "low_dim_gauss_mix-low_dim_gauss_mix": "gauss_mix",
    "mesquite-logmesquite_logvas": "mesquite",
    "nes2000-nes": "nes",
}


def _pymc_eight_schools(arguments):
    import pymc as pm

    y, sigma = (np.asarray(arguments[k]) for k in ("y", "sigma"))
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfCauchy("tau", 5.0)
        z = pm.Normal("theta_trans", 0.0, 1.0, shape=len(y))
        pm.Normal("obs", mu + tau * z, sigma, observed=y)
    return model


def _pymc_wells(arguments):
    import pymc as pm

    X, y = (np.asarray(arguments[k]) for k in ("X", "y"))
    with pm.Model() as model:
        alpha = pm.Flat("alpha")
        beta = pm.Flat("beta", shape=X.shape[1])
        pm.Bernoulli("obs", logit_p=alpha + pm.math.dot(X, beta), observed=y)
    return model


def _pymc_kidiq(arguments):
    import pymc as pm

    X, y = (np.asarray(arguments[k]) for k in ("X", "y"))
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=X.shape[1])
        sigma = pm.HalfCauchy("sigma", 2.5)
        pm.Normal("obs", pm.math.dot(X, beta), sigma, observed=y)
    return model


_PYMC = {
    "eight_schools-eight_schools_noncentered": _pymc_eight_schools,
    "wells_data-wells_dae_inter_model": _pymc_wells,
    "kidiq-kidscore_interaction": _pymc_kidiq,
}


# -- regressions ------------------------------------------------------------------------------------------------------


def breast_cancer() -> Problem:
    from sklearn.datasets import load_breast_cancer

    from curvi.cli.race import breast_cancer_target

    def build():
        import pymc as pm

        features, benign = map(np.asarray, load_breast_cancer(return_X_y=True))
        design = np.column_stack([np.ones(len(benign)), (features - features.mean(0)) / features.std(0)])
        with pm.Model() as model:
            beta = pm.Normal("beta", 0.0, 1.0, shape=design.shape[1])
            # Not Bernoulli(logit_p=...): its gradient is not a number at large logits.
            logits = pm.math.dot(design, beta) * (2 * benign - 1)
            # PyTensor does not say what its functions return.
            pm.Potential("obs", -pm.math.log1pexp(-logits).sum())  # pyright: ignore[reportAttributeAccessIssue]
        return model

    return Problem("breast_cancer", breast_cancer_target(), pymc=build)


def cancer_counts() -> Problem:
    """Cancer deaths in 301 counties: a Poisson regression on the population with an effect of each county."""
    try:
        cancer = importlib.import_module("statsmodels.datasets.cancer")
    except ImportError as error:
        raise UnavailableError(f"needs statsmodels ({error})") from error
    table = cancer.load_pandas().data
    deaths, population = table["cancer"].to_numpy(), table["population"].to_numpy(float)
    size = np.log(population) - np.log(population).mean()

    def model(deaths, population, size):
        rate = numpyro.sample("rate", dist.Normal(-6.0, 2.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        effect = numpyro.sample("effect", dist.Normal(0.0, 1.0).expand(deaths.shape).to_event(1))
        log_rate = rate + slope * size + spread * effect
        numpyro.sample("deaths", dist.Poisson(population * jnp.exp(log_rate)), obs=deaths)

    target = curvi.from_numpyro(model, jnp.asarray(deaths, jnp.int32), jnp.asarray(population), jnp.asarray(size))
    return Problem("cancer_counts", target)


def big_logistic(num_rows: int = 20_000, size: int = 300) -> Problem:
    """Logistic regression with columns of correlation 0.9 to the next, coefficients Normal(0, 1)."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((num_rows, size))
    rows = np.empty_like(noise)
    rows[:, 0] = noise[:, 0]
    for column in range(1, size):
        rows[:, column] = 0.9 * rows[:, column - 1] + np.sqrt(1 - 0.9**2) * noise[:, column]
    truth = rng.standard_normal(size) / np.sqrt(size) * 3
    sign = np.where(rng.random(num_rows) < 1 / (1 + np.exp(-rows @ truth)), 1.0, -1.0)
    design = jnp.asarray(rows * sign[:, None])

    def log_density(theta):
        beta = theta["beta"]
        return jnp.sum(jax.scipy.stats.norm.logpdf(beta)) - jnp.sum(jnp.logaddexp(0.0, -(design @ beta)))

    return Problem("big_logistic", curvi.Target(log_density, {"beta": jnp.zeros(size)}))


def gaussian(condition: float, size: int) -> Problem:
    """Normal(m, Lambda^-1), eigenvalues of Lambda from 1 to `condition`, turned by three Householder reflections."""
    rng = np.random.default_rng(0)
    mirrors = [v / np.linalg.norm(v) for v in rng.standard_normal((3, size))]
    roots = jnp.asarray(np.sqrt(np.geomspace(1.0, condition, size)))
    mean = jnp.asarray(rng.standard_normal(size))
    constant = float(jnp.sum(jnp.log(roots))) - 0.5 * size * np.log(2 * np.pi)

    def log_density(theta):
        x = theta["x"] - mean
        for mirror in mirrors:
            x = x - 2 * mirror * (mirror @ x)
        return constant - 0.5 * jnp.sum((roots * x) ** 2)

    return Problem(f"gauss_{condition:.0e}_{size}", curvi.Target(log_density, {"x": jnp.zeros(size)}))


def catalogue() -> dict[str, Callable[[], Problem]]:
    """Every problem by the name that the command line takes."""
    found: dict[str, Callable[[], Problem]] = {
        short_name: lambda name=name: posteriordb(name) for name, short_name in _SHORT.items()
    }
    found.update(breast_cancer=breast_cancer, cancer_counts=cancer_counts, big_logistic=big_logistic)
    for size in (10, 1_000, 10_000):
        for condition in CONDITIONS:
            found[f"gauss_{condition:.0e}_{size}"] = lambda c=condition, d=size: gaussian(c, d)
    return found


LAPACK = ("gp_regr", "gp_pois_regr")  # whose log densities factorise matrices
SHORT = ("eight_schools", "kidiq", "wells", "garch", "radon", "breast_cancer")
