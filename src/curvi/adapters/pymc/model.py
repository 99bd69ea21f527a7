"""Targets from PyMC models (PyMC 5 and later, an extra: pip install "curvi[pymc]").

The latents are the model's free variables under their own names and on their own supports, `tau` and not `tau_log__`.
PyMC's log density is evaluated at these values, without its transforms, and curvi adds the Jacobian of its own
bijection. So results, factors and error messages use the variables that the user wrote, a factor may be defined on the
support itself (a Gamma for a scale), and the PyMC and the NumPyro version of a model are the same target.

Two kinds of variables keep PyMC's transform: those whose bounds depend on other variables, and those whose transform
has no corresponding NumPyro constraint (a packed Cholesky factor, a zero-sum vector, chained transforms). Their
latent is the unconstrained value under PyMC's name for it (`chol_cholesky-cov-packed__`), and the variable itself is an
output.

The graph is converted to JAX once. PyTensor evaluates the start and constant bounds with its interpreter: compiling
them would take longer than the fit.
"""

import contextlib
import dataclasses
import sys
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from curvi.adapters.pymc.origin import pymc_origin
from curvi.model.target import Target


def from_pymc(model) -> Target:
    """The target of a PyMC model: the sum of the log densities of its variables and potentials, given its data.

    Latents are the free variables on their own supports; deterministics become the target's `outputs`; dims, coords
    and observations are kept in `origin`, for ArviZ. Missing observations that PyMC imputes are latents
    (`y_unobserved`). Inference starts at PyMC's initial point, which respects `initval`. Continuous latents have JAX's
    default floating-point type, not PyTensor's.

    Parameters
    ----------
    model
        A `pymc.Model` with continuous free variables. The current values of its data are used: a later
        `pymc.set_data` needs a new target.
    """
    pymc = import_pymc()
    if not isinstance(model, pymc.Model):
        hint = "; build it first and pass its backend.model" if hasattr(model, "backend") else ""
        raise ValueError(f"from_pymc takes a pymc.Model; got {type(model).__name__}{hint}")
    _refuse(model)
    with _quiet(), _interpreted():
        variables = _read_variables(model)
        inputs = [variable.value for variable in variables]
        log_joint = _as_jax(inputs, [_log_density(model, variables)])
        named = _output_graphs(model, variables)
        further = _as_jax(inputs, list(named.values()))
        init = _starts(model, variables)
        terms = _as_jax(inputs, _log_likelihoods(model, variables))
        predictions = _replaced(model.observed_RVs, {variable.rv: variable.constrained for variable in variables})
    names = [variable.name for variable in variables]

    def log_density(theta):
        with _quiet():
            return log_joint(*(theta[name] for name in names))[0].astype(jnp.result_type(float))

    def outputs(theta):
        with _quiet():
            return dict(zip(named, map(jnp.asarray, further(*(theta[name] for name in names)))))

    return Target(
        log_density,
        init,
        {variable.name: variable.support for variable in variables},
        outputs=outputs if named else None,
        origin=pymc_origin(model, names, inputs, terms, predictions),
    )


@dataclasses.dataclass(frozen=True)
class _Variable:
    """A free variable of the model.

    `value` is its input variable, `constrained` the same on the model's support. They differ where PyMC's transform is
    kept.
    """

    name: str
    rv: Any
    value: Any
    constrained: Any
    support: constraints.Constraint
    kept: Any = None
    """PyMC's transform where it is kept."""


def _read_variables(model) -> list[_Variable]:
    from pymc.util import get_transformed_name

    variables, known = [], {}
    for rv in model.free_RVs:
        transform = model.rvs_to_transforms[rv]
        support = _support(rv, transform)
        if support is not None:
            value = rv.type(name=rv.name)
            variable = _Variable(rv.name, rv, value, value, support)
        else:
            value = model.rvs_to_values[rv].type(name=get_transformed_name(rv.name, transform))
            # Bounds may be computed from earlier variables.
            (constrained,) = _replaced([transform.backward(value, *rv.owner.inputs)], known)
            variable = _Variable(value.name, rv, value, constrained, constraints.real, transform)
        known[rv] = variable.constrained
        variables.append(variable)
    return variables


