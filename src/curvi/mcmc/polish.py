"""A short run of NUTS from q."""

from typing import TYPE_CHECKING

import jax

from curvi.mcmc.convergence import diagnose
from curvi.mcmc.kernels import KERNELS
from curvi.mcmc.moved import moved_from
from curvi.mcmc.polished import Polished
from curvi.mcmc.start import check_count, to_nuts
from curvi.record.clock import Clock
from curvi.record.counts import CallCounts

if TYPE_CHECKING:
    from curvi.results import Fit

NUM_ADAPTATION = 100
WIDEN = 2.0  # chains that all start inside of a q that is too narrow would agree before they have left it


def polish(fit: "Fit", key, num_draws: int = 1000, num_chains: int = 4) -> Polished:
    """Draws by NUTS from the q of a fit, and what they say of q; see `Fit.polish`."""
    check_count("num_draws", num_draws)
    with Clock() as clock:
        start = to_nuts(fit.target, fit.q, key, num_chains, WIDEN)
        key_chains = jax.random.fold_in(key, 1)
        chains = KERNELS["nuts"](
            fit.target, fit.q, key_chains, start.starts, start.inverse_mass_matrix, NUM_ADAPTATION, num_draws
        )
        draws = start.to_named(chains.positions)
        found = {name: diagnose(values) for name, values in draws.items()}
    # A gradient per leapfrog, one to check each start, and one to begin its chain.
    gradients = int(chains.num_leapfrogs.sum()) + chains.num_adaptation_leapfrogs + (start.num_tried + num_chains)
    r_hat, bulk, tail = ({name: values[i] for name, values in found.items()} for i in range(3))
    return Polished(
        draws=draws,
        r_hat=r_hat,
        effective_size=bulk,
        effective_size_tail=tail,
        moved=moved_from(fit, draws, bulk, tail),
        log_density=chains.log_density,
        diverging=chains.diverging,
        num_leapfrogs=chains.num_leapfrogs,
        acceptance_rate=chains.acceptance_rate,
        step_size=chains.step_size,
        counts=CallCounts(log_density=gradients, gradient=gradients),
        seconds=clock.seconds(),
        target=fit.target,
    )
