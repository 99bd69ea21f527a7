"""The families over which their laws run, at several shapes and supports: a new family is a new row."""

import dataclasses
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from curvi import Banded, Bordered, FullRank, LowRank, MeanField, Target, factors
from curvi.family import Family
from curvi.family.centering import Centering, centerable, with_centering
from curvi.family.triangular_path import TriangularPath

RNG = np.random.default_rng(0)
PRECISION = np.linalg.inv(np.cov(RNG.normal(size=(12, 4)), rowvar=False))
CENTRE = np.array([0.3, -1.0, 2.0, 0.0])


def gaussian(precision=PRECISION, order=2, dtype=float) -> Target:
    """A normal density in four dimensions, whose normaliser is known."""
    precision, centre = precision.astype(dtype), CENTRE.astype(dtype)
    return Target(
        lambda t: -0.5 * (t["x"] - centre) @ precision @ (t["x"] - centre), {"x": np.zeros(4, dtype)}, order=order
    )


def evidence(precision=PRECISION) -> float:
    """The logarithm of the normaliser of `gaussian`."""
    return 2 * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(precision)[1]


def skewed(order=2, dtype=float, size=2) -> Target:
    """Correlated, not normal, and partly constrained."""

    def log_density(t):
        return 3 * jnp.log(t["s"]) - t["s"] * (1 + t["x"] @ t["x"]) + 0.5 * t["x"][0] * t["x"][1] - 0.1 * t["x"][0] ** 4

    init = {"x": np.zeros(size, dtype), "s": np.array(1.0, dtype)}
    return Target(log_density, init, {"s": constraints.positive}, order=order)


def shaped() -> Target:
    """A matrix, a point of a simplex and a number in an interval."""

    def log_density(t):
        along = t["p"] @ jnp.array([1.0, 2.0, -1.0])
        return -jnp.sum(t["w"] ** 2) - t["w"][0, 0] * along * t["u"] + jnp.sum(jnp.log(t["p"])) + jnp.sin(t["u"])

    init = {"w": np.zeros((2, 1)), "p": np.array([0.2, 0.3, 0.5]), "u": np.array(0.5)}
    return Target(log_density, init, {"p": constraints.simplex, "u": constraints.interval(0, 2)})


def mixed(order=2, dtype=float, size=2) -> Target:
    """A bit and a value of three between correlated continuous latents."""

    def log_density(t):
        rest = t["x"] - jnp.array([0.8, -0.4, 0.2, 0.0][:size], dtype) * t["kind"]
        return (
            -jnp.sum(rest**2)
            + 1.4 * rest[0] * rest[1]
            + 3 * jnp.log(t["s"])
            - t["s"] * (2 + 0.5 * t["bit"] * rest[0] ** 2)
        )

    init = {"bit": np.array(0), "x": np.zeros(size, dtype), "kind": np.array(1), "s": np.array(1.0, dtype)}
    supports = {"bit": constraints.boolean, "kind": constraints.integer_interval(0, 2), "s": constraints.positive}
    return Target(log_density, init, supports, order=order)


def grouped(order=2, dtype=float) -> Target:
    """Two blocks of two coordinates each, and a positive scale."""

    def log_density(t):
        apart = t["a"] - 0.4 * t["b"]
        own = -jnp.sum(t["s"] * apart**2) - 0.5 * jnp.sum(t["b"] ** 2) - 0.2 * jnp.sum(t["b"] ** 3 / (1 + t["b"] ** 2))
        return own + 3 * jnp.log(t["s"]) - 2 * t["s"]

    init = {"a": np.zeros(2, dtype), "s": np.ones((), dtype), "b": np.zeros(2, dtype)}
    return Target(log_density, init, {"s": constraints.positive}, order=order)


def crossed(order=2, dtype=float) -> Target:
    """The columns of a matrix as blocks, and points of simplexes as blocks of another set, beside one number."""

    def log_density(t):
        ties = t["w"].sum() * t["u"] - 0.3 * t["w"][0] @ t["p"][0, :2]
        return -jnp.sum(t["w"] ** 2) + 0.4 * ties - t["u"] ** 2 + 2 * jnp.sum(jnp.log(t["p"]))

    init = {"w": np.zeros((1, 2), dtype), "p": np.full((1, 3), 1 / 3, dtype), "u": np.zeros((), dtype)}
    return Target(log_density, init, {"p": constraints.simplex}, order=order)


