"""A Stan program, through PyStan: a robust regression with Student-t noise.

Stan computes values and gradients on the host; curvi takes Hessian products as differences of these gradients. PyStan
compiles the program first, which takes a minute.
"""

import jax
import numpy as np
import stan

import curvi

PROGRAM = """
data { int<lower=0> N; vector[N] x; vector[N] y; }
parameters { real intercept; real slope; real<lower=0> scale; real<lower=1> df; }
transformed parameters { real sd_noise = df > 2 ? scale * sqrt(df / (df - 2)) : positive_infinity(); }
model {
  // target += keeps all constants, so that the ELBO is that of the whole density; ~ would drop some.
  target += normal_lpdf(intercept | 0, 5) + normal_lpdf(slope | 0, 5);
  target += exponential_lpdf(scale | 1) + gamma_lpdf(df | 2, 0.1);
  target += student_t_lpdf(y | df, intercept + slope * x, scale);
}
"""
rng = np.random.default_rng(0)
x = np.linspace(-2, 2, 80)
y = 1.0 + 0.5 * x + 0.3 * rng.standard_t(4, 80)

program = stan.build(PROGRAM, data={"N": 80, "x": x, "y": y}, random_seed=1)
target = curvi.from_stan(program)
fit = curvi.fit(target, key=jax.random.key(0), progress=False)
print(fit)

mean, sd = fit.mean(), fit.sd()
for name, truth in (("intercept", 1.0), ("slope", 0.5), ("scale", 0.3)):
    print(f"{name:<10} {float(mean[name]):.3f} +- {float(sd[name]):.3f}, in truth {truth}")
