"""Targets from Stan programs, through PyStan's log density and gradient (an extra: pip install "curvi[stan]").

Stan computes on the host, draw by draw, without Hessian-vector products, so the target is of order 1. The
latents are Stan's unconstrained values: an unbounded parameter under its own name, any other as `tau_unconstrained`,
with the parameter itself, and the transformed parameters, among the outputs. Generated quantities, which may be random,
are left out.

As in Stan, `y ~ normal(mu, 1)` drops the constants of the density, so the ELBO lacks them too;
`target += normal_lpdf(y | mu, 1)` keeps them.
"""

import dataclasses
import functools
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from curvi.adapters.stan import worker as stan_worker
from curvi.model.target import Target


def from_stan(model, init: Mapping | None = None) -> Target:
    """The target of a Stan program with its data, of order 1.

    Parameters
    ----------
    model
        The result of `stan.build(program_code, data)` of PyStan 3.
    init
        Values of all parameters on their own supports, by name, where inference starts; Stan's unconstrained zero if
        None.
    """
    try:
        from stan.model import Model  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(f'from_stan needs PyStan 3 ({error}): pip install "curvi[stan]"') from error
    if not isinstance(model, Model):
        raise ValueError(f"from_stan takes the result of stan.build(program_code, data); got {type(model).__name__}")
    program = _Program(model.model_name, dict(model.data))
    layout = _read(program, model.param_names, model.dims)
    start = np.zeros(layout.size) if init is None else program.unconstrain(init)
    dtype = jnp.result_type(float)

    @jax.custom_jvp
    def log_density(u):
        return jax.pure_callback(program.values, jax.ShapeDtypeStruct((), dtype), u, vmap_method="broadcast_all")

    @log_density.defjvp
    def _(primals, tangents):
        shapes = jax.ShapeDtypeStruct((), dtype), jax.ShapeDtypeStruct((layout.size,), dtype)
        value, gradient = jax.pure_callback(program.gradients, shapes, *primals, vmap_method="broadcast_all")
        return value, gradient @ tangents[0]

    def outputs(theta):
        shape = jax.ShapeDtypeStruct((layout.num_constrained,), dtype)
        constrain = functools.partial(program.constrain, num_constrained=layout.num_constrained)
        flat = jax.pure_callback(constrain, shape, layout.join(theta), vmap_method="broadcast_all")
        return {block.name: _reshape(flat[block.constrained], block.shape) for block in layout.blocks if block.reported}

    return Target(
        lambda theta: log_density(layout.join(theta)),
        {block.latent: _reshape(start[block.free], block.latent_shape).astype(dtype) for block in layout.latents},
        order=1,
        outputs=outputs if any(block.reported for block in layout.blocks) else None,
    )


