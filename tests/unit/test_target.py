"""Targets: misuse is named at construction, functions are traced once, minibatches are unbiased."""

from itertools import combinations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

from curvi import FactoredTarget, MinibatchTarget, Target, from_numpyro
from curvi.model.minibatch import check_scale
from curvi.model.tracing import trace as trace_function


def log_density(theta):
    return sum((-0.5 * jnp.sum(value**2) for value in theta.values()), 0.0)


def log_row(theta, row):
    return -0.5 * (row["y"] - theta["mu"] * row["x"]) ** 2


def rows(num_rows=6, dtype=np.float64):
    y = np.linspace(-1.0, 2.0, num_rows).astype(dtype)
    return {"x": np.cos(3 * y), "y": y}


def minibatched(log_likelihood_row=log_row, batch_size=2, data=None, **kwargs):
    data = rows() if data is None else data
    init = kwargs.pop("init", {"mu": np.asarray(0.7)})
    return MinibatchTarget(log_density, log_likelihood_row, data, batch_size, init, **kwargs)


def whole(theta, data=None):
    data = rows() if data is None else data
    return log_density(theta) + jnp.sum(jax.vmap(lambda row: log_row(theta, row))(data))


# -- misuse ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, words",
    [
        (dict(init=[1.0, 2.0]), ["init", "dict", "list"]),
        (dict(init={}), ["init", "non-empty dict"]),
        (dict(init={3: 1.0}), ["names must be strings", "3"]),
        (dict(init={"mu": "zero"}), ["'mu'", "real numbers"]),
        (dict(init={"mu": 1.0 + 2.0j}), ["'mu'", "real numbers", "complex"]),
        (dict(init={"mu": np.zeros((3, 0))}), ["'mu'", "empty"]),
        (dict(init={"mu": np.nan}), ["'mu'", "not finite"]),
        (dict(init={"mu": 0.0, "tau": [1.0, np.inf]}), ["'tau'", "not finite"]),
        (dict(supports={"tua": constraints.positive}), ["tua", "not in init", "tau"]),
        (dict(supports={"tau": "positive"}), ["'tau'", "numpyro constraint", "'positive'"]),
        (
            dict(init={"tau": [1.0, -2.0]}, supports={"tau": constraints.positive}),
            ["'tau'", "outside its support", "positive", "-2"],
        ),
        (
            dict(init={"tau": 0.0}, supports={"tau": constraints.positive}),
            ["'tau'", "outside its support", "positive"],
        ),
        (
            dict(init={"p": [0.2, 0.2]}, supports={"p": constraints.simplex}),
            ["'p'", "outside its support", "simplex"],
        ),
        (dict(init={"p": 0.2}, supports={"p": constraints.simplex}), ["'p'", "0 axes", "simplex", "at least 1"]),
        (
            dict(init={"k": 5}, supports={"k": constraints.integer_interval(1, 4)}),
            ["'k'", "outside its support", "integers 1 to 4"],
        ),
        (dict(init={"k": 0.7}, supports={"k": constraints.boolean}), ["'k'", "outside its support"]),
        (
            dict(init={"k": -1}, supports={"k": constraints.nonnegative_integer}),
            ["'k'", "outside its support", "counts"],
        ),
        (dict(order=3), ["order", "0, 1 or 2", "3"]),
        (dict(order="2"), ["order", "'2'"]),
        (dict(order=True), ["order", "True"]),
        (dict(log_density=3.0), ["log_density", "function", "float"]),
        (dict(log_density=lambda theta: theta["tau"] ** 2), ["log_density", "one number", "(2,)", "jnp.sum"]),
        (dict(log_density=lambda theta: (1.0, 2.0)), ["log_density", "one number", "2 array"]),
        (dict(log_density=lambda theta: jnp.asarray(3)), ["log_density", "floating-point", "int"]),
        (dict(outputs="theta"), ["outputs", "function", "str"]),
        (dict(outputs=lambda theta: theta["mu"]), ["outputs", "dict"]),
    ],
)
def test_misuse_is_named(arguments, words):
    defaults = dict(log_density=log_density, init={"mu": 0.0, "tau": [1.0, 2.0]})
    with pytest.raises(ValueError) as error:
        Target(**{**defaults, **arguments})
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("batch_size", [0, -1, 7, 2.0, True, None, "all"])
def test_batch_size_is_an_integer_up_to_the_number_of_rows(batch_size):
    with pytest.raises(ValueError, match=r"batch_size .* 1 to the number of rows, 6; got") as error:
        minibatched(batch_size=batch_size)
    assert repr(batch_size) in str(error.value)


