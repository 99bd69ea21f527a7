"""Sensitivity of posterior means to a change of the model, without a second fit (Giordano, Broderick and Jordan 2018).

Add a perturbation f(theta, t) to ln p, and the optimum Gamma(t) of the ELBO moves. Differentiate its condition
grad L(Gamma) + grad_Gamma E_q[f(theta, t)] = 0 with respect to t:

    d Gamma / dt = (-H)^-1 d/dt grad_Gamma E_q[f(theta, t)],        d mean / dt = J d Gamma / dt,

with H the Hessian of the ELBO and J the derivative of the means: one linear solve for every entry of t.
"""

import dataclasses
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from curvi.diagnostics.elements import labels_of
from curvi.diagnostics.hessian import MOST_DRAWS
from curvi.diagnostics.linear_response import mean_shift
from curvi.diagnostics.response import curvature_of
from curvi.model.over_draws import map_draws, over_draws

if TYPE_CHECKING:
    from curvi.results import Fit

_SHOWN = 12
_AT_ONCE = 64  # entries of t


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """The change of posterior means with t, to first order.

    Attributes
    ----------
    derivative
        d mean / d t by name: the axes of the latent first, those of t after.
    mean, sd
        The means that change, and the sds of q, by name.
    at
        The t of the fit, around which the derivatives are taken.
    """

    derivative: dict[str, np.ndarray]
    mean: dict[str, np.ndarray]
    sd: dict[str, np.ndarray]
    at: np.ndarray

    def means_at(self, t) -> dict[str, np.ndarray]:
        """The means that a refit with this t would have, to first order."""
        change = np.asarray(t, dtype=float) - self.at
        axes = change.ndim
        return {name: mean + np.tensordot(self.derivative[name], change, axes=axes) for name, mean in self.mean.items()}

    def in_sds(self) -> dict[str, np.ndarray]:
        """The derivatives in units of the posterior sd of each mean."""
        widen = (...,) + (None,) * self.at.ndim
        return {name: slope / np.asarray(self.sd[name])[widen] for name, slope in self.derivative.items()}

    def __str__(self) -> str:
        labels = labels_of({name: mean.shape for name, mean in self.mean.items()})
        relative = np.concatenate([np.reshape(v, (self.mean[name].size, -1)) for name, v in self.in_sds().items()])
        plain = np.concatenate([np.reshape(v, (self.mean[name].size, -1)) for name, v in self.derivative.items()])
        size = np.linalg.norm(relative, axis=1)
        order = np.argsort(-size)[:_SHOWN]
        width = max(len(labels[i]) for i in order)
        head = "size of " if plain.shape[1] > 1 else ""
        lines = [f"{'':{width}}  {head + 'd mean / dt':>20}  {'in posterior sds':>20}"]
        for i in order:
            shown = (np.linalg.norm(plain[i]), size[i]) if plain.shape[1] > 1 else (plain[i, 0], relative[i, 0])
            lines.append(f"{labels[i]:{width}}  {shown[0]:>20.4g}  {shown[1]:>20.4g}")
        if len(labels) > _SHOWN:
            lines.append(f"the {_SHOWN} largest of {len(labels)}; `derivative` has them all")
        return "\n".join(lines)


def sensitivity(fit: "Fit", perturbation, at=0.0) -> Sensitivity:
    """The change of all posterior means with t; see `Fit.sensitivity`."""
    if not callable(perturbation):
        raise ValueError(f"perturbation must be a function of theta and t; got {type(perturbation).__name__}")
    curved = curvature_of(fit, "sensitivity")
    t = jnp.asarray(at, fit.q.params.dtype)
    noise = jnp.asarray(curved.noise_values(MOST_DRAWS), fit.q.params.dtype)
    shape = jax.eval_shape(perturbation, fit.q.to_model(fit.q.from_normal(noise[0]))[0], t)
    if getattr(shape, "shape", None) != ():
        raise ValueError(f"perturbation must return one number; it returned {shape}. Sum its terms (jnp.sum)")
    moved, mean = [], fit.mean("q")
    for start in range(0, max(t.size, 1), _AT_ONCE):
        entries = np.arange(start, min(start + _AT_ONCE, t.size))
        pulls = np.asarray(_pulls(perturbation, fit.q, noise, t, entries), np.float64)
        if not np.all(np.isfinite(pulls)):
            raise ValueError("the derivative of perturbation with respect to t is not finite at draws of q")
        steps = curved.unwhiten(curved.solve(curved.whiten(pulls), t.size)[0])
        moved += [mean_shift(fit.target, fit.q, jnp.asarray(step, fit.q.params.dtype), noise) for step in steps]
    derivative = {
        name: np.stack([np.asarray(one[name], dtype=float) for one in moved], -1).reshape((*mean[name].shape, *t.shape))
        for name in mean
    }
    return Sensitivity(derivative, mean, fit.sd("q"), np.asarray(t, dtype=float))


@eqx.filter_jit
def _pulls(perturbation, q, noise, t, entries):
    """d/dt grad_Gamma E_q[perturbation(theta, t)], one row per chosen entry of t."""

    each = over_draws(perturbation, 8 * len(noise))

    def gradient(t):
        def mean(params):
            moved = q.replace(params)
            return each(lambda e: perturbation(moved.to_model(moved.from_normal(e))[0], t))(noise).mean()

        return jax.grad(mean)(q.params)

    directions = (entries[:, None] == jnp.arange(t.size)).astype(t.dtype).reshape(len(entries), *t.shape)
    return map_draws(perturbation, lambda along: jax.jvp(gradient, (t,), (along,))[1], directions, 8)
