"""curvi and its peers, each run on the same flat log density from the start that its own documentation gives.

A method yields one `Run` for every setting tried. Points of a run carry the parameters: their ELBO is computed later,
outside the clock.
"""

import copy
import dataclasses
import importlib
import logging
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize

import curvi
from peer_problems import Flat, Problem

RATES = (0.1, 0.03, 0.01, 0.003, 0.001)
CHECKPOINT_GROWTH = 1.35
ADAM_STEPS = {"numpyro": 60_000, "blackjax": 5_000}


@dataclasses.dataclass(frozen=True)
class Normals:
    """Independent normals over z."""

    mean: np.ndarray
    log_sd: np.ndarray


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """A correlated normal over z."""

    mean: np.ndarray
    cholesky: np.ndarray


@dataclasses.dataclass(frozen=True)
class Draws:
    """An approximation known by its own draws and their log density."""

    z: np.ndarray
    log_q: np.ndarray


Approximation = Normals | Gaussian | Draws


@dataclasses.dataclass(frozen=True)
class Calls:
    """Calls of the model, per draw."""

    log_density: int = 0
    gradient: int = 0
    hvp: int = 0

    @property
    def passes(self) -> int:
        """Gradients and Hessian products, and values that came without a gradient."""
        return max(self.log_density, self.gradient) + self.hvp


@dataclasses.dataclass(frozen=True)
class Point:
    """What was known after `seconds` of running, compilation not counted."""

    seconds: float
    calls: Calls
    approximation: Approximation
    said: tuple[float, float] | None = None  # what a fit that ends here says is left to gain, and its standard error


@dataclasses.dataclass
class Run:
    """One run of one method at one setting."""

    method: str
    setting: dict
    compile_seconds: float
    run_seconds: float
    calls: Calls
    points: list[Point]
    outcome: str
    fit: curvi.Fit | None = None  # for what only curvi returns

    @property
    def family(self) -> str:
        return "mean field" if isinstance(self.points[-1].approximation, Normals) else "full rank"


@dataclasses.dataclass(frozen=True)
class Task:
    """What every method is given."""

    problem: Problem
    flat: Flat
    seed: int
    budget: float  # seconds of running, compilation not counted
    full: bool


class OutOfTimeError(Exception):
    pass