def test_batch_size_may_be_a_numpy_integer():
    assert minibatched(batch_size=np.int64(3)).batch_size == 3


@pytest.mark.parametrize(
    "data, words",
    [
        ({"x": np.zeros(3), "y": np.zeros(4)}, ["share their first axis", "[3, 4]"]),
        ({"x": np.zeros(3), "y": np.asarray(1.0)}, ["at least one axis"]),
        ({}, ["at least one axis"]),
    ],
)
def test_data_share_their_rows(data, words):
    with pytest.raises(ValueError) as error:
        minibatched(data=data)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    "arguments, name",
    [
        (dict(log_likelihood_row=lambda theta, row: row["x"] * jnp.ones(2)), "log_likelihood_row"),
        (dict(log_likelihood_row=2.0), "log_likelihood_row"),
    ],
)
def test_row_functions_return_one_number(arguments, name):
    with pytest.raises(ValueError, match=name):
        minibatched(**arguments)


# -- tracing ---------------------------------------------------------------------------------------------------

CALLS = []
MODULE_DATA = jnp.arange(5.0)


def density_without_closure(theta):
    CALLS.append(1)
    return -0.5 * jnp.sum((theta["mu"] - MODULE_DATA) ** 2)


def use_everywhere(target):
    """Runs a target eagerly, compiled, mapped and differentiated."""
    theta = target.init
    many = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), theta)

    @eqx.filter_jit
    def run(target, theta, many):
        full = target.full()
        batch = target.batch(jax.random.key(0))
        return full(theta), jax.vmap(full)(many), jax.grad(batch)(theta), jax.hessian(full)(theta)

    run(target, theta, many)
    target.full()(theta)
    return run


def test_log_density_is_called_once():
    calls = []
    data = jnp.arange(5.0)

    def density_with_closure(theta):
        calls.append(1)
        return -0.5 * jnp.sum((theta["mu"] - data) ** 2)

    use_everywhere(Target(density_with_closure, {"mu": 0.0}))
    assert len(calls) == 1


def test_log_density_without_a_closure_is_called_once():
    CALLS.clear()
    use_everywhere(Target(density_without_closure, {"mu": 0.0}))
    assert len(CALLS) == 1


def test_functions_of_a_minibatch_target_and_outputs_are_called_once():
    calls = {"prior": 0, "row": 0, "outputs": 0}

    def counted(name, function):
        def wrapper(*args):
            calls[name] += 1
            return function(*args)

        return wrapper

    target = MinibatchTarget(
        counted("prior", log_density),
        counted("row", log_row),
        rows(),
        2,
        {"mu": 0.5},
        outputs=counted("outputs", lambda theta: {"twice": 2 * theta["mu"]}),
    )
    use_everywhere(target)
    assert float(target.outputs(target.init)["twice"]) == 1.0
    assert calls == {"prior": 1, "row": 1, "outputs": 1}


@pytest.mark.parametrize("data", [jnp.arange(50.0), np.arange(50.0)], ids=["jax", "numpy"])
def test_closed_over_arrays_are_leaves(data):
    target = Target(lambda theta: -jnp.sum((theta["mu"] - data) ** 2), {"mu": 0.0})
    leaves = [leaf for leaf in jax.tree.leaves(target) if eqx.is_array(leaf) and leaf.shape == (50,)]
    assert len(leaves) == 1
    np.testing.assert_array_equal(leaves[0], data)
    # Leaves, and so arguments of compiled programs: new data need no new program.
    moved = eqx.tree_at(lambda t: t.function.consts, target, [jnp.zeros(50)])
    compiled = eqx.filter_jit(lambda target: target.full()(target.init))
    assert float(compiled(target)) == -np.sum(np.arange(50.0) ** 2)
    assert float(compiled(moved)) == 0.0


