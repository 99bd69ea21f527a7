"""NumPyro's NUTS in segments of a fixed length: what was known of the posterior after how many leapfrogs and seconds.

NumPyro's own `MCMC.run` compiles anew with each call; the kernel driven here is the same, compiled once.
"""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

import posterior_clock as clock
from posterior_problems import Posterior

SEGMENT = 50


def cold_seconds(posterior: Posterior, seed: int, num_warmup: int, num_draws: int, num_chains: int) -> clock.Seconds:
    """Seconds of `MCMC.run` as its users write it, compilation included, until the draws are there."""
    began = clock.now()
    mcmc = MCMC(
        NUTS(posterior.model), num_warmup=num_warmup, num_samples=num_draws, num_chains=num_chains,
        chain_method="sequential", progress_bar=False,
    )  # fmt: skip
    mcmc.run(jax.random.key(seed), **posterior.arguments)
    jax.block_until_ready(mcmc.get_samples())
    return clock.now() - began


@dataclasses.dataclass
class Chains:
    """Chains that go on from where they stand; chains run side by side, in a thread each.

    `draws` has the kept draws in unconstrained coordinates, one list of segments per chain.
    """

    posterior: Posterior
    seed: int
    num_warmup: int
    num_chains: int

    def __post_init__(self):
        kernel = NUTS(self.posterior.model)
        self.states = [
            kernel.init(key, self.num_warmup, None, (), self.posterior.arguments)
            for key in jax.random.split(jax.random.key(self.seed), self.num_chains)
        ]
        example, self.unravel = ravel_pytree(self.states[0].z)
        self.size = example.size

        def segment(state):
            def step(state, _):
                state = kernel.sample(state, (), self.posterior.arguments)
                return state, (ravel_pytree(state.z)[0], state.num_steps, state.diverging)

            return jax.lax.scan(step, state, None, length=SEGMENT)

        self.segment = jax.jit(segment).lower(self.states[0]).compile()
        constrain = kernel.postprocess_fn((), self.posterior.arguments)
        self.constrain = jax.jit(lambda z: jax.lax.map(lambda x: constrain(self.unravel(x)), z, batch_size=SEGMENT))
        self.pool = ThreadPoolExecutor(self.num_chains)
        self.draws: list[list[np.ndarray]] = [[] for _ in self.states]
        self.seconds, self.leapfrogs, self.divergences = clock.Seconds(0.0, 0.0), 0, 0

    def advance(self, keep: bool) -> None:
        """One segment of every chain."""
        began = clock.now()
        done = list(self.pool.map(lambda state: jax.block_until_ready(self.segment(state)), self.states))
        self.seconds += clock.now() - began
        self.states = [state for state, _ in done]
        for chain, (_, (z, num_steps, diverging)) in enumerate(done):
            self.leapfrogs += int(num_steps.sum())
            if keep:
                self.draws[chain].append(np.asarray(z))
                self.divergences += int(diverging.sum())

    def warm_up(self) -> None:
        for _ in range(self.num_warmup // SEGMENT):
            self.advance(keep=False)

    def by_site(self) -> dict[str, np.ndarray]:
        """Draws by site, those of one chain after those of another."""
        z = np.concatenate([np.concatenate(chain) for chain in self.draws])
        # In pieces of one length: another number of draws would compile another program.
        pieces = [self.constrain(piece) for piece in z.reshape(-1, SEGMENT, self.size)]
        return {name: np.concatenate([np.asarray(piece[name]) for piece in pieces]) for name in pieces[0]}

    def scalars(self) -> dict[str, np.ndarray]:
        """Draws of every scalar of the model by its name, chains x draws."""
        found = {}
        for name, values in self.by_site().items():
            rows = values.reshape(self.num_chains, -1, *values.shape[1:])
            if rows.ndim == 2:
                found[name] = rows
                continue
            for index in np.ndindex(*rows.shape[2:]):
                found[f"{name}[{','.join(str(i + 1) for i in index)}]"] = rows[(..., *index)]
        return found


def quality(scalars: dict[str, np.ndarray]) -> tuple[dict[str, float], dict[str, float]]:
    """Split R-hat and effective sample size of each scalar."""
    rhat = {name: float(split_gelman_rubin(draws)) for name, draws in scalars.items()}
    return rhat, {name: float(effective_sample_size(draws)) for name, draws in scalars.items()}