def typical(once) -> Run:
    """Of three runs that differ in their seconds alone the median; of long ones the first."""
    runs = [once()]
    while len(runs) < 3 and runs[0].run_seconds < 1:
        runs.append(once())
    return sorted(runs, key=lambda run: run.run_seconds)[len(runs) // 2]


# -- curvi ------------------------------------------------------------------------------------------------------------


# What the peers fit too: a product of normal factors over the coordinates that they see.
MEAN_FIELD: dict = {"family": "mean_field", "centering": "off", "progress": False}


def curvi_default(task: Task) -> Iterator[Run]:
    """The mean field, first in a process that has compiled nothing (cold), then again with another key (warm).

    Points are the states after its steps, with the clock of the whole fit; the last point is its end, with certificate
    and final ELBO. The same key gives the same bits, so that fits of fewer steps, outside the clock, tell the states.
    """
    for index, start in enumerate(("cold", "warm")):
        key = jax.random.key(2 * task.seed + index)

        def once(key=key, start=start):
            began = time.perf_counter()
            fit = curvi.fit(task.problem.target, key=key, **MEAN_FIELD)
            end = _normals(fit)
            passed = time.perf_counter() - began
            compiling = fit.seconds.compile if start == "cold" else 0.0
            calls = Calls(fit.counts.log_density, fit.counts.gradient, fit.counts.hvp)
            last = Point(passed - compiling, calls, end, (fit.remaining_gain, fit.remaining_gain_se))
            outcome = fit.outcome.name.lower()
            return Run("curvi", {"start": start}, compiling, passed - compiling, calls, [last], outcome, fit)

        run = once() if start == "cold" else typical(once)
        assert run.fit is not None
        run.points = [*_points(task, run.fit, key, run.compile_seconds + run.run_seconds), *run.points]
        yield run


def _points(task: Task, fit: curvi.Fit, key, passed: float) -> Iterator[Point]:
    history = fit.history
    last_of_round = np.append(history.num_draws[1:] != history.num_draws[:-1], True)
    for step in range(len(history)):
        # Fits that take long are looked at after each round only.
        if passed < 3.0 or last_of_round[step]:
            early = curvi.fit(task.problem.target, key=key, num_steps=step + 1, **MEAN_FIELD)
            spent = int(history.log_density[step])
            said = early.remaining_gain, early.remaining_gain_se
            yield Point(float(history.seconds[step]), Calls(spent, spent, spent), _normals(early), said)


def _normals(fit: curvi.Fit) -> Normals:
    params = np.asarray(fit.q.params).reshape(-1, 2)
    return Normals(params[:, 0], params[:, 1])


def reference(task: Task) -> Normals:
    """A long run, for the best mean field: ten times the precision, four times the draws."""
    method = curvi.methods.GrowingDraws(max_draws=max(8192, 4 * 2 ** int(np.log2(task.flat.size))))
    if task.flat.size > 2000:
        method = None
    key = jax.random.key(987)
    fit = curvi.fit(task.problem.target, key=key, tolerance=0.005, method=method, num_steps=300, **MEAN_FIELD)
    return _normals(fit)


# -- stochastic gradients ---------------------------------------------------------------------------------------------


def rates(
    task: Task, method, setting, draws_per_step, max_steps, init, step, read, grid: tuple[float, ...] = RATES
) -> Iterator[Run]:
    """Adam at every rate of the grid, one compiled program for all: `step(data, state, rate, key)`."""
    began = time.perf_counter()
    start = init()

    @jax.jit
    def advance(data, state, rate, key, first, num_steps):
        body = lambda i, s: step(data, s, rate, jax.random.fold_in(key, first + i))  # noqa: E731
        return jax.lax.fori_loop(0, num_steps, body, state)

    key = jax.random.key(task.seed)
    program = advance.lower(task.flat.data, start, 0.01, key, 0, 1).compile()
    compiling = time.perf_counter() - began
    for rate in grid:
        state, taken, seconds, points = start, 0, 0.0, []
        while taken < max_steps and seconds < task.budget:
            chunk = min(max(8, int(taken * (CHECKPOINT_GROWTH - 1))), max_steps - taken)
            if taken:
                # No chunk may run far past the budget.
                chunk = min(chunk, max(1, int(1.1 * taken * (task.budget - seconds) / seconds)))
            began = time.perf_counter()
            state = jax.block_until_ready(program(task.flat.data, state, rate, key, taken, chunk))
            seconds, taken = seconds + time.perf_counter() - began, taken + chunk
            calls = Calls(taken * draws_per_step, taken * draws_per_step)
            points.append(Point(seconds, calls, read(state)))
        outcome = "all steps" if taken >= max_steps else "out of time"
        yield Run(method, {**setting, "rate": rate}, compiling, seconds, points[-1].calls, points, outcome)


def numpyro_adam(task: Task) -> Iterator[Run]:
    import numpyro
    from numpyro.distributions import ImproperUniform, constraints
    from numpyro.infer import SVI, Trace_ELBO, init_to_value
    from numpyro.infer.autoguide import AutoNormal

    size, flat = task.flat.size, task.flat

    def model(data):
        z = numpyro.sample("z", ImproperUniform(constraints.real, (), (size,)))
        numpyro.factor("log_density", flat(data, z))

    guide = AutoNormal(model, init_loc_fn=init_to_value(values={"z": jnp.zeros(size)}))

    base = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO())

    def read(state):
        params = base.get_params(state)
        return Normals(np.asarray(params["z_auto_loc"]), np.log(np.asarray(params["z_auto_scale"])))

    def init():
        return base.init(jax.random.key(task.seed), flat.data)

    def step(data, state, rate, key):
        # A copy that knows the guide's parameters as `base` does, so that one program serves all rates.
        svi = copy.copy(base)
        svi.optim = numpyro.optim.Adam(rate)
        return svi.update(state, data)[0]

    yield from rates(task, "NumPyro AutoNormal, Adam", {}, 1, ADAM_STEPS["numpyro"], init, step, read)


def blackjax_adam(task: Task) -> Iterator[Run]:
    blackjax = importlib.import_module("blackjax")

    def algorithm(data, rate):
        return blackjax.meanfield_vi(lambda z: task.flat(data, z), optax.adam(rate), 100)

    def init():
        return algorithm(task.flat.data, 0.01).init(jnp.zeros(task.flat.size))

    def step(data, state, rate, key):
        return algorithm(data, rate).step(key, state)[0]

    def read(state):
        return Normals(np.asarray(state.mu), np.asarray(state.rho))

    yield from rates(
        task, "BlackJAX mean field, Adam", {"num_draws": 100}, 100, ADAM_STEPS["blackjax"], init, step, read
    )


# -- fixed draws ------------------------------------------------------------------------------------------------------


