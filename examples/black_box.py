"""A black box: rates of an epidemic from a simulator in NumPy that can only be called.

`epidemic` is influenza in a boarding school, 1978. Its likelihood is simulated anew at every call, and so is noisy.
"""

import jax
import numpy as np

import curvi
from curvi.examples import epidemic

jax.config.update("jax_enable_x64", True)

# A function f of your own, of a dict of numpy arrays: curvi.Target(f, init, supports, order=0, black_box=True).
fit = curvi.fit(epidemic(), key=jax.random.key(0), progress=False, tolerance=0.2)
print(fit)

mean, sd = fit.mean(), fit.sd()
for name in ("infection", "recovery"):
    print(f"{name:<10} {mean[name]:.3f} +- {sd[name]:.3f} a day")
print(f"reproduction number about {np.round(mean['infection'] / mean['recovery'], 1)}")
