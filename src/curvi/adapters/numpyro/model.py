"""Targets from NumPyro models.

A model is only traced on abstract values: once to find its sites, once for its log density and, if it has
deterministic sites, once for these. Nothing is sampled or evaluated, so that making a target is cheap
compared with compiling it. Start values on the usual supports are made in numpy; the supports and starts that
must be computed form one small compiled program.

NumPyro's validation compiles programs while a model runs and puts a test of the support around the density of
every site. Constant parameters and observations are checked once in numpy instead. Latents lie in their
supports by construction. NumPyro's validation is kept only if the support of an observation depends
on a latent, or the observation is computed in the model: there it is part of the density.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.infer.util import compute_log_probs

from curvi.adapters.numpyro.checks import check_constants, is_traced, kind_of, refuse, refuse_dependent
from curvi.adapters.numpyro.location_scale import location_and_scale, location_scale
from curvi.adapters.numpyro.origin import numpyro_origin
from curvi.adapters.numpyro.plates import add_axes, factored_target, has_rows
from curvi.adapters.numpyro.rows import OnRow, Subsample, find_subsample, is_within
from curvi.adapters.numpyro.starts import known_start
from curvi.adapters.numpyro.streams import open_rows
from curvi.model import support as supports_of
from curvi.model.factored import FactoredTarget
from curvi.model.minibatch import MinibatchTarget
from curvi.model.target import Target


def from_numpyro(
    model: Callable, /, *args, init_strategy: Callable | None = None, **kwargs
) -> Target | FactoredTarget | MinibatchTarget:
    """The target of a NumPyro model: the sum of the log densities of all its sites, given its arguments.

    Latents are the sample sites that are not observed, on their own supports, in the order of the model.
    `deterministic` sites become the target's `outputs`. Masks, scales, conditioning and `factor` sites are
    treated as in NumPyro. Inference starts where all unconstrained values are zero, unless `init_strategy` is given.
    Continuous latents have JAX's default floating-point type.

    Columns of `Rows` among the arguments are indexed by such a plate alone: `x[at]` in `with numpyro.plate(...) as at`,
    or `numpyro.subsample`. `Rows` itself is a dict of its columns there.

    A plate with `subsample_size` gives a `MinibatchTarget` with batches of that size, drawn by curvi. It must hold
    observations only; deterministic sites inside it are left out.

    Bits and bounded integers with one entry per row of a plate, whose row i affects only row i of each site, become the
    local latents of a `FactoredTarget` whose factors are the sites. Latents that affect the same site stay
    global.

    Parameters
    ----------
    model
        A function with NumPyro primitives. It may branch on its arguments, but not on the values of its sites.
    *args, **kwargs
        The arguments of the model. Arrays among them become data of the target.
    init_strategy
        One of NumPyro's `numpyro.infer.init_to_*`, for the start. The random ones use a fixed seed.
    """
    if not callable(model):
        raise ValueError(f"from_numpyro takes a NumPyro model, which is a function; got {type(model).__name__}")
    model, args, kwargs, stream = open_rows(model, args, kwargs)
    sites = read_sites(model, args, kwargs)
    if not sites.latents:
        raise ValueError(
            f"model '{getattr(model, '__name__', model)}' has no latent site, so there is nothing to infer; "
            "were observations passed for all of its sample statements?"
        )
    refuse_dependent(sites.program, sites.latents)
    for site in sites.samples:
        check_constants(*site)
    init, supports = _numbers(sites)
    if init_strategy is not None:
        init = _strategic_start(model, args, kwargs, init_strategy, init)

    def log_probs(model, theta, total):
        # Outside the substitution, the seed only handles sites without a value: no key is split for a latent.
        with numpyro.validation_enabled(sites.validate), handlers.seed(rng_seed=0):
            return compute_log_probs(model, args, kwargs, theta, sum_log_prob=total)[0]

    def joint(model, theta):
        return sum(log_probs(model, theta, True).values(), start=0.0)

    def deterministic(theta):
        trace = trace_of(handlers.substitute(model, data=theta), args, kwargs)
        return {name: jnp.asarray(trace[name]["value"]) for name in sites.deterministic}

    outputs = deterministic if sites.deterministic else None
    if stream is not None and sites.subsample is None:
        raise ValueError(
            "the model was given Rows, but none of its plates subsamples them; give that of the rows "
            "subsample_size=4096 or so, the rows for which the model is computed at a time"
        )
    if (plate := sites.subsample) is not None:

        def row_density(theta, row):
            if stream is not None:
                stream.current, row = row, 0
            return joint(OnRow(model, plate, row, inside=True), theta)

        return MinibatchTarget(
            lambda theta: joint(OnRow(model, plate, 0, inside=False), theta),
            row_density,
            jnp.arange(plate.size) if stream is None else stream.rows,
            plate.subsample_size,
            init,
            supports,
            outputs=outputs,
            location_scale=sites.location_scale(),
        )
    observed = {name: value for name, _, _, value in sites.samples if value is not None and not is_traced(value)}
    origin = numpyro_origin(model, args, kwargs, [latent.name for latent in sites.latents], observed, sites.plates)
    more = {"outputs": outputs, "origin": origin, "location_scale": sites.location_scale()}
    candidates = [latent.name for latent in sites.latents if latent.has_rows]
    factored = factored_target(lambda theta: log_probs(model, theta, False), init, supports, candidates, **more)
    if factored is not None:
        return factored
    by_site = lambda theta: log_probs(model, theta, False)  # noqa: E731
    density = lambda theta: joint(model, theta)  # noqa: E731
    return Target(density, init, supports, terms=by_site, data_rows=sites.data_rows, **more)


@dataclasses.dataclass(frozen=True)
class _Latent:
    """A latent site, the positions of its start and of the leaves of its support in the output of the program, and
    whether it has one entry per row of a plate.
    """

    name: str
    shape: tuple[int, ...]
    support: constraints.Constraint
    start_at: int
    leaves_at: range
    has_rows: bool


@dataclasses.dataclass
class _Sites:
    """The sites of a model, found by one abstract run."""

    program: ClosedJaxpr
    latents: list[_Latent]
    deterministic: list[str]
    samples: list[tuple]  # name, distribution, support, observed value (None for a latent) of every sample site
    validate: bool  # whether only the running model can tell if an observation lies in its support
    subsample: Subsample | None
    plates: dict[str, dict[str, int]]  # for each, the axis of each latent inside
    data_rows: int | None  # of the largest plate of observations
    located: dict[str, range]  # the positions of location and scale of latents in the output of the program

    def location_scale(self) -> dict[str, Callable]:
        return location_scale(self.program, {one.name: one.start_at for one in self.latents}, self.located)


def read_sites(model, args, kwargs) -> _Sites:
    latents, deterministic, samples, plates, axes, located, rows = [], [], [], [], {}, {}, []

    def run():
        out = []
        trace = trace_of(handlers.substitute(model, substitute_fn=start), args, kwargs)
        plates.append(find_subsample(trace))
        for name, site in trace.items():
            refuse(name, site)
            if site["type"] == "deterministic":
                if plates[0] is None or not is_within(site, plates[0].name):
                    deterministic.append(name)
            elif site["type"] == "sample":
                fn, support, value, observed = site["fn"], site["fn"].support, site["value"], site["is_observed"]
                samples.append((name, fn, support, value if observed else None))
                if observed:
                    rows.extend(frame.size for frame in site["cond_indep_stack"])
                else:
                    leaves = jax.tree.leaves(support)
                    places = range(len(out) + 1, len(out) + 1 + len(leaves))
                    shape = jnp.shape(value)
                    add_axes(axes, name, site, shape)
                    latents.append(_Latent(name, shape, support, len(out), places, has_rows(site, shape)))
                    out += [value, *leaves]
                    if (pair := location_and_scale(fn)) is not None:
                        located[name] = range(len(out), len(out) + 2)
                        out += pair
        return out

    program = jax.make_jaxpr(run)()
    validate = any(
        value is not None and is_traced((value, support)) and not supports_of.is_real(support)
        for _, _, support, value in samples
    )
    most = max(rows, default=None)
    return _Sites(program, latents, deterministic, samples, validate, plates[0], axes, most, located)


def trace_of(model, args, kwargs):
    with numpyro.validation_enabled(False):
        return handlers.trace(handlers.seed(model, rng_seed=0)).get_trace(*args, **kwargs)


def start(site):
    """The value of a latent site where its unconstrained value is zero; None for any other site.

    It needs only the shape and the support, so improper priors, which cannot be sampled, have a start too.
    """
    if site["type"] != "sample" or site["is_observed"]:
        return None
    support = site["fn"].support
    shape = site["kwargs"]["sample_shape"] + site["fn"].shape()
    if supports_of.is_discrete(support):
        value = support.feasible_like(jnp.zeros(shape, jnp.int32))
    else:
        try:
            bijection = biject_to(support)
        except NotImplementedError:
            raise ValueError(
                f"site '{site['name']}' has support {kind_of(support)}, onto which NumPyro has no bijection "
                "from the real numbers; reparameterise the site (numpyro.handlers.reparam)"
            ) from None
        value = bijection(jnp.zeros(bijection.inverse_shape(shape)))
    # The barrier gives the value its own variable, from which dependence can be traced.
    return jax.lax.optimization_barrier(value)


def _strategic_start(model, args, kwargs, strategy, known: dict) -> dict:
    """The start of one of NumPyro's strategies; discrete latents keep their `known` start."""
    if not callable(strategy):
        raise ValueError(f"init_strategy must be one of numpyro.infer.init_to_*; got {strategy!r}")
    # Strategies draw with the key of the site, which the seed handler must have set.
    substituted = handlers.substitute(handlers.seed(model, rng_seed=0), substitute_fn=strategy)
    trace = trace_of(substituted, args, kwargs)
    discrete = {name for name in known if supports_of.is_discrete(trace[name]["fn"].support)}
    start = {}
    for name, zero in known.items():
        value = np.asarray(zero if name in discrete else trace[name]["value"])
        if value.shape != np.shape(zero):
            raise ValueError(f"init_strategy gives '{name}' the shape {value.shape}; the model has {np.shape(zero)}")
        start[name] = value.astype(np.asarray(zero).dtype)
    return start


def _numbers(sites: _Sites) -> tuple[dict, dict]:
    """Starts and supports by name, without tracers; one compiled program computes those unknown to numpy."""
    starts, wanted = {}, []
    for latent in sites.latents:
        leaves = zip(latent.leaves_at, jax.tree.leaves(latent.support))
        traced = [at for at, leaf in leaves if isinstance(leaf, Tracer)]
        starts[latent.name] = None if traced else known_start(latent.support, latent.shape)
        wanted += traced + ([latent.start_at] if starts[latent.name] is None else [])
    computed = {}
    if wanted:
        evaluate = jaxpr_as_fun(sites.program)
        computed = dict(zip(wanted, jax.device_get(jax.jit(lambda: [evaluate()[at] for at in wanted])())))
    init, supports = {}, {}
    for latent in sites.latents:
        leaves, tree = jax.tree.flatten(latent.support)
        leaves = [computed.get(at, leaf) for at, leaf in zip(latent.leaves_at, leaves)]
        supports[latent.name] = jax.tree.unflatten(tree, leaves)
        init[latent.name] = computed[latent.start_at] if (start := starts[latent.name]) is None else start
    return init, supports