def _fixed(task: Task, method: str, num_draws: int, minimiser: str) -> Iterator[Run]:
    """SciPy on the ELBO of fixed independent draws; 30 of them with trust-ncg are the recipe of DADVI."""
    size, flat = task.flat.size, task.flat
    noise = jnp.asarray(np.random.default_rng(task.seed).standard_normal((num_draws, size)))

    def neg_elbo(params, data, noise):
        mean, log_sd = params[:size], params[size:]
        values = jax.vmap(lambda e: flat(data, mean + jnp.exp(log_sd) * e))(noise)
        return -values.mean() - log_sd.sum()

    def product(params, v, data, noise):
        return jax.jvp(lambda p: jax.grad(neg_elbo)(p, data, noise), (params,), (v,))[1]

    start = np.concatenate([np.zeros(size), np.full(size, -3.0)])
    began = time.perf_counter()
    both = jax.jit(jax.value_and_grad(neg_elbo)).lower(start, flat.data, noise).compile()
    hvp = jax.jit(product).lower(start, start, flat.data, noise).compile() if minimiser == "trust-ncg" else None
    compiling = time.perf_counter() - began

    def once() -> Run:
        counts, points = {"gradient": 0, "hvp": 0}, []
        began = time.perf_counter()

        def note(params):
            calls = Calls(counts["gradient"], counts["gradient"], counts["hvp"])
            mean, log_sd = np.array(params[:size]), np.array(params[size:])
            points.append(Point(time.perf_counter() - began, calls, Normals(mean, log_sd)))

        def objective(params):
            if time.perf_counter() - began > task.budget:
                raise OutOfTimeError
            counts["gradient"] += num_draws
            value, gradient = both(params, flat.data, noise)
            return float(value), np.asarray(gradient)

        def hessian_product(params, v):
            if time.perf_counter() - began > task.budget:
                raise OutOfTimeError
            counts["hvp"] += num_draws
            assert hvp is not None
            return np.asarray(hvp(params, v, flat.data, noise))

        note(start)
        options = {"maxiter": 20_000} if minimiser == "trust-ncg" else {"maxiter": 20_000, "maxfun": 40_000}
        try:
            params, best = start, np.inf
            # L-BFGS-B reports success where a wild first trial left it: it starts again until that gains nothing.
            while True:
                found = scipy.optimize.minimize(
                    objective, params, jac=True, hessp=hessian_product if hvp is not None else None, method=minimiser,
                    callback=note, options=options,
                )  # fmt: skip
                note(found.x)
                gained, params, best = best - found.fun, found.x, found.fun
                if minimiser == "trust-ncg" or not gained > 1e-3:
                    break
            outcome = "success" if found.success else str(found.message)
        except OutOfTimeError:
            outcome = "out of time"
        except (ValueError, FloatingPointError, np.linalg.LinAlgError) as error:
            outcome = f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - began
        calls = Calls(counts["gradient"], counts["gradient"], counts["hvp"])
        return Run(method, {"num_draws": num_draws}, compiling, seconds, calls, points, outcome)

    yield typical(once)


def fixed_newton(task: Task) -> Iterator[Run]:
    for num_draws in (30, 256):
        yield from _fixed(task, "fixed draws, trust-ncg", num_draws, "trust-ncg")


def fixed_lbfgs(task: Task) -> Iterator[Run]:
    yield from _fixed(task, "fixed draws, L-BFGS", 256, "L-BFGS-B")


# -- full rank --------------------------------------------------------------------------------------------------------


def pathfinder(task: Task) -> Iterator[Run]:
    algorithm = importlib.import_module("blackjax.vi.pathfinder")

    if task.flat.size > 2_000:
        return

    def approximate(data, key, start):
        return algorithm.approximate(key, lambda z: task.flat(data, z), start)

    began = time.perf_counter()
    arguments = task.flat.data, jax.random.key(task.seed), jnp.zeros(task.flat.size)
    program = jax.jit(approximate).lower(*arguments).compile()
    compiling = time.perf_counter() - began
    began = time.perf_counter()
    state, info = jax.block_until_ready(program(*arguments))
    seconds = time.perf_counter() - began
    length = int(np.isfinite(np.asarray(info.path.elbo)).sum())
    # The least that it can have been: searches along a line may have taken more gradients.
    calls = Calls(log_density=200 * length + length, gradient=length)
    z, log_q = algorithm.sample(jax.random.key(7), state, 20_480)
    points = [Point(seconds, calls, Draws(np.asarray(z), np.asarray(log_q)))]
    yield Run("BlackJAX Pathfinder", {}, compiling, seconds, calls, points, "done")