def _support(rv, transform) -> constraints.Constraint | None:
    """The NumPyro constraint for a transform; None where PyMC's own must be kept."""
    from pymc.distributions import transforms
    from pymc.distributions.transforms import _default_transform
    from pymc.logprob.transforms import IntervalTransform

    if transform is None:
        # Also for a variable whose default transform was disabled: its support is the same.
        transform = _default_transform(rv.owner.op, rv)
    if transform is None:
        return constraints.real
    kind = type(transform)
    if isinstance(transform, IntervalTransform):
        return _interval(*transform.args_fn(*rv.owner.inputs))
    if isinstance(transform, transforms.Ordered):
        if not getattr(transform, "ascending", True):
            return None
        return constraints.positive_ordered_vector if transform.positive else constraints.ordered_vector
    return {
        type(transforms.log): constraints.positive,
        type(transforms.log_exp_m1): constraints.softplus_positive,
        type(transforms.logodds): constraints.unit_interval,
        type(transforms.simplex): constraints.simplex,
        type(transforms.circular): constraints.circular,
    }.get(kind)


def _interval(lower, upper) -> constraints.Constraint | None:
    from pymc.pytensorf import rvs_in_graph

    if any(end is not None and hasattr(end, "owner") and rvs_in_graph(end) for end in (lower, upper)):
        return None
    low, high = (_number(end, missing) for end, missing in ((lower, -np.inf), (upper, np.inf)))
    bounded = [np.isfinite(low), np.isfinite(high)]
    if any(not (np.all(ends) or not np.any(ends)) for ends in bounded):
        return None  # some elements are bounded and some are not
    below, above = (bool(np.all(ends)) for ends in bounded)
    if below and above:
        return constraints.interval(low, high)
    if below:
        return constraints.positive if np.all(low == 0) else constraints.greater_than(low)
    return constraints.less_than(high) if above else constraints.real


def _number(end, missing: float):
    """A bound as a number or an array; PyTensor evaluates it where it is computed from data."""
    if end is None:
        return missing
    if hasattr(end, "eval"):
        end = end.eval()
    end = np.unique(end) if np.size(np.unique(end)) == 1 else np.asarray(end)
    return float(end[0]) if end.size == 1 else end


def _terms(model, variables) -> dict:
    """The log densities of all variables at the inputs, element by element, by variable; without Jacobians."""
    from pymc.logprob.basic import conditional_logp

    # conditional_logp needs a separate variable for every value; kept transforms are substituted afterwards.
    stand_ins = {variable.rv: variable.rv.type() for variable in variables}
    values = {**stand_ins, **{rv: model.rvs_to_values[rv] for rv in model.observed_RVs}}
    terms = conditional_logp(values, warn_rvs=False)
    graphs = [terms[value] for value in values.values()]
    return dict(zip(values, _replaced(graphs, {stand_ins[v.rv]: v.constrained for v in variables})))


def _log_likelihoods(model, variables) -> list:
    terms = _terms(model, variables)
    return [terms[rv] for rv in model.observed_RVs]


def _log_density(model, variables):
    """ln p at the inputs, including Jacobians of kept transforms, as a scalar graph."""
    values = _known_values(model, variables)
    terms = [*_terms(model, variables).values(), *_replaced(model.potentials, values)]
    for variable in variables:
        if variable.kept is not None:
            jacobian = variable.kept.log_jac_det(variable.value, *variable.rv.owner.inputs)
            terms += _replaced([jacobian], values)
    return sum((term.sum() for term in terms[1:]), terms[0].sum())


def _known_values(model, variables) -> dict:
    """The value of each random variable: latents on their supports, and observations."""
    observed = {rv: model.rvs_to_values[rv] for rv in model.observed_RVs}
    return {**{variable.rv: variable.constrained for variable in variables}, **observed}


