"""The front door of simulation-based calibration (Talts, Betancourt, Simpson, Vehtari and Gelman 2018).

Where true values and data are drawn from the prior, the rank of a true value among exact draws of its posterior is
uniform. What the ranks among draws of a fit look like says which parameters it gets wrong, and how.
"""

from collections.abc import Callable, Iterable

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from curvi.calibration.ranks import ranks_among
from curvi.calibration.result import NAMES, Calibration
from curvi.calibration.simulators import SIMULATORS, Simulated, simulate_pair
from curvi.many.fit_many import fit_many
from curvi.many.result import ManyFits
from curvi.record.checkpoint import check_key

_DRAWS = 999  # with the true value a thousand: bins of equal size
_POLISHED_DRAWS, _CHAINS = 99, 4
_FEWEST = 20


def sbc(
    model: Callable | tuple[Callable, Callable],
    /,
    *args,
    key: PRNGKeyArray | None = None,
    num_simulations: int = 200,
    observed: str | Iterable[str] | None = None,
    kinds: Iterable[str] = ("q", "linear_response"),
    family: str | None = None,
    tolerance: float | None = None,
    init: dict | None = None,
    supports: dict | None = None,
    **named_args,
) -> Calibration:
    """Calibrate the fits of a model: simulate from its prior, fit, and rank the true values among draws.

    Parameters
    ----------
    model
        A NumPyro model; or a pair of functions `(simulate, log_density)` with `init`: `simulate(key)` returns a dict of
        latents and the data, `log_density(theta, data)` is as in `fit_many`.
    *args, **named_args
        The arguments of the NumPyro model, such as covariates. Data among them are replaced by simulated ones.
    key
        A key from `jax.random.key(seed)`.
    num_simulations
        Data sets to simulate and fit; at least 20, and 100 for twenty bins.
    observed
        Names of the sites that are data; by default those that the model observes with these arguments.
    kinds
        Draws that true values are ranked among: "q", "linear_response" and "polished", which runs NUTS for every
        simulation, from its q (seconds each).
    family, tolerance
        Those of `fit_many`: fits are made together where that is possible.
    init, supports
        Those of `Target`, for a pair of functions.

    Returns
    -------
    A `Calibration`: `print` says in words which parameters are wrong; `plot(path)` draws the ranks. Raises ValueError
    for invalid input, and where the prior cannot be simulated.
    """
    kinds = _checked(model, args, named_args, key, num_simulations, observed, kinds, init, supports)
    assert key is not None
    key_simulate, key_fit, key_draw, key_polish = jax.random.split(key, 4)
    if init is None:
        found: Simulated = SIMULATORS["numpyro"](model, args, named_args, observed, key_simulate, num_simulations)
    else:
        simulate, log_density = model  # pyright: ignore[reportGeneralTypeIssues]
        found = simulate_pair(simulate, log_density, init, supports, key_simulate, num_simulations)
    fits = fit_many(found.model, *found.data, key=key_fit, family=family, tolerance=tolerance, **found.options)
    rng = np.random.default_rng([*map(int, np.asarray(jax.random.key_data(key_draw)).ravel()), 1])
    ranks, num_draws, unavailable = {}, {}, {}
    for kind in kinds:
        try:
            draws = _polished(fits, key_polish) if kind == "polished" else fits.sample(key_draw, _DRAWS, kind)
        except ValueError as error:
            unavailable[kind] = str(error)
            continue
        ranks[kind] = {name: ranks_among(truth, np.asarray(draws[name]), rng) for name, truth in found.truths.items()}
        num_draws[kind] = next(iter(draws.values())).shape[1]
    if not ranks:
        raise ValueError("; ".join(f"no draws of kind {kind!r}: {why}" for kind, why in unavailable.items()))
    return Calibration(ranks, num_draws, found.truths, fits, unavailable)


def _polished(fits: ManyFits, key) -> dict[str, np.ndarray]:
    """Draws of NUTS from each q, thinned to be nearly independent."""
    rows: dict[str, list[np.ndarray]] = {}
    for fit, own in zip(fits, jax.random.split(key, len(fits))):
        found = fit.polish(own, num_draws=10 * -(-_POLISHED_DRAWS // _CHAINS), num_chains=_CHAINS).draws
        for name, draws in found.items():
            flat = np.asarray(draws)[:, ::10].reshape(-1, *draws.shape[2:])
            rows.setdefault(name, []).append(flat[:_POLISHED_DRAWS])
    return {name: np.stack(values) for name, values in rows.items()}


def _checked(model, args, named, key, num_simulations, observed, kinds, init, supports) -> tuple[str, ...]:
    """The kinds of draws; ValueError, with the name of the argument, for bad input."""
    check_key(key)
    pair = isinstance(model, tuple | list)
    if pair and (len(model) != 2 or not all(map(callable, model))):
        raise ValueError("a pair of functions is (simulate, log_density): simulate(key), and log_density(theta, data)")
    if not pair and not callable(model):
        raise ValueError(
            f"sbc takes a NumPyro model, or a pair of functions (simulate, log_density); got {type(model).__name__}"
        )
    if pair and not isinstance(init, dict):
        raise ValueError('a pair of functions needs init, an example of the latents: init={"a": 0.0}')
    if not pair and (init is not None or supports is not None):
        raise ValueError("init and supports are those of a pair of functions; a NumPyro model has its own")
    if pair and (args or named or observed is not None):
        raise ValueError("simulate(key) makes the data of a pair of functions: leave arguments and observed out")
    if not isinstance(num_simulations, int) or isinstance(num_simulations, bool) or num_simulations < _FEWEST:
        raise ValueError(f"num_simulations must be a whole number of at least {_FEWEST}; got {num_simulations!r}")
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if not kinds or any(kind not in NAMES for kind in kinds):
        raise ValueError(f"kinds must be some of {', '.join(NAMES)}; got {kinds!r}")
    return kinds