def chained(order=2, dtype=float) -> Target:
    """Two series of three steps each, interleaved, around a positive scale."""

    def log_density(t):
        level, slope = t["level"], t["slope"]
        walk = jnp.sum((level[1:] - level[:-1] - 0.5 * slope[:-1]) ** 2) * t["s"] + jnp.sum(jnp.cosh(slope))
        return -0.5 * walk - 0.5 * jnp.sum((level - 0.5) ** 2) + 3 * jnp.log(t["s"]) - 2 * t["s"]

    init = {"level": np.zeros(3, dtype), "s": np.ones((), dtype), "slope": np.zeros(3, dtype)}
    return Target(log_density, init, {"s": constraints.positive}, order=order)


def several_kinds() -> Target:
    """A positive number, a share, a bit and a real number."""

    def log_density(t):
        share = 2 * jnp.log(t["share"]) + jnp.log1p(-t["share"]) + t["bit"] * t["share"]
        return 2 * jnp.log(t["s"]) - t["s"] * (1 + t["x"] ** 2) + share

    init = {"s": np.array(1.0), "share": np.array(0.6), "bit": np.array(0), "x": np.array(0.2)}
    supports = {"s": constraints.positive, "share": constraints.unit_interval, "bit": constraints.boolean}
    return Target(log_density, init, supports)


def centred() -> Target:
    """Two groups around a location, on a scale, and the logarithm of a positive number around one of them."""

    def log_density(t):
        a = -2 * jnp.log(t["tau"]) - jnp.sum((t["a"] - t["mu"]) ** 2) / (2 * t["tau"] ** 2)
        b = -jnp.log(t["b"]) - (jnp.log(t["b"]) - t["a"][0]) ** 2
        rows = -0.5 * jnp.sum((jnp.array([0.5, -0.5]) - t["a"]) ** 2) - 0.2 * jnp.log(t["b"]) ** 2
        return a + b + rows - t["mu"] ** 2 + 2 * jnp.log(t["tau"]) - 3 * t["tau"]

    init = {"mu": np.array(0.0), "tau": np.array(1.0), "a": np.zeros(2), "b": np.array(1.0)}
    around = {"b": lambda t: (t["a"][0], 0.7), "a": lambda t: (t["mu"], t["tau"])}
    return Target(log_density, init, {"tau": constraints.positive, "b": constraints.positive}, location_scale=around)


def with_lambdas(q: Family, target: Target) -> Family:
    """q with centring where the target shows it."""
    if not target.location_scale:
        return q
    shapes = {latent.name: latent.shape for latent in target.latents}
    q = with_centering(q, Centering.as_written(centerable(q, target.location_scale), shapes, q.params.dtype))
    return q.recentered(np.array([0.3, 0.7, 0.4]))


def line() -> Target:
    """One number."""
    return Target(lambda t: -(t["x"] ** 2) - 0.1 * t["x"] ** 4 + jnp.sin(t["x"]), {"x": np.array(0.5)})


def elbo_on(q, target, noise):
    """The ELBO on this noise, for a q whose draws are all reparameterised."""
    return jax.vmap(lambda e: q.log_joint(target.full(), q.from_normal(e)))(noise).mean() + q.entropy()


def unit_natural_step(q, target, noise):
    """The best mean field given the expectations under q, if it is normal."""
    grad = jax.grad(lambda p: elbo_on(q.replace(p), target, noise))(q.params)
    return q.move(q.fisher().factorise().solve(grad))


def both_triangles(matrix):
    """The symmetric matrix that an estimate stands for."""
    return (matrix + matrix.T) / 2


