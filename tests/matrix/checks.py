"""What an installed curvi must do, with the answers known: run by an environment that has the wheel alone."""

import importlib.metadata
import json
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import Predictive

import curvi

jax.config.update("jax_enable_x64", True)
KEY = jax.random.key(0)
X = np.linspace(-1.0, 1.0, 40)
Y = 0.7 * X + 0.3 * np.random.default_rng(0).normal(size=40)
PRECISION = 1.0 + X @ X / 0.09
MEAN, SD = X @ Y / 0.09 / PRECISION, PRECISION**-0.5
MODEL = """
import numpyro
import numpyro.distributions as dist

def model(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(slope * x, 0.3), obs=y)
"""


def model(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(slope * x, 0.3), obs=y)


def is_the_posterior(mean, sd, digits=0.02) -> None:
    assert abs(float(mean) - MEAN) < digits * SD and abs(float(sd) / SD - 1) < digits, (mean, MEAN, sd, SD)


def main() -> None:
    inside = Path(curvi.__file__).resolve()
    assert Path(sysconfig.get_paths()["purelib"]).resolve() in inside.parents, f"{inside} is not the installed one"
    assert importlib.metadata.version("curvi") == curvi.__version__

    fit = curvi.fit(curvi.from_numpyro(model, X, Y), key=KEY, progress=False)
    assert fit.converged and fit.posterior_check.answer == "right"
    is_the_posterior(fit.mean()["slope"], fit.sd()["slope"])
    is_the_posterior(fit.mean()["slope"], fit.sd(kind="linear_response")["slope"])
    assert "converged" in str(fit) and "slope" in str(fit.summary())
    guide = curvi.numpyro.AutoGuide(fit)
    found = Predictive(model, guide=guide, params=guide.params, num_samples=10)(KEY, jnp.ones(3), None)
    assert found["y"].shape == (10, 3)

    def density(theta):
        return -0.5 * theta["slope"] ** 2 - 0.5 * jnp.sum((Y - theta["slope"] * X) ** 2) / 0.09

    values = curvi.fit(curvi.Target(density, {"slope": 0.0}, order=0), key=KEY, progress=False)
    assert values.converged
    is_the_posterior(values.mean()["slope"], values.sd()["slope"], 0.2)
    rows = curvi.MinibatchTarget(
        lambda t: -0.5 * t["slope"] ** 2,
        lambda t, row: -0.5 * (row[1] - t["slope"] * row[0]) ** 2 / 0.09,
        np.column_stack([X, Y]), 10, {"slope": 0.0},
    )  # fmt: skip
    batched = curvi.fit(rows, key=KEY, progress=False)
    assert batched.converged
    is_the_posterior(batched.mean()["slope"], batched.sd()["slope"], 0.2)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few = curvi.fit(curvi.from_numpyro(model, X, Y), key=KEY, num_steps=2, progress=False)
        few.save(folder / "few")
        on = curvi.fit(fit.target, start=curvi.load(folder / "few", fit.target), progress=False)
        assert np.array_equal(on.q.params, fit.q.params), "resumed from a file, it is the same fit"
        fit.report(folder / "page.html")
        assert "slope" in (folder / "page.html").read_text(encoding="utf-8")
        assert fit.to_arviz(100)["posterior"]["slope"].shape == (1, 100)
        (folder / "line.py").write_text(MODEL)
        np.savez(folder / "data.npz", x=X, y=Y)
        program = Path(sys.executable).parent / "curvi"
        command = [program, "fit", folder / "line.py:model", "--data", folder / "data.npz", "--json"]
        done = subprocess.run([str(one) for one in command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)["posterior"]["slope"]
        is_the_posterior(said["mean"], said["sd"])
    versions = {name: importlib.metadata.version(name) for name in ("curvi", "jax", "numpyro", "equinox", "numpy")}
    print("works:", ", ".join(f"{name} {version}" for name, version in versions.items()), flush=True)


if __name__ == "__main__":
    main()
