"""A fit as a guide of NumPyro."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import autoguide

from curvi.diagnostics.moments import quantiles as quantiles_of
from curvi.estimate.sampling import sample
from curvi.family import Family
from curvi.results import Fit


class AutoGuide(autoguide.AutoGuide):
    """A guide that draws from the q of a fit: for `Predictive(model, guide=guide, num_samples=1000)`, and wherever
    NumPyro takes a guide.

    Called within handlers, it has one sample site for each latent of the model; their log densities sum to ln q, so
    that `Trace_ELBO` is the ELBO of the fit. Where draws are smooth functions of q's parameters, these are a parameter
    site, `params` by name, from which `SVI` may go on; they stay what they are beside discrete latents.

    Parameters
    ----------
    fit
        A fit of the target of the model, `curvi.from_numpyro(model, ...)`; one from a file serves as well. New data may
        be of any shape that leaves the latents as they were.
    prefix
        The parameter site is called `{prefix}_params`.
    """

    def __init__(self, fit: Fit, *, prefix: str = "auto"):
        if not isinstance(fit, Fit):
            raise ValueError(
                "curvi.numpyro.AutoGuide takes a fit, as curvi.fit or curvi.load returns it; "
                f"got {type(fit).__name__}. Call curvi.fit(curvi.from_numpyro(model, ...), key=...) first"
            )
        self.fit, self.prefix = fit, prefix

    @property
    def params(self) -> dict[str, jax.Array]:
        """The parameters of q by the name of their site, as `SVI` would return them."""
        return {self._site: self.fit.q.params} if self.fit.q.reparameterised else {}

    @property
    def _site(self) -> str:
        return f"{self.prefix}_params"

    def _q(self, params) -> Family:
        """The q of given parameters, those of the fit where they are not among them."""
        q = self.fit.q
        if params is None or self._site not in params or not q.reparameterised:
            return q
        given = jnp.asarray(params[self._site])
        if given.shape != q.params.shape:
            raise ValueError(
                f"params['{self._site}'] has shape {given.shape}, but this q has {q.num_params} parameters; "
                "they are those of another fit"
            )
        return q.replace(given)

    def __call__(self, *args, **kwargs) -> dict[str, jax.Array]:
        """A draw by name, one sample site for each latent; the arguments are those of the model, and not looked at."""
        params = {name: numpyro.param(name, value) for name, value in self.params.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPyro's, that there is none
            key = numpyro.prng_key()
        if key is None:
            raise ValueError("a guide draws, and needs a key: numpyro.handlers.seed(guide, rng_seed=0)")
        q = self._q(params)
        draw = q.sample(key)
        theta, log_det = q.to_model(draw)
        # The first carries ln q of all, in equal shares: latents may depend on each other under q.
        log_q = q.log_prob(draw) - log_det
        for latent in q.latents:
            event_dim = getattr(latent.support, "event_dim", 0)
            batch = latent.shape[: len(latent.shape) - event_dim]
            shares = jnp.full(batch, log_q / math.prod(batch))
            numpyro.sample(latent.name, dist.Delta(theta[latent.name], shares, event_dim=event_dim))
            log_q = 0.0
        return theta

    def sample_posterior(self, rng_key, params=None, *args, sample_shape=(), **kwargs) -> dict[str, jax.Array]:
        """Draws by name, with axes `sample_shape` in front, and the model's deterministic sites for the data of the
        fit.
        """
        shape = (sample_shape,) if isinstance(sample_shape, int) else tuple(sample_shape)
        if any(not isinstance(size, int) or size < 1 for size in shape):
            raise ValueError(f"sample_shape must consist of positive integers; got {sample_shape!r}")
        draws = sample(self.fit.target, self._q(params), jax.random.split(rng_key, math.prod(shape)))
        return {name: jnp.reshape(jnp.asarray(one), shape + one.shape[1:]) for name, one in draws.items()}

    def median(self, params=None) -> dict[str, jax.Array]:
        """The median of each latent, by name."""
        return {name: one[0] for name, one in self.quantiles(params, [0.5]).items()}

    def quantiles(self, params, quantiles) -> dict[str, jax.Array]:
        """Quantiles of each latent by name, with a first axis for several of them."""
        found = quantiles_of(self.fit.target, self._q(params), quantiles)
        at = 0 if np.ndim(quantiles) == 0 else slice(None)
        return {
            one.name: jnp.asarray(np.rint(found[one.name]) if one.discrete else found[one.name], one.dtype)[at]
            for one in self.fit.target.latents
        }
