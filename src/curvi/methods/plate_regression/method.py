"""Second-order regression on a plate: rows of local latents in closed form, global latents by regression.

For each draw of the global latents g the factors of all rows are known at every value k of their local latent, f_nk(g)
(`factored`). The best q(z_n) given q(g) is then softmax_k E[f_nk], and with all rows at their best the ELBO is a
function of the global parameters alone,

    L(G) = E[rest(g) - ln q(g)] + sum_n ln sum_k exp E[f_nk(g)],

whose gradient is that of E[rest + sum_n sum_k q_n(k) f_nk - ln q(g)] at fixed q_n, found by regression on the scores of
q(g), and whose Hessian has one term more, sum_n C_n' F_n C_n, with C_n the slopes of f_n on the scores and F_n the
Fisher information of q_n: the Schur complement of the rows in the Hessian of all latents.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from curvi.family import MeanField
from curvi.methods.base import AnyMethod
from curvi.model.factored import FactoredTarget, num_values


class PlateRegression(AnyMethod):
    """Newton's method on the global latents of a `FactoredTarget`, with its local latents at their best throughout.

    Attributes
    ----------
    first_draws, max_draws
        Draws of the global latents in the first batch (None: a dozen more than twice their parameters) and at most.
    """

    first_draws: int | None = eqx.field(static=True, default=None)
    max_draws: int = eqx.field(static=True, default=1024)
    default_num_steps: ClassVar[int] = 100


@eqx.filter_jit
def tabulate(target: FactoredTarget, q: MeanField, key, index, size: int):
    """`size` draws of the global q: ln q, whitened scores, the other factors with the Jacobian, and the row factors of
    each local latent at each of its values, (draws, rows, values).
    """
    factor = q.fisher().factorise()
    finite = {
        latent.name: (latent, *num_values(latent)) for latent in target.latents if latent.name in dict(target.local)
    }

    def one(key):
        x = q.sample(key)
        theta, log_det = q.to_model(x)
        lows = {name: jnp.full(latent.shape, low, latent.dtype) for name, (latent, low, _) in finite.items()}
        tables, rest = {}, jnp.zeros((), q.params.dtype)
        for name, (latent, low, count) in finite.items():

            def at(value, name=name, latent=latent):
                here = {**theta, **lows, name: jnp.full(latent.shape, value, latent.dtype)}
                rows, rest = target.terms(here)
                return rows[name], rest

            columns, rests = jax.lax.map(at, low + jnp.arange(count))
            tables[name], rest = columns.T, rests[0]
        return q.log_prob(x), factor.solve(q.score(x)), rest + log_det, tables

    return jax.lax.map(one, jax.random.split(jax.random.fold_in(key, index), size))
