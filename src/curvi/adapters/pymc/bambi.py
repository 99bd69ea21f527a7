"""Bambi models to draws in one call."""

from typing import Any

from curvi.adapters.attached import attach, check_options, chosen_key, fitted_draws
from curvi.adapters.pymc.model import from_pymc


def fit(
    model,
    *,
    key=None,
    random_seed: int | None = None,
    num_draws: int = 1000,
    predictive: bool = False,
    kind: str | None = None,
    omit_offsets: bool = True,
    include_response_params: bool = False,
    **options: Any,
):
    """Fit a Bambi model; its draws in ArviZ's container, as `model.fit()` returns them.

    The intercept is that of predictors as they are, not centred, and `model.predict(idata)` takes the result.

    Parameters
    ----------
    model
        A `bambi.Model`, built or not.
    key, random_seed
        A key from `jax.random.key(seed)`, or that seed; seed 0 by default.
    num_draws, predictive, kind
        The draws, as `Fit.to_arviz` takes them. By default those of `Fit.kind`; `kind="q"` draws from q,
        `kind="linear_response"` with the corrected covariance.
    omit_offsets, include_response_params
        Those of `bambi.Model.fit`.
    **options
        Those of `curvi.fit`: family, tolerance, progress, ...

    Returns
    -------
    InferenceData on ArviZ 0.x, a DataTree on 1.x, with the `Fit` as its attribute `curvi_fit`; see `curvi.pymc.fit`.
    The names of the fit are those of the PyMC model behind.
    """
    check_options("curvi.bambi.fit", options, num_draws, kind)
    key = chosen_key(key, random_seed, options)
    bambi = _import_bambi()
    if not isinstance(model, bambi.Model):
        raise ValueError(f"curvi.bambi.fit takes a bambi.Model; got {type(model).__name__}")
    if not model.built:
        model.build()
    backend: Any = model.backend
    data = fitted_draws(from_pymc(backend.model), key, num_draws, predictive, kind, options)
    fit = data.curvi_fit
    # Of a row of the data each, and computed anew by `predict`: Bambi's own fits leave them out, too.
    by_row = {one.name for one in backend.model.deterministics} & set(backend.spec.family.likelihood.params)
    for name in by_row & set(data["posterior"].data_vars):
        del data["posterior"][name]
    data = backend._clean_results(data, omit_offsets, include_response_params)
    backend.fit = True
    return attach(data, fit)


def _import_bambi():
    try:
        import bambi
    except ImportError as error:
        raise ImportError(f'curvi.bambi.fit needs Bambi ({error}): pip install "curvi[bambi]"') from error
    return bambi