class _Program:
    """A compiled Stan program with its data, in a separate process (see `stan_worker`).

    Methods of `u` take one row of unconstrained values or many, and return as many results.
    """

    def __init__(self, name: str, data: dict):
        command = [sys.executable, stan_worker.__file__, name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.requests, self.replies = self.process.stdin, self.process.stdout
        self.lock = threading.Lock()
        self._send(data)
        weakref.finalize(self, _close, self.process, self.requests, self.replies)

    def _send(self, message) -> None:
        pickle.dump(message, self.requests)
        self.requests.flush()

    def call(self, name: str, rows: list, *options) -> list:
        """Results or exceptions, one per row."""
        with self.lock:
            try:
                self._send((name, rows, options))
                return pickle.load(self.replies)
            except (EOFError, OSError) as error:
                raise RuntimeError(
                    f"the process of the Stan program ended (exit code {self.process.poll()})"
                ) from error

    def values(self, u):
        return self._rows("log_prob", u, (), -np.inf, True)

    def gradients(self, u):
        return self.values(u), self._rows("log_prob_grad", u, u.shape[-1:], np.nan, True)

    def constrain(self, u, num_constrained: int):
        """Parameters and transformed parameters."""
        return self._rows("write_array", u, (num_constrained,), np.nan, True, False)

    def write(self, rows, transformed: bool) -> list[np.ndarray]:
        """Parameters, and with `transformed` the transformed parameters, of each row."""
        return [np.asarray(one) for one in self.call("write_array", np.asarray(rows).tolist(), transformed, False)]

    def unconstrain(self, init: Mapping) -> np.ndarray:
        plain = {name: np.asarray(value).tolist() for name, value in init.items()}
        (found,) = self.call("transform_inits", [plain])
        if isinstance(found, Exception):
            raise ValueError(f"init does not fit the parameters of the Stan program: {found}")
        return np.asarray(found, float)

    def accepts(self, size: int) -> bool:
        (found,) = self.call("log_prob", [[0.0] * size], True)
        return not isinstance(found, RuntimeError)

    def _rows(self, name: str, u, shape: tuple[int, ...], rejected: float, *options):
        u = np.asarray(u)
        found = self.call(name, u.reshape(-1, u.shape[-1]).tolist(), *options)
        out = [np.full(shape, rejected) if isinstance(one, Exception) else one for one in found]
        return np.asarray(out, u.dtype).reshape(u.shape[:-1] + shape)


def _close(process: subprocess.Popen, requests, replies) -> None:
    """End a worker, which exits when its requests end."""
    requests.close()
    replies.close()
    process.wait()


@dataclasses.dataclass(frozen=True)
class _Block:
    """One named quantity: its position among the constrained and, for a parameter, the unconstrained values."""

    name: str
    shape: tuple[int, ...]
    constrained: slice
    free: slice
    unbounded: bool

    @property
    def reported(self) -> bool:
        """Whether it is an output: an unbounded parameter is a latent under its own name."""
        return not self.unbounded

    @property
    def latent(self) -> str:
        return self.name if self.unbounded else f"{self.name}_unconstrained"

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return self.shape if self.unbounded else (self.free.stop - self.free.start,)


@dataclasses.dataclass(frozen=True)
class _Layout:
    blocks: list[_Block]
    size: int

    @property
    def latents(self) -> list[_Block]:
        return [block for block in self.blocks if block.free.stop > block.free.start]

    @property
    def num_constrained(self) -> int:
        return self.blocks[-1].constrained.stop

    def join(self, theta):
        """Stan's flat vector of unconstrained values, with arrays in column-major order."""
        return jnp.concatenate([jnp.ravel(theta[block.latent].T) for block in self.latents])


def _read(program: _Program, names, dims) -> _Layout:
    """The layout of the unconstrained values, found by perturbing them, since PyStan does not provide it."""
    sizes = [int(np.prod(shape)) for shape in dims]
    # A parameter never has more unconstrained than constrained values.
    size = next((size for size in range(sum(sizes), 0, -1) if program.accepts(size)), None)
    if size is None:
        raise ValueError("the Stan program has no parameters, so there is nothing to infer")
    base, *moved = program.write(np.vstack([np.zeros(size), 0.5 * np.eye(size)]), False)
    # The first constrained entry that a coordinate changes belongs to its parameter.
    first = [int(np.flatnonzero(values != base)[0]) for values in moved]
    point = np.random.default_rng(0).normal(size=size)
    (image,) = program.write([point], False)
    blocks, at, free = [], 0, 0
    # Transformed parameters follow the parameters, and generated quantities follow these.
    reported = len(program.write([np.zeros(size)], True)[0])
    for name, shape, length in zip(names, dims, sizes):
        constrained = slice(at, at + length)
        own = sum(at <= entry < at + length for entry in first)
        same = own == length and np.array_equal(image[constrained], point[free : free + own])
        if at + length <= reported and length:
            blocks.append(_Block(name, tuple(shape), constrained, slice(free, free + own), same and own > 0))
        at, free = at + length, free + own
    return _Layout(blocks, size)


def _reshape(flat, shape):
    """An array from Stan's column-major order."""
    return jnp.reshape(flat, shape[::-1]).T
