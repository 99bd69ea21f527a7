"""Products against what the device could do at best: bytes over a stream measured in the same run, operations over the
peak of the precision used.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

PEAK = {"float32": 67e12, "tf32": 494e12}  # operations a second, H200 data sheet without sparsity


def best_of(call, *arguments, repeats: int = 10) -> float:
    jax.block_until_ready(call(*arguments))
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(call(*arguments))
        times.append(time.perf_counter() - began)
    return min(times)


def stream() -> float:
    """Bytes a second of a = b + s c on 10^9 numbers in all, read and written."""
    b, c = (jnp.full(2**28, x, jnp.float32) for x in (1.0, 2.0))
    return 3 * 4 * 2**28 / best_of(jax.jit(lambda b, c: b + 3.0 * c), b, c)


def roofline():
    speed = stream()
    for make in (logistic, low_rank, inner_step, sweep):
        name, seconds, num_bytes, operations, error = make()
        floor = max(num_bytes / speed, operations / PEAK["float32"])
        measured = {
            "seconds": seconds,
            "stream": speed,
            "peak": PEAK["float32"],
            "bytes": num_bytes,
            "operations": operations,
            "floor_seconds": floor,
            "share": floor / seconds,
            "relative_error": error,
        }
        yield name, {"dtype": "float32"}, measured


def logistic():
    """E[Hessian] product of a logistic regression on 32 draws: X'(w * (X V)), each draw its own weights."""
    rows, columns, draws = 4_000_000, 256, 32
    key = jax.random.key(0)
    x = jax.random.normal(key, (rows, columns), jnp.float32)
    theta, v = (0.05 * jax.random.normal(jax.random.fold_in(key, i), (columns, draws)) for i in (1, 2))
    block = 2**16

    def product(x, theta, v):
        def add(total, part):
            eta, along = (jnp.matmul(part, a, precision="highest") for a in (theta, v))
            p = jax.nn.sigmoid(eta)
            return total + jnp.matmul(part.T, p * (1 - p) * along, precision="highest"), None

        used = len(x) // block * block
        total, _ = jax.lax.scan(add, jnp.zeros((columns, draws)), x[:used].reshape(-1, block, columns))
        return add(total, x[used:])[0]

    run = jax.jit(product)
    seconds = best_of(run, x, theta, v)
    some = x[: 2**18]
    exact = np.asarray(some, np.float64)
    eta, along = exact @ np.asarray(theta, np.float64), exact @ np.asarray(v, np.float64)
    p = 1 / (1 + np.exp(-eta))
    wanted = exact.T @ (p * (1 - p) * along)
    found = np.asarray(run(some, theta, v), np.float64)
    operations = 3 * 2 * rows * columns * draws
    return "logistic product", seconds, 4 * rows * columns, operations, _error(found, wanted)


def low_rank():
    """(A + U' diag(w) U) v with U stored: one read of U is the least."""
    rank, size = 64, 20_000_000
    key = jax.random.key(1)
    u = jax.random.normal(key, (rank, size), jnp.float32)
    w, a, v = (jax.random.normal(jax.random.fold_in(key, i), (n,)) for i, n in ((1, rank), (2, size), (3, size)))
    from curvi.curvature.small import matmul

    run = jax.jit(lambda u, w, a, v: a * v + matmul(w * matmul(u, v), u))
    seconds = best_of(run, u, w, a, v)
    cut = slice(0, 200_000)
    small = [np.asarray(part, np.float64) for part in (u[:, cut], w, a[cut], v[cut])]
    wanted = small[2] * small[3] + (small[1] * (small[0] @ small[3])) @ small[0]
    found = np.asarray(run(u[:, cut], w, a[cut], v[cut]), np.float64)
    # U is read twice: all of U v is known before any of U' is added.
    return "stored low-rank product", seconds, 2 * 4 * rank * size + 12 * size, 4 * rank * size, _error(found, wanted)


def inner_step():
    """y <- g + y - X y / C0 of Scheme II with X = A + w s s', one draw."""
    size = 100_000_000
    key = jax.random.key(2)
    g, y, a, s = (jax.random.normal(jax.random.fold_in(key, i), (size,), jnp.float32) for i in range(4))

    def step(g, y, a, s):
        return g + y - (a * y + 0.3 * (s * y).sum() * s) / 10.0

    run = jax.jit(step)
    seconds = best_of(run, g, y, a, s)
    cut = slice(0, 10**6)
    wanted = step(*(np.asarray(part[cut], np.float64) for part in (g, y, a, s)))
    found = run(*(part[cut] for part in (g, y, a, s)))
    # The inner product reads s and y; then g, y, a and s are read and the result written.
    return "inner step of Scheme II", seconds, 7 * 4 * size, 8 * size, _error(np.asarray(found), np.asarray(wanted))


def sweep():
    """One gradient sweep of the chain, 32 draws made where they are used: read and written are parameters alone."""
    import curvi
    from curvi.estimate.streamed import programs
    from curvi.methods.base import Problem
    from curvi.methods.streamed_newton.method import draws_at_once
    from scale_models import chain

    size, draws = 10_000_000, 32
    target = chain(size)
    q = curvi.MeanField(target)
    chunk, seed = draws_at_once(Problem(target, q)), np.array([1, 2], np.uint32)
    run = lambda: programs.sweep(target, q, seed, np.int32(draws), num_parts=1, chunk=chunk)  # noqa: E731
    seconds = best_of(run, repeats=5)
    # Per draw and latent: about 35 operations for noise, 30 for value and gradient; x and its slope are kept once.
    return "gradient sweep of the chain", seconds, draws * size * 4 * 4, draws * size * 65, float("nan")


def _error(found, wanted) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
