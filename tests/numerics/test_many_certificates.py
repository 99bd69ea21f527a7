"""The certificates of fits that are made together: honest where q is right, and where it is not."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import curvi
from curvi.estimate.fixed_draws.noise import matched_noise
from curvi.many.certificate import certify
from curvi.many.entries import Entries

NUM, ROWS = 8, 30


def poisson(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Poisson(jnp.exp(x @ b)), obs=y)


@pytest.fixture(scope="module", params=["full_rank", "mean_field"])
def many(request):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(NUM, ROWS, 3))
    y = rng.poisson(np.exp(x @ [0.5, -0.3, 0.2]))
    return curvi.fit_many(poisson, x, y, key=jax.random.key(0), family=request.param)


def test_it_ends_where_a_single_fit_ends(many):
    """ELBOs agree within their errors, and means and sds with those of a fit by another method."""
    assert many.together.all()
    for index in range(2):
        one = curvi.fit(
            many[index].target,
            key=jax.random.key(1),
            family=many.batches[0].name,
            centering="off",
            progress=False,
        )
        error = np.hypot(one.elbo_se, many.elbo_se[index])
        z = (one.elbo - many.elbo[index]) / error
        assert abs(z) < 4
        assert abs(z + 0.1 / error) > 4  # an ELBO that is wrong by a tenth of a nat
        sd = one.sd()["b"]
        assert np.abs((one.mean()["b"] - many.mean()["b"][index]) / sd).max() < 0.1
        assert np.abs(many.sd()["b"][index] / sd - 1).max() < 0.1


def test_a_q_that_is_off_is_not_certified(many):
    """Half a whitened step off, an eighth of a nat is left, or what the ELBO on other draws says."""
    batch = many.batches[0]
    state, rng = batch.advanced.state, np.random.default_rng(2)
    entries, chosen = Entries(3, batch.independent), np.arange(NUM)
    before = state.mean.copy()
    step = np.zeros((NUM, len(entries)))
    step[:, 0] = 0.5
    try:
        state.mean[:], _ = entries.moved(state.mean, state.factor, step)
        noise = matched_noise(rng, 512, 3, 1, match=False)
        known = certify(batch.programs, state, chosen, entries, noise, rng)
        moved = _elbos(batch)
    finally:
        state.mean[:] = before
    assert not known.within(0.05).any()
    lost = _elbos(batch) - moved
    assert np.all(np.abs(known.gain[:2] - lost) < 4 * known.gain_se[:2] + 0.2 * lost)
    assert np.all(np.abs(known.elbo[:2] - moved) < 4 * np.hypot(known.elbo_se[:2], 0.02))
    assert np.all(many.remaining_gain < 0.05)


def _elbos(batch):
    """The ELBOs of the first two fits by the draws of single fits."""
    fits = [batch.fit_at(index, None) for index in range(2)]
    return np.array([float(fit.log_ratios(jax.random.key(3), 4096).mean()) for fit in fits])


def test_updates_from_an_old_q_are_not_called_contradictions():
    """Near its optimum, two parts of few draws know the noise of a gradient badly: by chance some is far too small."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(2200, 10)) @ (np.eye(10) + 0.5)
    y = rng.poisson(np.exp(0.1 * x @ rng.normal(size=10)))

    def model(x, y):
        b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([10]).to_event(1))
        numpyro.sample("y", dist.Poisson(jnp.exp(0.3 * x @ b)), obs=y)

    old, target = curvi.from_numpyro(model, x[:2000], y[:2000]), curvi.from_numpyro(model, x, y)
    q = curvi.fit(old, key=jax.random.key(0), family="full_rank", progress=False).q.onto(target)
    updates = [curvi.fit(target, key=jax.random.key(seed), family=q, progress=False) for seed in range(12)]
    assert all(update.converged for update in updates)