def test_module_arrays_are_leaves():
    target = Target(density_without_closure, {"mu": 0.0})
    assert any(getattr(leaf, "shape", None) == (5,) for leaf in jax.tree.leaves(target))


def test_a_target_compiles_once():
    traces = []

    @eqx.filter_jit
    def run(target, theta):
        traces.append(1)
        return target.full()(theta)

    target = Target(log_density, {"mu": 0.0})
    for value in (0.0, 1.0, 2.0):
        run(target, {"mu": jnp.asarray(value)})
    assert len(traces) == 1


# -- values ----------------------------------------------------------------------------------------------------


def test_latents_tell_name_shape_dtype_and_support():
    target = Target(
        log_density,
        {"mu": [1, 2], "tau": 2.0, "flag": [True, False]},
        {"tau": constraints.positive, "flag": constraints.boolean},
        order=1,
    )
    assert [latent.name for latent in target.latents] == ["mu", "tau", "flag"]
    assert [latent.shape for latent in target.latents] == [(2,), (), (2,)]
    assert [latent.dtype for latent in target.latents] == [np.float64, np.float64, np.int32]
    assert [latent.discrete for latent in target.latents] == [False, False, True]
    assert target.latents[0].support is constraints.real
    assert target.order == 1 and not target.minibatched
    np.testing.assert_array_equal(target.init["flag"], [1, 0])


def test_dtype_follows_init():
    single = Target(log_density, {"mu": np.zeros(3, np.float32), "tau": np.float32(1.0)})
    assert single.dtype == jnp.float32
    assert all(value.dtype == jnp.float32 for value in single.init.values())
    assert single.full()(single.init).dtype == jnp.float32
    assert jax.grad(single.full())(single.init)["mu"].dtype == jnp.float32
    batched = minibatched(data=rows(dtype=np.float32), init={"mu": np.float32(0.7)})
    assert batched.full()(batched.init).dtype == batched.batch(jax.random.key(0))(batched.init).dtype == jnp.float32
    assert Target(log_density, {"mu": 0.0}).dtype == jnp.float64
    discrete = Target(lambda theta: 0.5 * theta["k"], {"k": 1}, {"k": constraints.boolean})
    assert discrete.dtype == jnp.float64


def test_a_python_number_is_as_wide_as_an_array():
    """Weakly typed, it would give way to the float32 of the data."""
    data = jnp.arange(3.0, dtype=jnp.float32)
    target = Target(lambda theta: -jnp.sum((theta["mu"] - data) ** 2), {"mu": 0.0})
    assert not target.init["mu"].weak_type
    assert target.full()(target.init).dtype == jnp.float64


# -- minibatches -----------------------------------------------------------------------------------------------


def test_mean_over_all_batches_is_the_full_log_density(monkeypatch):
    target, theta = minibatched(batch_size=2), {"mu": jnp.asarray(-0.3)}
    chosen = []
    monkeypatch.setattr("curvi.model.minibatch._choose_rows", lambda key, num_rows, batch_size: jnp.array(chosen[-1]))
    values, slopes = [], []
    for pair in combinations(range(6), 2):
        chosen.append(pair)
        log_density_of_batch = target.batch(None)
        values.append(log_density_of_batch(theta))
        slopes.append(jax.grad(log_density_of_batch)(theta)["mu"])
    full = target.full()
    np.testing.assert_allclose(np.mean(values), full(theta), rtol=1e-13)
    np.testing.assert_allclose(np.mean(slopes), jax.grad(full)(theta)["mu"], rtol=1e-13)
    np.testing.assert_allclose(full(theta), whole(theta), rtol=1e-14)
    assert np.std(values) > 0.1


def test_batches_are_rows_without_replacement_and_all_of_them_occur():
    data = {"x": np.zeros(5), "y": 10.0 ** np.arange(5)}
    target = minibatched(lambda theta, row: row["y"] + 0 * theta["mu"], 2, data)
    theta = {"mu": jnp.asarray(0.0)}
    keys = jax.random.split(jax.random.key(3), 200)
    sums = np.asarray(jax.jit(jax.vmap(lambda key: target.batch(key)(theta)))(keys)) * 2 / 5
    pairs = {round(float(total)) for total in sums}
    assert pairs == {10**i + 10**j for i, j in combinations(range(5), 2)}
    same = target.batch(keys[0])(theta), target.batch(keys[0])(theta)
    assert same[0] == same[1]


