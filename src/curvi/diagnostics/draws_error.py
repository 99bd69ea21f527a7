"""Errors of means, sds and quantiles that the finite number of draws behind a fit leaves in them.

A fit on fixed draws keeps copies e of the error of its parameters: vectors with mean zero and the covariance of that
error. To first order a quantity f of q is then off by copies f'(params) e, whose root mean square is one standard
error (delta method). On draws x_s of q with tangents dx_s along e, in the order of their values,

    d mean = mean(dx),    d sd = mean((x - mean) dx) / sd,    d quantile = E[dx | x = quantile],

the last by a line through the draws around the quantile. Draws without reparameterisation change their weights instead.
"""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from curvi.diagnostics.linear_response import model_shapes
from curvi.diagnostics.moments import check_probabilities
from curvi.diagnostics.on_draws import everything
from curvi.estimate.fixed_draws.noise import matched_noise
from curvi.model.over_draws import over_draws

if TYPE_CHECKING:
    from curvi.results import Fit

_DRAWS = 2048
_WINDOW = 0.02  # half the width of the line's window, in probability


def errors_of_moments(fit: "Fit") -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """One standard error of each mean and of each sd, both in units of the sd; empty without copies of the error."""
    if fit.error_copies is None:
        return {}, {}
    copies = [_tangents(fit, copy) for copy in fit.error_copies]
    means, sds = {}, {}
    for name in copies[0]:
        off = [_moments_off(*copy[name]) for copy in copies]
        means[name], sds[name] = (np.sqrt(np.mean([np.square(one[i]) for one in off], 0)) for i in (0, 1))
    return means, sds


def errors_of_quantiles(fit: "Fit", probabilities) -> dict[str, np.ndarray]:
    """One standard error of each quantile in units of the sd, with a first axis for the probabilities.

    Not a number for discrete latents and, beside them, for outputs: their quantiles jump.
    """
    wanted = check_probabilities(probabilities)
    if fit.error_copies is None:
        return {}
    copies = [_tangents(fit, copy) for copy in fit.error_copies]
    smooth = {latent.name for latent in fit.q.latents} - set(fit.q.latents_without_path)
    if fit.q.reparameterised:
        smooth = set(copies[0])
    out = {}
    for name, (values, *_) in copies[0].items():
        if name not in smooth:
            out[name] = np.full((len(wanted), *values.shape[1:]), np.nan)
            continue
        off = [_quantiles_off(copy[name][0], copy[name][1], wanted) for copy in copies]
        out[name] = np.sqrt(np.mean(np.square(off), 0))
    return out


def _tangents(fit: "Fit", copy: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """By name: draws, their derivatives along a copy of the error, and those of their weights."""
    q = fit.q
    values = matched_noise(np.random.default_rng(0), _DRAWS, q.noise_size, 2, q.pathwise_columns)
    noise = jnp.asarray(values, q.params.dtype)
    draws, weights = _moved(fit.target, q, noise, jnp.asarray(copy, q.params.dtype))
    weight = np.asarray(weights, np.float64)
    found = {name: tuple(np.asarray(part, np.float64) for part in draws[name]) for name in model_shapes(fit.target, q)}
    return {name: (x, dx, weight) for name, (x, dx) in found.items()}


@eqx.filter_jit
def _moved(target, q, noise, step):
    def one(params, e):
        moved = q.replace(params)
        x = moved.follow(q, e)
        found = everything(target, moved.to_model(x)[0])
        weight = jnp.exp(moved.weighed_log_prob(x) - q.weighed_log_prob(x))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, q.params.dtype), found), weight

    def along(e):
        (found, _), (moves, weight) = jax.jvp(lambda params: one(params, e), (q.params,), (step,))
        return {name: (found[name], moves[name]) for name in found}, weight

    return over_draws(target.outputs, len(noise))(along)(noise)


def _moments_off(x, dx, dw) -> tuple[np.ndarray, np.ndarray]:
    """The changes of mean and sd, in units of the sd; zero where a latent does not vary."""
    mean, sd = x.mean(0), x.std(0)
    away, dw = x - mean, dw.reshape(-1, *[1] * (x.ndim - 1))
    # Weights change with mean zero in expectation; what is left of it on these draws is taken out.
    dw = dw - dw.mean()
    of_mean = dx.mean(0) + (dw * away).mean(0)
    of_variance = 2 * (away * dx).mean(0) + (dw * (away**2 - sd**2)).mean(0)
    varies = sd > 0
    size = np.where(varies, sd, 1.0)
    return np.where(varies, of_mean / size, 0.0), np.where(varies, of_variance / (2 * size**2), 0.0)


def _quantiles_off(x: np.ndarray, dx: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """The changes of quantiles, in units of the sd."""
    flat, moves = x.reshape(len(x), -1), dx.reshape(len(x), -1)
    order = np.argsort(flat, axis=0, kind="stable")
    flat, moves = np.take_along_axis(flat, order, 0), np.take_along_axis(moves, order, 0)
    out = np.empty((len(probabilities), flat.shape[1]))
    for row, probability in enumerate(probabilities):
        # Narrower towards the ends, where values lie far apart.
        reach = max(8, int(min(_WINDOW, probability / 2, (1 - probability) / 2) * len(flat)))
        middle = int(np.clip(round(probability * len(flat) - 0.5), reach, len(flat) - 1 - reach))
        near, move = flat[middle - reach : middle + reach + 1], moves[middle - reach : middle + reach + 1]
        at = np.quantile(flat, probability, axis=0)
        away = near - near.mean(0)
        spread = np.maximum(np.sum(away**2, 0), 1e-300)
        out[row] = move.mean(0) + (at - near.mean(0)) * np.sum(away * move, 0) / spread
    sd = flat.std(0)
    out = np.where(sd > 0, out / np.where(sd > 0, sd, 1.0), 0.0)
    return out.reshape(len(probabilities), *x.shape[1:])
