"""A Bambi model: a regression from a formula, in one call.

The data are those of scikit-learn on the progress of diabetes in 442 patients (Efron et al. 2004). Bambi sets weakly
informative priors and builds a PyMC model; `curvi.bambi.fit` takes it from there, and returns what Bambi's own fits
return, so that `model.predict` and ArviZ go on from it. The fit is attached.
"""

import bambi
from sklearn.datasets import load_diabetes

import curvi

patients = load_diabetes(as_frame=True, scaled=False).frame
model = bambi.Model("target ~ bmi + bp + s5", patients)

idata = curvi.bambi.fit(model, random_seed=0, progress=False)
fit = idata.curvi_fit
print(fit)
for name in ("Intercept", "bmi", "bp", "s5", "sigma"):
    draws = idata.posterior[name]
    print(f"{name:<10} {float(draws.mean()):9.3f} +- {float(draws.std()):.3f}")

predicted = model.predict(idata, data=patients.head(3), inplace=False)
print("expected progress of three patients:", predicted.posterior["mu"].mean(("chain", "draw")).values.round(1))
