"""BlackJAX's NUTS on the log density of a target over one vector: all chains in one compiled program."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from curvi.estimate.fixed_draws.sweep import program
from curvi.mcmc.kernels import Chains
from curvi.mcmc.start import log_density
from curvi.model.over_draws import over_draws
from curvi.record.packed import combine, split_structure

_ACCEPTANCE = 0.8  # wanted by dual averaging; the default of Stan and NumPyro
_FIRST_STEP = 0.5  # in units of q's sds, which the mass matrix makes the unit of length


def sample_nuts(target, q, key, starts, inverse_mass_matrix, num_adaptation: int, num_draws: int) -> Chains:
    """The chains of NUTS from these starts with a fixed mass matrix.

    The step size is the same in all chains and follows their mean acceptance rate during `num_adaptation` steps. Raises
    ImportError without BlackJAX.
    """
    _blackjax()
    keys = jax.random.split(key, num_adaptation + num_draws)
    structure, arrays = split_structure(target, q)
    positions, log_p, diverging, leapfrogs, rate, step_size = _run(
        structure, num_adaptation, arrays, keys, starts, inverse_mass_matrix
    )

    def kept(values):
        return np.swapaxes(np.asarray(values)[num_adaptation:], 0, 1)

    spent = int(np.asarray(leapfrogs)[:num_adaptation].sum())
    return Chains(kept(positions), kept(log_p), kept(diverging), kept(leapfrogs), kept(rate), spent, float(step_size))


def _blackjax() -> Any:
    try:
        import blackjax
    except ImportError as error:
        raise ImportError(f'fit.polish needs BlackJAX ({error}): pip install "curvi[mcmc]"') from error
    return blackjax


@program(0, 1)
def _run(structure, num_adaptation: int, arrays, keys, starts, inverse_mass_matrix):
    blackjax = _blackjax()
    target, q = combine(structure, arrays)
    # Adaptation and draws are one loop: the kernel, most of the program, is compiled once.
    each, kernel = over_draws(target, len(starts)), blackjax.nuts.build_kernel()
    metric = blackjax.mcmc.metrics.default_metric(inverse_mass_matrix)
    begin, update, final = blackjax.adaptation.step_size.dual_averaging_adaptation(_ACCEPTANCE)

    def density(position):
        return log_density(target, q, position)

    def advance(carry, at):
        states, averages = carry
        index, key = at
        adapting = index < num_adaptation
        step = jnp.where(adapting, jnp.exp(averages.log_step_size), final(averages)).astype(starts.dtype)
        states, info = each(lambda k, state: kernel(k, state, density, step, metric))(
            jax.random.split(key, len(starts)), states
        )
        updated = update(averages, info.acceptance_rate.mean())
        averages = jax.tree.map(lambda new, old: jnp.where(adapting, new, old).astype(old.dtype), updated, averages)
        seen = (states.position, states.logdensity, info.is_divergent, info.num_integration_steps, info.acceptance_rate)
        return (states, averages), seen

    states = each(lambda start: blackjax.nuts.init(start, density))(starts)
    averages = jax.tree.map(jnp.asarray, begin(jnp.asarray(_FIRST_STEP, starts.dtype)))
    (_, averages), seen = jax.lax.scan(advance, (states, averages), (jnp.arange(len(keys)), keys))
    return *seen, final(averages)
