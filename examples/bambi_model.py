"""A Bambi model: a regression from a formula, through the PyMC model that Bambi builds.

The data are those of scikit-learn on the progress of diabetes in 442 patients (Efron et al. 2004). Bambi sets weakly
informative priors, builds a PyMC model of them, and `backend.model` is that model. It centres the predictors, so
that its Intercept is the mean response.
"""

import bambi
import jax
from sklearn.datasets import load_diabetes

import curvi

patients = load_diabetes(as_frame=True, scaled=False).frame
model = bambi.Model("target ~ bmi + bp + s5", patients)
model.build()

target = curvi.from_pymc(model.backend.model)
fit = curvi.fit(target, key=jax.random.key(0), progress=False)
print(fit)
mean, sd = fit.mean(), fit.sd(kind="linear_response")
for name in ("Intercept", "bmi", "bp", "s5", "sigma"):
    print(f"{name:<10} {float(mean[name]):9.3f} +- {float(sd[name]):.3f}")