def test_a_batch_of_all_rows_is_the_full_log_density():
    target = minibatched(batch_size=6)
    assert not target.minibatched and minibatched(batch_size=5).minibatched
    theta = {"mu": jnp.asarray(1.3)}
    np.testing.assert_allclose(target.batch(jax.random.key(0))(theta), target.full()(theta), rtol=1e-15)


# -- the scale of minibatches ----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 5, 6])
def test_check_scale_passes_what_is_right(batch_size):
    check_scale(minibatched(batch_size=batch_size), jax.random.key(0))
    check_scale(minibatched(batch_size=batch_size), jax.random.key(0), log_density=whole)


@pytest.mark.parametrize("num_rows", [6, 60_000])
def test_check_scale_passes_float32(num_rows):
    data = rows(num_rows, np.float32)
    target = minibatched(data=data, batch_size=3, init={"mu": np.float32(0.7)})
    check_scale(target, jax.random.key(0), log_density=lambda theta: whole(theta, data))


@pytest.mark.parametrize("factor", [6 / 2, 1 / 6, 1 / 2], ids=["N over B", "mean over N", "mean over B"])
def test_check_scale_refuses_rows_that_carry_a_factor(factor):
    target = minibatched(lambda theta, row: factor * log_row(theta, row))
    with pytest.raises(ValueError, match=r"minibatch scale: .* without any N/B factor, and no mean"):
        check_scale(target, jax.random.key(0), log_density=whole)


class UnscaledBatches(MinibatchTarget):
    """Forgets the factor N/B."""

    def batch(self, key):
        return lambda theta: self.prior(theta) + self._sum_rows(theta, jax.tree.map(lambda leaf: leaf[:2], self.data))


def test_check_scale_refuses_batches_that_do_not_average_to_the_whole():
    target = UnscaledBatches(log_density, log_row, rows(), 2, {"mu": 0.7})
    with pytest.raises(ValueError, match=r"batches average to .* exactly once"):
        check_scale(target, jax.random.key(0))


def test_check_scale_refuses_what_is_not_finite():
    target = minibatched(lambda theta, row: jnp.log(-jnp.abs(theta["mu"])))
    with pytest.raises(ValueError, match="not finite at the start"):
        check_scale(target, jax.random.key(0))


def test_traced_functions_refuse_other_shapes():
    function = trace_function(log_density, {"mu": jnp.zeros(2)}, "log_density")
    with pytest.raises(ValueError):
        function({"mu": jnp.zeros(3)})


# -- terms ------------------------------------------------------------------------------------------------------------


def test_terms_add_up_to_the_log_density():
    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(2.0))
        with numpyro.plate("rows", 3):
            numpyro.sample("y", dist.Normal(0.0, scale), obs=y)

    y = jnp.array([0.3, -1.0, 2.0])
    rows = MinibatchTarget(lambda t: -(t["x"] ** 2), lambda t, row: -((row - t["x"]) ** 2), y, 2, {"x": np.array(0.1)})
    bits = FactoredTarget(
        lambda t: {"rows": 0.3 * t["z"] * t["x"], "rest": -(t["x"] ** 2)},
        {"z": np.zeros(3, int), "x": np.array(0.5)},
        {"z": constraints.boolean},
        local={"z": "rows"},
    )
    for target, names in (
        (from_numpyro(model, y), {"scale", "y"}),
        (rows, {"prior", "rows"}),
        (bits, {"rows", "rest"}),
    ):
        found = target.terms(target.init)
        assert set(found) == names and any(term.shape == (3,) for term in found.values())
        np.testing.assert_allclose(
            sum(jnp.sum(term) for term in found.values()), target.full()(target.init), rtol=1e-12
        )
    assert Target(lambda t: -t["x"], {"x": np.array(1.0)}).terms({"x": jnp.ones(())}) is None