def _output_graphs(model, variables) -> dict:
    """Deterministics, and the variables whose latent is an unconstrained value, by name."""
    values = _known_values(model, variables)
    graphs = {variable.rv.name: variable.constrained for variable in variables if variable.kept is not None}
    computed = _replaced(model.deterministics, values)
    return {**graphs, **{one.name: graph for one, graph in zip(model.deterministics, computed)}}


def _replaced(graphs, values: dict) -> list:
    """Copies of graphs with variables replaced."""
    from pytensor.graph.replace import clone_replace

    return clone_replace(list(graphs), values) if graphs else []


def _as_jax(inputs, graphs):
    from pymc.sampling.jax import get_jaxified_graph

    try:
        return get_jaxified_graph(inputs=inputs, outputs=graphs)
    except NotImplementedError as error:
        raise ValueError(
            f"PyTensor cannot convert the model to JAX: {error}. Install what it names, or write the part of the "
            "model that needs it in other operations"
        ) from error


def _starts(model, variables) -> dict[str, np.ndarray]:
    """PyMC's initial point: on the supports, and unconstrained where the transform is kept."""
    from pymc.initial_point import make_initial_point_fn

    own = make_initial_point_fn(model=model, return_transformed=False)(0)
    kept = [variable.name for variable in variables if variable.kept is not None]
    free = model.initial_point(random_seed=0) if kept else {}
    dtype = jnp.result_type(float)
    return {v.name: np.asarray(free[v.name] if v.name in kept else own[v.rv.name], dtype) for v in variables}


def _refuse(model) -> None:
    """Raise ValueError for features that a target does not support."""
    if not model.free_RVs:
        raise ValueError("the PyMC model has no free variable, so there is nothing to infer; are all of them observed?")
    for rv in model.free_RVs:
        if "PartialObserved" in type(rv.owner.op).__name__:
            raise ValueError(
                f"variable '{rv.name.removesuffix('_unobserved')}' is multivariate and has missing observations; "
                "from_pymc imputes univariate ones only. Leave the incomplete rows out, or give the missing values a "
                "variable of their own"
            )
        if rv.dtype.startswith(("int", "uint", "bool")):
            raise ValueError(
                f"variable '{rv.name}' is discrete ({rv.dtype}); from_pymc takes continuous variables. Sum it out "
                "(pymc.Mixture, pymc_extras.marginalize), or write the model in NumPyro: from_numpyro takes discrete "
                "latents"
            )
    from pytensor.graph.traversal import ancestors

    graph = ancestors([*model.observed_RVs, *(model.rvs_to_values[rv] for rv in model.observed_RVs)])
    if any(var.owner is not None and "Minibatch" in type(var.owner.op).__name__ for var in graph):
        raise ValueError(
            "the PyMC model draws minibatches (pymc.Minibatch, total_size); from_pymc takes whole data. Pass the whole "
            "data to the model, or give log prior and log likelihood of a row to curvi.MinibatchTarget"
        )


def import_pymc():
    """PyMC with its JAX conversion, without changing JAX's configuration."""
    try:
        import pymc
    except ImportError as error:
        raise ImportError(f'from_pymc needs PyMC 5 or later ({error}): pip install "curvi[pymc]"') from error
    if "pytensor.link.jax.dispatch" not in sys.modules:
        # PyTensor enables 64-bit numbers for the whole process when this is first imported.
        before = jax.config.values["jax_enable_x64"]
        try:
            import pymc.sampling.jax
        finally:
            jax.config.update("jax_enable_x64", before)
    return pymc


def _interpreted():
    """A context in which PyTensor does not compile."""
    from pytensor.configdefaults import config

    return config.change_flags(mode="FAST_COMPILE", linker="py", cxx="")


@contextlib.contextmanager
def _quiet():
    """Silence warnings that concern PyTensor's own compilers, and its 64-bit numbers where JAX is set to 32 bits."""
    with warnings.catch_warnings():
        for message in ("Explicitly requested dtype", "PyTensor could not link to a BLAS"):
            warnings.filterwarnings("ignore", message)
        yield