def fixed_point(q, target, noise, read=both_triangles):
    """The q whose mean and precision are those of the expectations under q: E[slope], and E[hess] by Stein's identity
    from E[slope e'], which is symmetric but for the noise.
    """
    path = q.path
    assert isinstance(path, TriangularPath)
    start = path.coordinates(np.asarray(q.params, np.float64))
    found = path.gradients(q, lambda q, x: q.log_joint(target.full(), x), jnp.asarray(start), noise, jax.vmap)[1]
    slope, matrix = np.asarray(found[: path.size]), np.asarray(found[path.size :]).reshape(path.size, -1)
    factor = np.asarray(q.factor())
    covariance = np.linalg.inv(-read(factor.T @ matrix))
    mean = np.asarray(q.mean()) + factor @ covariance @ factor.T @ slope
    return q.with_moments(mean, np.linalg.cholesky(factor @ covariance @ factor.T))


def own_fixed_point(q, target, noise):
    """The whole step of the fixed point of q's own path."""
    path, params = q.path, np.asarray(q.params, np.float64)
    c = jnp.asarray(path.coordinates(params))
    slope = path.gradients(q, lambda q, x: q.log_joint(target.full(), x), c, noise, jax.vmap)[1]
    found = path.fixed_point(params, np.asarray(slope), 0.02, 1e-16)
    return q.replace(jnp.asarray(found.at(1.0)))


