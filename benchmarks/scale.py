"""Fits of up to 10^8 latents: seconds, memory, what is left to gain; rivals, the breakdown, the paper's schemes.

    python benchmarks/scale.py [--parts fits schemes peers breakdown roofline] [--out FILE] [--seconds 540] [--cpu]
    python benchmarks/scale.py --tables    (docs/scale.md from the lines)

Each run is a process of its own with a time limit, so that its peak of memory is its own and one that fails ends alone.
The first fit of a process compiles; the second, with another key, is the warm one. Lines go to results/scale.jsonl.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "scale.jsonl"
GPU_RUNS = {
    "fits": [["fit", "chain", "1e4"], ["fit", "chain", "1e5"], ["fit", "chain", "1e6"], ["fit", "counts", "1e6"],
             ["fit", "chain", "1e7"]],
    "breakdown": [["breakdown", "chain", "1e6"]],
    "roofline": [["roofline"]],
    "peers": [["peer", "chain", "1e6"], ["peer", "counts", "1e6"]],
    "schemes": [["scheme", "SchemeI", "1e6"], ["scheme", "SchemeII", "1e6"], ["scheme", "Woodbury", "1e6"],
                ["scheme", "SchemeI", "1e7"], ["scheme", "SchemeII", "1e7"]],
    "largest": [["fit", "counts", "1e5"], ["fit", "chain", "1e8"]],
}  # fmt: skip
CPU_RUNS = {
    "fits": [["fit", "chain", "1e4"], ["fit", "chain", "1e5"], ["fit", "counts", "1e4"]],
    "breakdown": [["breakdown", "chain", "1e5"]],
    "schemes": [["scheme", "SchemeI", "3e5"], ["scheme", "Woodbury", "3e5"], ["scheme", "SchemeII", "3e5"]],
    "peers": [["peer", "chain", "1e4"]],
    "largest": [["fit", "chain", "1e6"]],
}
STEPS = 6  # of a scheme


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="*", default=list(GPU_RUNS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--limit", type=float, default=150.0, help="seconds of one run")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--tables", action="store_true", help="write docs/scale.md from the lines")
    parser.add_argument("--run", nargs="*", help="one run, in this process")
    options = parser.parse_args()
    if options.tables:
        import scale_tables

        scale_tables.write(RESULTS)
        return
    if options.run:
        one(options.out, *options.run)
        return
    began, runs = time.perf_counter(), CPU_RUNS if options.cpu else GPU_RUNS
    for words in [words for part in options.parts for words in runs.get(part, [])]:
        left = options.seconds - (time.perf_counter() - began)
        if left < 15:
            print("no time left for", *words, flush=True)
            continue
        environment = {**os.environ, **({"JAX_PLATFORMS": "cpu"} if options.cpu else {})}
        command = [sys.executable, __file__, "--out", str(options.out), "--run", *words]
        try:
            done = subprocess.run(
                command, env=environment, timeout=min(left, options.limit), capture_output=True, text=True
            )
            said = (done.stdout + done.stderr[-1500:] * (done.returncode != 0)).strip()
        except subprocess.TimeoutExpired:
            said = "ran past its limit"
        print(f"{time.perf_counter() - began:6.1f} s", *words, said, flush=True)


def one(out: Path, kind: str, *words: str) -> None:
    """One run, whose line is written to `out`."""
    if kind == "roofline":
        from scale_roofline import roofline

        lines_of = roofline()
    else:
        model, size = words[0], int(float(words[1]))
        lines_of = {"fit": fits, "scheme": schemes, "breakdown": breakdown, "peer": peers}[kind](model, size)
    import jax.numpy as jnp

    import curvi  # noqa: F401  what imports take is no part of a fit
    import lines

    jnp.zeros(3).block_until_ready()
    imports = _host_bytes()
    for name, setting, measured in lines_of:
        lines.append(out, name, kind, setting, 0, **({"host_bytes": _host_bytes(), "import_bytes": imports} | measured))
        print(name, json.dumps({**setting, **measured}, default=float), flush=True)


def _host_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _wait(fit) -> None:
    fit.q.params.block_until_ready()


def measured_of(fit, seconds: float) -> dict:
    """What a line says of a fit."""
    from scale_models import device_bytes_in_use

    size = fit.q.noise_size
    return {
        "seconds": seconds,
        "compile_seconds": fit.seconds.compile,
        "run_seconds": fit.seconds.run,
        "outcome": fit.outcome.name,
        "nats_left": fit.remaining_gain,
        "nats_left_se": fit.remaining_gain_se,
        "nats_per_latent": fit.remaining_gain / size,
        "largest_step": fit.remaining_sds,
        "elbo": fit.elbo,
        "elbo_se": fit.elbo_se,
        "steps": len(fit.history),
        "draws": int(fit.history.num_draws.max()) if len(fit.history) else 0,
        "gradients": fit.counts.gradient,
        "products": fit.counts.hvp,
        "by": type(fit.method).__name__,
        "device_bytes": device_bytes_in_use(),
        "planned_bytes": fit.plan.num_bytes,
        "draws_at_once": fit.plan.draws_at_once,
        "host_bytes": _host_bytes(),
    }


def timed_fit(target, seed: int, **options):
    import jax

    import curvi

    began = time.perf_counter()
    found = curvi.fit(target, key=jax.random.key(seed), progress=False, **options)
    _wait(found)
    return found, time.perf_counter() - began


def fits(model: str, size: int):
    """The default fit of a mean field, cold and warm; for counts, its global parameters beside those of many draws."""
    import numpy as np

    from curvi.methods import StreamedNewton
    from scale_models import MODELS

    target = MODELS[model](size)
    cold, cold_seconds = timed_fit(target, 0, family="mean_field")
    found, seconds = timed_fit(target, 1, family="mean_field") if cold_seconds < 150 else (cold, cold_seconds)
    more = measured_of(found, seconds) | {"cold_seconds": cold_seconds, "warm": found is not cold}
    if model == "counts":
        many = StreamedNewton(first_draws=256, fresh_draws=8192)
        reference, _ = timed_fit(target, 2, family=found.q, method=many, tolerance=1e-5 * size)
        mean, sd = found.mean(), reference.sd()
        off = {name: float(abs(mean[name] - reference.mean()[name]) / sd[name]) for name in ("mu", "tau")}
        more |= {"off_sds": off, "reference_draws": int(reference.history.num_draws.max())}
        more |= {"reference_outcome": reference.outcome.name, "sd": {name: float(np.asarray(sd[name])) for name in off}}
    yield model, {"latents": size, "dtype": "float32"}, more


def schemes(name: str, size: int):
    """Some steps of a scheme of the paper with its certificate."""
    from curvi.methods import SchemeI, SchemeII
    from curvi.solve import Woodbury
    from scale_models import MODELS

    method = {"SchemeI": SchemeI(), "Woodbury": SchemeI(solver=Woodbury()), "SchemeII": SchemeII()}[name]
    target = MODELS["tied normal"](size)
    found, seconds = timed_fit(target, 0, family="mean_field", method=method, num_steps=STEPS)
    measured = measured_of(found, seconds)
    setting = {"latents": size, "dtype": "float32", "scheme": name, "draws": 256}
    yield "tied normal", setting, measured


def breakdown(model: str, size: int):
    """Where the seconds of a warm fit go: the model, the noise, everything else; from the time of each per draw."""
    import numpy as np

    from scale_models import MODELS
    from scale_parts import seconds_per_draw

    target = MODELS[model](size)
    timed_fit(target, 0, family="mean_field")
    found, seconds = timed_fit(target, 1, family="mean_field")
    whole, alone = seconds_per_draw(target, found.q)
    counts = np.array([found.counts.gradient, found.counts.hvp])
    of_model, of_noise = float(counts @ alone), float(counts @ (whole - alone))
    shares = {"model_share": of_model / seconds, "noise_share": of_noise / seconds}
    yield model, {"latents": size, "dtype": "float32"}, measured_of(found, seconds) | shares


def peers(model: str, size: int):
    """NumPyro's AutoNormal with Adam, constant rates and a decaying one, to the nats per latent of the default fit."""
    from scale_models import MODELS
    from scale_parts import adam

    target = MODELS[model](size)
    timed_fit(target, 0, family="mean_field")
    found, seconds = timed_fit(target, 1, family="mean_field")
    setting = {"latents": size, "dtype": "float32"}
    yield model, {**setting, "peer": "curvi"}, measured_of(found, seconds)
    for rate, halved in ((0.001, None), (0.003, None), (0.03, 1000)):
        named = {**setting, "peer": "AutoNormal, Adam", "rate": rate, "halved_every": halved}
        yield model, named, adam(model, size, rate, halved, found)


if __name__ == "__main__":
    main()