def score_matching(task: Task) -> Iterator[Run]:
    gsm = importlib.import_module("gsmvi.gsm")

    size, flat = task.flat.size, task.flat
    if size > 350:
        return
    began = time.perf_counter()
    example = np.zeros((2, size))
    scores = jax.jit(lambda d, z: jax.vmap(jax.grad(lambda x: flat(d, x)))(z)).lower(flat.data, example).compile()
    compiling = time.perf_counter() - began
    points, num_calls, looking = [], [0], [0.0]
    began = time.perf_counter()

    class Monitor:
        checkpoint = 1
        following = 0

        def __call__(self, step, moments, *_, **__):
            seconds = time.perf_counter() - began - looking[0]
            if step >= self.following or seconds > task.budget:
                entered = time.perf_counter()
                mean, cov = (np.asarray(m) for m in moments)
                point = Gaussian(mean, np.linalg.cholesky(cov))
                points.append(Point(seconds, Calls(0, num_calls[0]), point))
                self.following = max(step + 4, int(step * CHECKPOINT_GROWTH))
                looking[0] += time.perf_counter() - entered
            if seconds > task.budget:
                raise OutOfTimeError

    def score(z):
        num_calls[0] += len(z)
        return scores(flat.data, z)

    try:
        fitter = gsm.GSM(size, None, score)
        # Old-style key: the library seeds NumPy with its words.
        fitter.fit(jax.random.PRNGKey(task.seed), niter=5000, verbose=False, monitor=Monitor())
        outcome = "all steps"
    except OutOfTimeError:
        outcome = "out of time"
    seconds = time.perf_counter() - began - looking[0]
    yield Run("GSM (full rank)", {"batch": 2}, compiling, seconds, Calls(0, num_calls[0]), points, outcome)


# -- PyMC -------------------------------------------------------------------------------------------------------------


def pymc_advi(task: Task) -> Iterator[Run]:
    """ADVI as it comes, and with Adam; where the problem has a PyMC version with the same unconstrained coordinates."""
    if task.problem.pymc is None:
        return
    import pymc as pm

    logging.getLogger("pymc").setLevel(logging.ERROR)
    for rate in (None, *(RATES if task.full else (0.01,))):
        with task.problem.pymc():
            recorder = _Recorder(task)
            inference = pm.ADVI(random_seed=task.seed)
            recorder.order = _pymc_order(task.flat, inference.approx)
            kind: dict[str, Any] = {} if rate is None else {"obj_optimizer": pm.adam(learning_rate=rate)}
            try:
                inference.fit(10_000, progressbar=False, callbacks=[recorder], **kind)
                outcome = "all steps" if len(inference.hist) >= 10_000 else "out of time"
            except FloatingPointError as error:
                outcome = f"FloatingPointError: {str(error).splitlines()[0]}"
            recorder.note(inference.approx, max(len(inference.hist), recorder.step))
        last = recorder.points[-1]
        setting = {"optimiser": "default"} if rate is None else {"optimiser": "adam", "rate": rate}
        yield Run("PyMC ADVI", setting, recorder.compiling, last.seconds, last.calls, recorder.points, outcome)


class _Recorder:
    """Looks at PyMC's approximation ever more rarely; its looks do not count as running."""

    def __init__(self, task: Task):
        self.budget, self.points, self.order = task.budget, [], np.zeros(0, int)
        self.began, self.compiling, self.looking, self.step, self.next = time.perf_counter(), 0.0, 0.0, 0, 0

    def __call__(self, approx, losses, step):
        if self.step == 0:
            # What came before the end of the first step was building and compilation.
            self.compiling = time.perf_counter() - self.began
            self.began = time.perf_counter()
        self.step = step
        if step >= self.next:
            self.note(approx, step)
            self.next = step + max(8, step // 2)
        if self.seconds > self.budget:
            raise StopIteration

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began - self.looking

    def note(self, approx, step: int) -> None:
        seconds, entered = self.seconds, time.perf_counter()
        mean, rho = (approx.params_dict[name].get_value()[self.order] for name in ("mu", "rho"))
        log_sd = np.log(np.logaddexp(0.0, rho))
        self.points.append(Point(seconds, Calls(step, step), Normals(mean, log_sd)))
        self.looking += time.perf_counter() - entered


def _pymc_order(flat: Flat, approx) -> np.ndarray:
    """Where in PyMC's vector each of our coordinates stands."""
    places = {name.split("_log__")[0]: where for name, (_, where, *_) in approx.ordering.items()}
    order = np.zeros(flat.size, int)
    for slot in flat.q.layout.slots:
        where = places[slot.latent.name]
        order[slot.start : slot.start + slot.count] = np.arange(where.start, where.stop)
    return order


# What the command line calls them, in the order in which they run: curvi's first fit must find a fresh process.
METHODS = {
    "curvi": curvi_default,
    "newton": fixed_newton,
    "lbfgs": fixed_lbfgs,
    "blackjax": blackjax_adam,
    "numpyro": numpyro_adam,
    "pathfinder": pathfinder,
    "gsm": score_matching,
    "pymc": pymc_advi,
}