@dataclasses.dataclass(frozen=True)
class Row:
    """One family over one target.

    `normal` says that all draws but those of discrete latents are smooth functions of normal noise. With `num_nodes` a
    dimension, quadrature is exact enough for its ELBO; `values` counts those of each discrete latent, in the order of
    the draw. The family contains the normal density with precision `gaussian`, at which a `unit_step` ends, if it has
    one, and which is `best`; `rotates` says whether it is the same in rotated coordinates. The metric of steps is the
    Fisher information, or at least this share of it. `slow` rows are not among the fast tests.
    """

    family: Callable[[Target], Family]
    target: Callable[[], Target]
    normal: bool = True
    num_nodes: int = 0
    values: tuple[int, ...] = ()
    gaussian: np.ndarray | None = None
    unit_step: Callable | None = None
    best: Callable[[], Family] | None = None
    rotates: bool = False
    metric: float | None = None
    slow: bool = False

    def q(self) -> Family:
        """A q away from its start."""
        q = self.family(self.target())
        return q.replace(q.params + 0.3 * jnp.cos(jnp.arange(q.num_params) ** 2.0))

    def exact_elbo(self, target: Target, q: Family):
        """The ELBO as a function of the parameters: quadrature over normal noise, enumeration of discrete latents."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(self.num_nodes)
        smooth = int(q.pathwise_columns.sum())
        points = np.stack([part.ravel() for part in np.meshgrid(*[nodes] * smooth, indexing="ij")], 1)
        shares = np.prod(np.meshgrid(*[weights / weights.sum()] * smooth, indexing="ij"), 0).ravel()
        noise = np.zeros((len(points), q.noise_size))
        noise[:, q.pathwise_columns] = points

        def at(params):
            moved, total = q.replace(params), q.replace(params).entropy()
            for state in itertools.product(*(range(number) for number in self.values)):

                def one(e, state=state):
                    left = iter(state)
                    x = [v if jnp.issubdtype(v.dtype, jnp.floating) else v * 0 + next(left) for v in moved.follow(q, e)]
                    return jnp.exp(moved.weighed_log_prob(tuple(x))) * moved.log_joint(target.full(), tuple(x))

                total = total + jnp.asarray(shares) @ jax.vmap(one)(jnp.asarray(noise))
            return total

        return at


def _kinds(target):
    return MeanField(target, {"s": factors.Gamma(), "share": factors.Beta()})


def _in_blocks(target, **marginals):
    return Bordered(target, {"group": ["a", "b"]}, **marginals)


def _crossed(target):
    return Bordered(target, {"column": {"w": 1}, "row": "p"})


def _pairs(target):
    return Bordered(target, {"each": "x"})


def _one(target, **marginals):
    return LowRank(target, 1, **marginals)


def _two(target):
    return LowRank(target, 2)


def _series(target):
    return Banded(target, ["level", "slope"], width=2)


def one_factor():
    """The normal density with precision `FACTOR`."""
    q = LowRank.of(MeanField(gaussian()), LENGTHS[:, None], UNIQUE)
    return q.replace(q.params.at[:4].set(CENTRE))


def _skewed(family):
    """The same family with skewed marginals."""
    return lambda target: family(target, marginals="sinh_arcsinh")


UNIQUE, LENGTHS = np.array([0.5, 1.0, 0.8, 0.3]), np.array([0.6, -1.0, 0.4, 0.9])
FACTOR = np.linalg.inv(np.diag(UNIQUE**2) + np.outer(LENGTHS, LENGTHS))
# Given its neighbours, each coordinate is independent of the others.
CHAIN = np.diag([2.0, 3.0, 1.5, 4.0]) + np.diag([-1.0, 0.8, -1.2], 1) + np.diag([-1.0, 0.8, -1.2], -1)
DIAGONAL = np.diag([0.5, 1.0, 4.0, 20.0])
FAMILIES = {
    "mean field": Row(MeanField, gaussian, gaussian=DIAGONAL, unit_step=unit_natural_step),
    "mean field, constrained": Row(MeanField, skewed, num_nodes=24),
    "mean field, shapes": Row(MeanField, shaped),
    "mean field, kinds": Row(_kinds, several_kinds, normal=False),
    "mean field, centred": Row(lambda target: with_lambdas(MeanField(target), target), centred, num_nodes=9),
    "mean field, discrete": Row(
        lambda target: MeanField(target, {"s": factors.LogNormal()}), mixed, num_nodes=16, values=(2, 3)
    ),
    "full rank": Row(FullRank, gaussian, gaussian=PRECISION, unit_step=fixed_point, rotates=True),
    "full rank, constrained": Row(FullRank, skewed, num_nodes=24),
    "full rank, shapes": Row(FullRank, shaped),
    "full rank, one dimension": Row(FullRank, line, num_nodes=40),
    "full rank, centred": Row(lambda target: with_lambdas(FullRank(target), target), centred, num_nodes=9),
    "full rank, discrete": Row(FullRank, mixed, num_nodes=16, values=(2, 3)),
    "bordered": Row(_in_blocks, grouped),
    "bordered, crossed": Row(_crossed, crossed),
    "bordered, constrained": Row(_pairs, skewed, num_nodes=24),
    "bordered, centred": Row(lambda t: with_lambdas(Bordered(t, {"group": "a"}), t), centred, num_nodes=9),
    "low rank": Row(_one, gaussian, gaussian=FACTOR, best=one_factor, metric=1 / 3),
    "low rank, two factors": Row(_two, chained, metric=1 / 3),
    "low rank, constrained": Row(_one, lambda: skewed(size=3), num_nodes=9, metric=1 / 3),
    "low rank, centred": Row(lambda t: with_lambdas(_one(t), t), centred, num_nodes=7, metric=1 / 3),
    "low rank, discrete": Row(_one, lambda: mixed(size=3), num_nodes=7, values=(2, 3), metric=1 / 3),
    "banded": Row(Banded, gaussian, gaussian=CHAIN, unit_step=own_fixed_point),
    "banded, interleaved": Row(_series, chained),
    "banded, constrained": Row(Banded, skewed, num_nodes=24),
    "banded, centred": Row(lambda t: with_lambdas(Banded(t), t), centred, num_nodes=9),
    "banded, discrete": Row(Banded, mixed, num_nodes=16, values=(2, 3)),
    "bordered, discrete": Row(_pairs, mixed, num_nodes=16, values=(2, 3)),
    "mean field, skewed": Row(_skewed(MeanField), skewed, num_nodes=32, slow=True),
    "full rank, skewed": Row(_skewed(FullRank), skewed, num_nodes=32, metric=1 / 6),
    "full rank, skewed, centred": Row(
        lambda t: with_lambdas(_skewed(FullRank)(t), t), centred, num_nodes=9, metric=1 / 6, slow=True
    ),
    "full rank, skewed, discrete": Row(
        _skewed(FullRank), lambda: mixed(size=1), num_nodes=24, values=(2, 3), slow=True
    ),
    "bordered, skewed": Row(_skewed(_in_blocks), grouped, metric=1 / 6, slow=True),
    "low rank, skewed": Row(_skewed(_one), lambda: skewed(size=3), num_nodes=9, metric=1 / 6, slow=True),
    "banded, skewed": Row(_skewed(Banded), skewed, num_nodes=32, metric=1 / 6, slow=True),
}
