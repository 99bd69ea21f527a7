"""PyMC models to draws in one call."""

from typing import Any

from curvi.adapters.attached import check_options, chosen_key, fitted_draws
from curvi.adapters.pymc.model import from_pymc, import_pymc


def fit(
    model=None,
    *,
    key=None,
    random_seed: int | None = None,
    num_draws: int = 1000,
    predictive: bool = False,
    kind: str | None = None,
    **options: Any,
):
    """Fit a PyMC model; its draws in ArviZ's container.

    Parameters
    ----------
    model
        A `pymc.Model`; inside of `with pm.Model():` that one if None.
    key, random_seed
        A key from `jax.random.key(seed)`, or that seed; seed 0 by default.
    num_draws, predictive, kind
        The draws, as `Fit.to_arviz` takes them. By default those of `Fit.kind`; `kind="q"` draws from q,
        `kind="linear_response"` with the corrected covariance.
    **options
        Those of `curvi.fit`: family, tolerance, progress, ...

    Returns
    -------
    InferenceData on ArviZ 0.x, a DataTree on 1.x, with the `Fit` as its attribute `curvi_fit`. Files, and copies of
    a DataTree, carry the draws and the outcome (`idata.posterior.attrs`), but not the fit: `idata.curvi_fit.save(path)`
    keeps it, and `curvi.load(path, curvi.from_pymc(model))` reads it. What speaks against the draws is logged.
    """
    check_options("curvi.pymc.fit", options, num_draws, kind)
    key = chosen_key(key, random_seed, options)
    pymc = import_pymc()
    if model is None:
        try:
            model = pymc.modelcontext(None)
        except TypeError:
            raise ValueError(
                "curvi.pymc.fit needs a model: pass one, or call it inside of `with pm.Model() as model:`"
            ) from None
    elif hasattr(model, "backend"):
        raise ValueError(f"curvi.pymc.fit takes a pymc.Model; got {_kind(model)}: use curvi.bambi.fit(model)")
    return fitted_draws(from_pymc(model), key, num_draws, predictive, kind, options)


def _kind(model) -> str:
    return f"{type(model).__module__.partition('.')[0]}.{type(model).__name__}"
