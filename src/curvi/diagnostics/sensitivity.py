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

from curvi.diagnostics.hessian import WhitenedHessian
from curvi.diagnostics.linear_response import labels_of, mean_shift
from curvi.model.over_draws import map_draws, over_draws

if TYPE_CHECKING:
    from curvi.results import Fit

_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """The change of posterior means with t, to first order.

    Attributes
    ----------
    derivative
        d mean / d t by name: the axes of the latent first, those of t after.
    mean, sd
        The means and mean-field sds that change, by name.
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
    curved = WhitenedHessian(fit.target, fit.q, jax.random.key(0), "sensitivity")
    t = jnp.asarray(at, fit.q.params.dtype)
    shape = jax.eval_shape(perturbation, fit.q.to_model(fit.q.from_normal(curved.noise[0]))[0], t)
    if getattr(shape, "shape", None) != ():
        raise ValueError(f"perturbation must return one number; it returned {shape}. Sum its terms (jnp.sum)")
    pulls = _pulls(perturbation, fit.q, curved.noise, t)
    if not np.all(np.isfinite(pulls)):
        raise ValueError("the derivative of perturbation with respect to t is not finite at draws of q")
    steps = curved.unwhiten(curved.solve(curved.whiten(pulls)))
    moved = [mean_shift(fit.target, fit.q, step, curved.noise) for step in steps]
    mean = fit.mean()
    derivative = {
        name: np.stack([np.asarray(one[name], dtype=float) for one in moved], -1).reshape((*mean[name].shape, *t.shape))
        for name in mean
    }
    return Sensitivity(derivative, mean, fit.sd(), np.asarray(t, dtype=float))


@eqx.filter_jit
def _pulls(perturbation, q, noise, t):
    """d/dt grad_Gamma E_q[perturbation(theta, t)], one row per entry of t."""

    each = over_draws(perturbation, 8 * len(noise))

    def gradient(t):
        def mean(params):
            moved = q.replace(params)
            return each(lambda e: perturbation(moved.to_model(moved.from_normal(e))[0], t))(noise).mean()

        return jax.grad(mean)(q.params)

    directions = jnp.eye(t.size, dtype=t.dtype).reshape(t.size, *t.shape)
    return map_draws(perturbation, lambda along: jax.jvp(gradient, (t,), (along,))[1], directions, 8)
