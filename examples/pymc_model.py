"""A PyMC model: the eight schools of Rubin (1981).

The model is written as for PyMC's own samplers. curvi takes its log density through JAX: names, dims and coords stay,
and results are on the scale of the model (`tau`, not its logarithm).
"""

import jax
import numpy as np
import pymc as pm

import curvi

effect = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
error = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
    mu = pm.Normal("mu", 0, 5)
    tau = pm.HalfCauchy("tau", 5)
    # The non-centred form: the posterior of these is close to a product, which is what curvi fits.
    standardised = pm.Normal("standardised", 0, 1, dims="school")
    theta = pm.Deterministic("theta", mu + tau * standardised, dims="school")
    pm.Normal("effect", theta, error, observed=effect, dims="school")

target = curvi.from_pymc(model)
fit = curvi.fit(target, key=jax.random.key(0), progress=False)
print(fit)
mean, sd = fit.mean(), fit.sd(kind="linear_response")
print(f"mu {mean['mu']:.2f} +- {sd['mu']:.2f}, tau {mean['tau']:.2f} +- {sd['tau']:.2f}")
for school, value, spread in zip(target.origin.coords["school"], mean["theta"], sd["theta"]):
    print(f"school {school}: {value:6.2f} +- {spread:.2f}")
