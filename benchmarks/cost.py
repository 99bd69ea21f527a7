"""The cost of one step against the number of latents d: seconds, and the bytes that the compiled program needs.

Solvers run a fixed number of steps: damping of 1e9 Fisher informations keeps every system definite, whatever 8 draws
say of it, and a tolerance of zero keeps conjugate gradients going. Time is that of the processor, on one thread, which
other work on the machine disturbs least. Steps run as they do in a fit, in one compiled loop: the time of a step is the
difference between a long call and a short one, which leaves out what only a call costs (dispatch, fresh pages).
Each d runs in a process of its own: python benchmarks/cost.py D LINES.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import lines

NUM_DRAWS = 8
SIZES = (1_000, 10_000, 100_000, 1_000_000)
DENSE_SIZES = (125, 250, 500, 1_000)
CG_STEPS = 10
DEPTHS = (4, 12)
SHORT = 1  # steps of the short call
ENOUGH_SECONDS = 1.0  # that the steps timed should take
MOST_STEPS = 1_000
REPEATS = 3


def cases(num_latents: int) -> dict:
    """Methods by name, each with its setting."""
    from curvi.estimate import AnchoredScore
    from curvi.methods import Algorithm0, NaturalGradient, Safeguard, SchemeI, SchemeII
    from curvi.solve import CG, LiSSA, Woodbury

    fixed = Safeguard(damping=1e9, shrink=False)
    score = AnchoredScore(NUM_DRAWS)
    found = {}
    if num_latents in DENSE_SIZES:
        found["Algorithm 0 (dense)"] = Algorithm0(score), {}
    if num_latents in SIZES:
        cg = CG(tolerance=0.0, max_steps=CG_STEPS)
        found["Scheme I, CG"] = SchemeI(cg, score, fixed), {"cg_steps": CG_STEPS}
        found["Scheme I, Woodbury"] = SchemeI(Woodbury(), score, fixed), {}
        found["Scheme I, as shipped"] = SchemeI(estimator=score), {}
        found["natural gradient"] = NaturalGradient(score), {}
        for depth in DEPTHS:
            series = LiSSA(depth=depth, scale=1e12, tolerance=0.0, growth=float("inf"), check_every=100)
            setting = {"depth": depth, "draws_per_copy": 2}
            found[f"Scheme II, depth {depth}"] = SchemeII(series, score, 2, fixed), setting
    return found


def run(path: Path, quick: bool) -> None:
    """One process after another, from small to large."""
    sizes = sorted({*SIZES[: 2 if quick else None], *DENSE_SIZES[: 2 if quick else None]})
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
    for size in sizes:
        command = [sys.executable, __file__, str(size), str(path)]
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "XLA_FLAGS": flags}
        subprocess.run(command, check=True, env={**os.environ, **threads})


def main(num_latents: int, path: Path) -> None:
    import jax

    jax.config.update("jax_enable_x64", True)
    from problems import separable

    target = separable(num_latents)
    for name, (method, setting) in cases(num_latents).items():
        measured = measure(target, method)
        cost = f"{measured['run_seconds']:9.4f} s {measured['bytes'] / 2**20:10.1f} MiB"
        print(f"d = {num_latents:>9,}  {name:22s} {cost}", flush=True)
        setting = {"num_latents": num_latents, "num_draws": NUM_DRAWS, **setting}
        lines.append(path, "cost per step", name, setting, 0, **measured)


def measure(target, method) -> dict:
    """Seconds of one step and bytes of the program that takes steps, from a state that has a local model."""
    import equinox as eqx
    import jax

    import curvi

    q = curvi.MeanField(target)
    key = jax.random.key(0)
    # Data and state are arguments: as constants they would count as part of the program.
    data, code = eqx.partition(target, eqx.is_array)
    dynamic, static = eqx.partition(method.start(target, q, key), eqx.is_array)

    def steps(data, dynamic, key, num_steps):
        def step(index, carried):
            state = eqx.combine(carried[0], static)
            state, record = method.step(eqx.combine(data, code), state, jax.random.fold_in(key, index))
            return eqx.filter(state, eqx.is_array), record.counts.log_density

        return jax.lax.fori_loop(0, num_steps, step, (dynamic, jax.numpy.zeros((), jax.numpy.int32)))

    began = time.perf_counter()
    program = jax.jit(steps).lower(data, dynamic, key, SHORT).compile()
    compile_seconds = time.perf_counter() - began
    dynamic, calls = program(data, dynamic, key, SHORT)  # the first step only estimates

    def seconds(num_steps, repeat):
        began = time.process_time()
        jax.block_until_ready(program(data, dynamic, jax.random.fold_in(key, repeat), num_steps))
        return time.process_time() - began

    one = max(seconds(SHORT + 1, 0) - seconds(SHORT, 0), 1e-4)
    num_steps = min(max(round(ENOUGH_SECONDS / one), 2), MOST_STEPS)
    # The fastest of the repeats: other work on the machine only ever adds.
    short = min(seconds(SHORT, repeat) for repeat in range(REPEATS))
    long = min(seconds(SHORT + num_steps, repeat) for repeat in range(REPEATS))
    memory = program.memory_analysis()
    assert memory is not None, "this device does not say how much memory a program takes"
    parts = {
        "temporary": memory.temp_size_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
    }
    return {
        "bytes": sum(parts.values()),
        "bytes_by_kind": parts,
        "num_params": q.num_params,
        "log_density_calls": int(calls),
        "compile_seconds": compile_seconds,
        "run_seconds": (long - short) / num_steps,
        "num_timed": num_steps,
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
