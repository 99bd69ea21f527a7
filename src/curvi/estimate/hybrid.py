"""Draws for q with factors of both kinds: some follow the parameters, the others stay and change their weights.

A reparameterised factor moves its draw with its parameters (pathwise). Any other factor, that of a discrete latent say,
keeps the value z that it drew from some r(z), and weighs it by w = q(z) / r(z); the derivative of w is q's score. With
`before`, earlier parameters, and f = ln p(x, z) - ln q_before(z) the ELBO is

    E_r[w f] - KL(q_z || q_before) + H(q_x),

smooth in all parameters, and so it is for fixed draws. ln q_before(z) is a control variate: near the optimum it leaves
little of ln p to be correlated with the score, and nothing where the posterior lies in the family. r is q_before with
rare values made less rare: a value that no draw has shown would seem to be right at whatever probability it has.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from curvi.curvature.blocks import join
from curvi.family import MeanField
from curvi.family.mean_field import Draw

_RARE_DRAWS = 0.25


def noise_columns(q: MeanField) -> np.ndarray:
    """One entry a column of the noise of a draw: whether it is that of a reparameterised factor."""
    kinds = [(f.reparameterised, n * (1 if f.reparameterised else f.num_uniforms)) for f, n in _groups(q)]
    return np.concatenate([np.full(size, kind) for kind, size in kinds])


def num_staying_params(q: MeanField) -> int:
    """Parameters of the factors that are not reparameterised: for discrete latents, how many values may be rare."""
    return sum(n * f.num_params for f, n in _groups(q) if not f.reparameterised)


def farthest(q: MeanField) -> np.ndarray:
    """How far from zero each parameter may be."""
    dtype = q.params.dtype
    return np.concatenate([np.full(n * f.num_params, f.farthest(dtype)) for f, n in _groups(q)])


def drawn_from(before: MeanField) -> MeanField:
    """r: `before` with no value of a discrete latent much rarer than their number allows."""
    # All rare values together then cost a share of the draws, whatever their number.
    least = _RARE_DRAWS / num_staying_params(before)
    groups = zip(before.layout.factors, before.group_params())
    return before.replace(join([p if f.reparameterised else f.floored(p, least) for f, p in groups]))


def follow(q: MeanField, r: MeanField, noise: Float[Array, " n"]) -> Draw:
    """The draw of q that standard normal noise gives; of `r` in the factors that are not reparameterised."""
    out, start = [], 0
    for (factor, n), params, drawn in zip(_groups(q), q.group_params(), r.group_params()):
        size = n if factor.reparameterised else n * factor.num_uniforms
        part = noise[start : start + size]
        if factor.reparameterised:
            out.append(factor.from_normal(params, part))
        else:
            out.append(jax.lax.stop_gradient(factor.from_uniform(drawn, ndtr(part).reshape(n, factor.num_uniforms))))
        start += size
    return tuple(out)


def staying_log_prob(q: MeanField, x: Draw) -> Float[Array, ""]:
    """ln q of the factors that are not reparameterised."""
    groups = zip(q.layout.factors, q.group_params(), x)
    terms = [f.log_prob(p, v).sum() for f, p, v in groups if not f.reparameterised]
    return sum(terms, jnp.zeros((), q.params.dtype))


def exact_part(q: MeanField, before: MeanField) -> Float[Array, ""]:
    """Of the ELBO: what needs no draws, H(q_x) - KL(q_z || q_before)."""
    groups = zip(q.layout.factors, q.group_params(), before.group_params())
    terms = [(f.entropy(p) if f.reparameterised else -f.kl(p, b)).sum() for f, p, b in groups]
    return sum(terms, jnp.zeros((), q.params.dtype))


def _groups(q: MeanField):
    return zip(q.layout.factors, q.layout.counts, strict=True)
