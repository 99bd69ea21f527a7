"""A target of curvi and its mean field as a model and a guide of NumPyro."""

import jax.numpy as jnp
import numpyro

from curvi import MeanField


def numpyro_program(target, start: MeanField, offset: float):
    """Model and guide of a target with factors as in `start`, for NumPyro; the guide's parameters in curvi's order.

    `offset` is taken from the log density.
    """
    density = target.full()

    def sites(read):
        theta = {}
        for index, slot in enumerate(start.layout.slots):
            latent, factor = slot.latent, start.layout.factors[slot.group]
            with numpyro.plate(f"rows_{index}", slot.count):
                theta[latent.name] = read(latent, factor, slot)
        return theta

    def model():
        def read(latent, factor, slot):
            like = factor.distribution(jnp.zeros((slot.count, factor.num_params)))
            return numpyro.sample(latent.name, like)

        theta = sites(read)
        prior = sum(
            jnp.sum(
                factor_of(slot)
                .distribution(jnp.zeros((slot.count, factor_of(slot).num_params)))
                .log_prob(theta[slot.latent.name])
            )
            for slot in start.layout.slots
        )
        shaped = {
            slot.latent.name: (theta[slot.latent.name] + getattr(factor_of(slot), "lowest", 0))
            .reshape(slot.latent.shape)
            .astype(slot.latent.dtype)
            for slot in start.layout.slots
        }
        # The sites' own densities are taken back: what counts is the target's.
        numpyro.factor("target", density(shaped) - prior - offset)

    def factor_of(slot):
        return start.layout.factors[slot.group]

    slices = start.parameter_slices()

    def guide():
        def read(latent, factor, slot):
            first = start.params[slices[latent.name]].reshape(slot.count, factor.num_params)
            params = numpyro.param(f"params_{latent.name}", first)
            return numpyro.sample(latent.name, factor.distribution(params))

        sites(read)

    def flat(params):
        out = jnp.zeros(start.num_params)
        for name, place in slices.items():
            out = out.at[place].set(params[f"params_{name}"].reshape(-1))
        return out

    return model, guide, flat
