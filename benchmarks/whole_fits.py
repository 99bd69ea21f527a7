"""Whole fits from values alone, certificate included: calls, and how often "converged" was wrong.

    python benchmarks/whole_fits.py --label NAME [--seeds 100 123] [--only MODEL] [--unseen]

A line per fit in results/whole_fits.jsonl: the calls until q came within 0.1 nat of the local optimum it ended in (the
climb), all calls, what the fit said, and the exact gap of its q. NAME goes into the setting of the lines, so that two
states of the method can be compared. The seeds are not among those that any setting was chosen on; the models of
--unseen are others than those of `discrete.py`, and nothing at all was chosen on them.
"""

import argparse
import time
from pathlib import Path

import jax
import numpy as np

import lines
from curvi import MeanField
from curvi.methods import PooledRegression
from curvi.methods.base import Budget
from curvi.methods.base import Problem as FitProblem
from discrete import THRESHOLD, TOLERANCE, Model, models
from held_out import ising, sigmoid_network
from reference_models import noisy_or
from reference_models.exact import basin, enumerated_elbo

RESULTS = Path(__file__).parent / "results" / "whole_fits.jsonl"
MAX_STEPS = 300


def unseen() -> dict[str, Model]:
    """Networks and spins of other seeds and sizes."""
    targets = {
        "noisy or, 12 causes": noisy_or(1, 12, 14),
        "noisy or, 13 causes": noisy_or(2, 13, 10),
        "Ising, 12 spins": ising(1, 12),
        "Ising, 13 spins": ising(2, 13),
        "sigmoid network, 12 hidden": sigmoid_network(1, 12, 20),
        "sigmoid network, 11 hidden": sigmoid_network(2, 11, 30),
    }
    return {name: Model(t, MeanField(t), enumerated_elbo(t), held_out=True) for name, t in targets.items()}


def whole_fit(target, start, key):
    """The last state and news of a fit, all its calls, and its parameters with the calls that led there."""
    method, problem = PooledRegression(), FitProblem(target, start)
    state, spent, path = method.init(problem, key), 0, []
    while True:
        state, news = method.advance(problem, state, key, Budget(1, TOLERANCE))
        path.append((spent, np.asarray(state.q.params)))
        spent += news.counts.log_density
        done = news.outcome is not None or (news.gain is not None and news.gain.within(TOLERANCE))
        if done or len(path) == MAX_STEPS:
            return state, news, spent, path


def measure(name: str, model, label: str, seed: int) -> None:
    value, began = jax.jit(model.elbo), time.perf_counter()
    state, news, spent, path = whole_fit(model.target, model.start, jax.random.key(seed))
    seconds = time.perf_counter() - began
    optimum = basin(model.elbo, state.q.params)[1]
    exact = float(value(state.q.params))
    climb = next((calls for calls, params in path if optimum - float(value(params)) <= THRESHOLD), None)
    converged = news.gain is not None and news.gain.within(TOLERANCE)
    lines.append(
        RESULTS,
        name,
        "PooledRegression",
        {"certificate": label},
        seed,
        climb=climb,
        total_calls=spent,
        outcome="CONVERGED" if converged else "NONE" if news.outcome is None else news.outcome.name,
        gap=optimum - exact,
        optimum=optimum,
        gain=state.gain,
        gain_se=state.gain_se,
        elbo=state.elbo,
        elbo_se=state.elbo_se,
        exact_elbo=exact,
        tolerance=TOLERANCE,
        run_seconds=seconds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--label", required=True, help="the name of this state of the method")
    parser.add_argument("--seeds", type=int, nargs=2, default=(100, 123), help="first seed, and the one after the last")
    parser.add_argument("--only", nargs="+", help="these models alone")
    parser.add_argument("--unseen", action="store_true", help="other models than those of discrete.py")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for name, model in (unseen() if arguments.unseen else models()).items():
        if arguments.only is None or name in arguments.only:
            for seed in range(*arguments.seeds):
                measure(name, model, arguments.label, seed)
            print(name, flush=True)


if __name__ == "__main__":
    main()
