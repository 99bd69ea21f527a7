"""Parts of `scale.py`: seconds per draw of the model with and without its noise, and NumPyro's Adam."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scale_models import chain_data

SECONDS = 20.0  # for one rate of Adam
_BLOCK, _MOST = 200, 20_000  # steps between looks at the ELBO, and in all


def _best_of(call, repeats: int = 3) -> float:
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def seconds_per_draw(target, q) -> tuple[np.ndarray, np.ndarray]:
    """Seconds per draw of a gradient and of a product as the fit runs them, and of both on noise that costs nothing."""
    from curvi.estimate.streamed import programs
    from curvi.methods.problem import Problem
    from curvi.methods.streamed_newton.method import draws_at_once

    chunk, seed, num_draws = draws_at_once(Problem(target, q)), np.array([1, 2], np.uint32), 256

    def both() -> np.ndarray:
        sweep = lambda: programs.sweep(target, q, seed, np.int32(num_draws), num_parts=1, chunk=chunk)  # noqa: E731
        gradient = _best_of(lambda: jax.block_until_ready(sweep()))
        look = sweep().grads[0]
        b = jax.random.normal(jax.random.key(0), look.shape, look.dtype)
        limits = np.asarray(1e30, look.dtype), np.asarray(0.0, look.dtype), np.int32(8)
        solve = lambda: programs.solve(target, q, seed, np.int32(32), look, b, *limits, chunk=min(chunk, 32))  # noqa: E731
        product = _best_of(lambda: jax.block_until_ready(solve()))
        return np.array([gradient / num_draws, product / (32 * int(solve().num_products))])

    whole, made = both(), programs.stratified_noise
    programs.stratified_noise = _plain_noise
    jax.clear_caches()
    try:
        return whole, both()
    finally:
        programs.stratified_noise = made
        jax.clear_caches()


def _plain_noise(words, draws, num_draws, dtype):
    """Numbers in the place of noise that take an operation each, and that no compiler knows beforehand."""
    return (draws[:, None].astype(jnp.float32) * 1e-3 - words[0].astype(jnp.float32) * 2.0**-33).astype(dtype)


# -- NumPyro ----------------------------------------------------------------------------------------------------------


def numpyro_model(name: str, size: int):
    import numpyro
    import numpyro.distributions as dist

    if name == "chain":
        y = jnp.asarray(chain_data(size, np.float32))

        def chain():
            x: Any = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), (size,)))
            numpyro.factor("tie", -2 * jnp.sum((x[1:] - x[:-1]) ** 2) - x[0] ** 2 / 2)
            numpyro.factor("sites", -1.5 * jnp.sum(jnp.log1p((y - x) ** 2)))

        return chain
    rng = np.random.default_rng(1)
    y = jnp.asarray(rng.poisson(np.exp(0.5 + 0.7 * rng.standard_normal(size))).astype(np.float32))

    def counts():
        mu: Any = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
        tau: Any = numpyro.sample("tau", dist.ImproperUniform(dist.constraints.positive, (), ()))
        z: Any = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real, (), (size,)))
        eta = mu + tau * z
        numpyro.factor("rows", jnp.sum(y * eta - jnp.exp(eta) - z**2 / 2) - mu**2 / 50 - tau**2 / 2)

    return counts


def adam(name: str, size: int, rate: float, halved: int | None, ours) -> dict:
    """Seconds of steps until the ELBO, on one design for all, is within 0.001 nats per latent of that of our fit."""
    import numpyro
    from numpyro.infer import SVI, Trace_ELBO, init_to_value
    from numpyro.infer.autoguide import AutoNormal

    values = {key: jnp.asarray(value) for key, value in ours.target.init.items()}
    model = numpyro_model(name, size)
    guide = AutoNormal(model, init_loc_fn=init_to_value(values=values), init_scale=float(np.exp(-2.0)))
    svi = SVI(
        model,
        guide,
        numpyro.optim.Adam(rate if halved is None else lambda step: rate * 0.5 ** (step / halved)),
        Trace_ELBO(),
    )
    state = svi.init(jax.random.key(0))

    @jax.jit
    def block(state):
        return jax.lax.scan(lambda state, _: (svi.update(state)[0], None), state, None, length=_BLOCK)[0]

    goal, reached, seconds, steps, history = value_of(ours.target, ours.q) - 1e-3 * size, None, 0.0, 0, []
    jax.block_until_ready(block(state))  # compiled before the clock starts
    while seconds < SECONDS and steps < _MOST and reached is None:
        began = time.perf_counter()
        state = jax.block_until_ready(block(state))
        seconds += time.perf_counter() - began
        steps += _BLOCK
        history.append((goal + 1e-3 * size - value_of(ours.target, as_q(ours, svi.get_params(state)))) / size)
        reached = seconds if history[-1] <= 1e-3 else None
    return {"seconds": seconds, "steps": steps, "reached_seconds": reached, "nats_per_latent": history[-1]}


def as_q(fit, params: dict):
    """Our q with the parameters of an AutoNormal guide, which are means and sds by name."""
    parts = {}
    for latent in fit.q.latents:
        mean, scale = (np.asarray(params[f"{latent.name}_auto_{kind}"], np.float32) for kind in ("loc", "scale"))
        parts[latent.name] = np.stack([mean.ravel(), np.log(scale).ravel()], -1).ravel()
    return fit.q.with_parts(parts)


def value_of(target, q) -> float:
    """The ELBO on 256 stratified draws, the same for every q."""
    from curvi.estimate.streamed.objective import StreamedObjective
    from curvi.methods.base import Problem
    from curvi.methods.streamed_newton.method import draws_at_once

    objective = StreamedObjective.of(target, q, jax.random.key(5), draws_at_once(Problem(target, q)), 256)
    return objective.look(q, (9,), 256, parts=False).value
