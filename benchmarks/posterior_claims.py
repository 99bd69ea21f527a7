"""What the lines of posteriors say to each claim: thresholds, what counts as right, and on which problems it fails."""

import collections
import dataclasses
import math
import statistics
from collections.abc import Iterable

MAX_RMS, MAX_SD, MAX_FACTOR = 0.1, 0.05, 1.4
ERRORS = ("rms_mean", "max_mean", "median_sd", "worst_sd_factor")
DEFAULT, FULL_RANK, MEAN_FIELD = "curvi default", "curvi full rank", "curvi mean field"
RESPONSE, NUTS = "curvi mean field, linear response", "NumPyro NUTS"
FIRM_ELBO_SE = 0.05
_OPEN = (
    "eight_schools", "kidiq", "wells", "garch", "radon", "arK", "eight_schools_centered", "gp_pois_regr", "gp_regr",
    "hmm", "irt_2pl", "gauss_mix", "mesquite", "nes",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Race:
    """The lines of a problem by method."""

    name: str
    kind: str
    size: int | None
    by_method: dict[str, list[dict]]

    def of(self, method: str) -> list[dict]:
        return self.by_method.get(method, [])


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim in words, whether it is met (None: not known), the figure, and where it fails."""

    words: str
    met: bool | None
    figure: str
    failing: str


@dataclasses.dataclass(frozen=True)
class EqualError:
    """What NUTS took until it was as right as a fit; where it never was, what it had taken when it ended."""

    seconds: float
    cpu_seconds: float | None
    leapfrogs: float
    reached: bool


def races(found: list[dict]) -> dict[str, Race]:
    """Lines by problem and method, problems in the order in which they came."""
    grouped: dict[str, dict[str, list[dict]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for line in found:
        grouped[line["problem"]][line["method"]].append(line)
    out = {}
    for name, by_method in grouped.items():
        every = [line for fits in by_method.values() for line in fits]
        size = next((line["num_latents"] for line in every if line.get("num_latents")), None)
        out[name] = Race(name, every[0]["kind"], size, dict(by_method))
    return out


def methods(races: dict[str, Race], first: Iterable[str]) -> list[str]:
    names = {method for race in races.values() for method in race.by_method}
    return [*(name for name in first if name in names), *sorted(names - set(first))]


# -- right or wrong ---------------------------------------------------------------------------------------------------


def is_right(line: dict) -> bool:
    """Whether a line is within all three thresholds; one without errors is not."""
    found = line["errors"]
    if not found or any(found[key] is None for key in ERRORS):
        return False
    return found["rms_mean"] <= MAX_RMS and found["median_sd"] <= MAX_SD and found["worst_sd_factor"] <= MAX_FACTOR


def all_right(fits: list[dict]) -> bool | None:
    return None if not fits else all(map(is_right, fits))


def worst_error(fits: list[dict], key: str) -> float | None:
    values = [line["errors"][key] for line in fits if line["errors"] and line["errors"][key] is not None]
    return max(values) if values else None


def median_error(fits: list[dict], key: str) -> float | None:
    values = [line["errors"][key] for line in fits if line["errors"] and line["errors"][key] is not None]
    return statistics.median(values) if values else None


def median(fits: list[dict], key: str) -> float | None:
    values = [line[key] for line in fits if line.get(key) is not None]
    return statistics.median(values) if values else None


def worst(fits: list[dict], key: str) -> float | None:
    values = [line[key] for line in fits if line.get(key) is not None]
    return max(values) if values else None


# -- ELBOs and costs --------------------------------------------------------------------------------------------------


def best_elbo(race: Race) -> tuple[float, float] | None:
    """The highest ELBO of a full-rank Gaussian that is known to a small standard error, and that error."""
    every = [line for fits in race.by_method.values() for line in fits if line.get("family") == "full rank"]
    firm = [
        (line["elbo"], line["elbo_se"]) for line in every if line["elbo"] is not None and line["elbo_se"] is not None
    ]
    firm = [pair for pair in firm if pair[1] <= FIRM_ELBO_SE]
    return max(firm) if firm else None


def gap(race: Race, fits: list[dict]) -> tuple[float, float] | None:
    """Nats that the worst seed is below the best known ELBO, and three standard errors of that."""
    best = best_elbo(race)
    known = [line for line in fits if line["elbo"] is not None and line["elbo_se"] is not None]
    if best is None or len(known) < len(fits) or not fits:
        return None
    return max((best[0] - line["elbo"], 3 * math.hypot(best[1], line["elbo_se"])) for line in known)


def gain(race: Race) -> float | None:
    """Nats by which full rank ends above mean field."""
    full, normal = median(race.of(FULL_RANK), "elbo"), median(race.of(MEAN_FIELD), "elbo")
    return None if full is None or normal is None else full - normal


def predicted(race: Race) -> float | None:
    """The gain of full rank that the default predicted, the median over seeds; None where it is unknown."""
    found = []
    for line in race.of(DEFAULT):
        for row in line["families"]:
            if row.get("family", row.get("name")) == "full_rank" and row.get("predicted_gain") is not None:
                found.append(row["predicted_gain"])
    return statistics.median(found) if found else None


def gain_is_right(said: float | None, measured: float | None) -> bool | None:
    if measured is None:
        return None
    return said is not None and abs(said - measured) <= max(0.25 * abs(measured), 0.05)


def allowed_evaluations(race: Race) -> float | None:
    return None if race.size is None else 16 * race.size + 6_000


def equal_error(race: Race) -> list[EqualError]:
    """For every default fit what NUTS of the same seed, else of any, took to its errors."""
    found, chains = [], race.of(NUTS)
    for line in race.of(DEFAULT):
        errors = line["errors"]
        same = [run for run in chains if run["seed"] == line["seed"]] or chains
        if not same or not errors or errors["rms_mean"] is None or errors["median_sd"] is None:
            continue
        track = [row for row in same[-1]["track"] if row[4] is not None]
        hit = [row for row in track if row[4] <= errors["rms_mean"] and row[5] <= errors["median_sd"]]
        _, leapfrogs, seconds, cpu_seconds, *_ = hit[0] if hit else track[-1]
        found.append(EqualError(seconds, cpu_seconds, leapfrogs, bool(hit)))
    return found


def typical(pairs: list[EqualError], unit: str) -> float | None:
    """The median of one kind of cost; None where a pair has none."""
    costs = [getattr(pair, unit) for pair in pairs]
    return statistics.median(costs) if costs and None not in costs else None


def verdict_counts(races: dict[str, Race]) -> dict[str, collections.Counter]:
    """Fits by whether they are right and whether they warn."""
    counts = {}
    for method in (DEFAULT, FULL_RANK, MEAN_FIELD):
        fits = [line for race in races.values() for line in race.of(method) if line["errors"]]
        counts[method] = collections.Counter((is_right(line), line["warns"]) for line in fits)
    return counts


# -- claims -----------------------------------------------------------------------------------------------------------


def check(races: dict[str, Race]) -> list[Claim]:
    """Every claim against the lines."""
    return [*_full_rank(races), _default(races), *_seconds(races), _gains(races), *_verdicts(races)]


def _over(words: str, judged: dict[str, bool | None], wanted: float | None = None) -> Claim:
    """A claim about every problem, or about `wanted` of them."""
    known = {name: met for name, met in judged.items() if met is not None}
    if not known:
        return Claim(words, None, "no lines yet", "")
    right = sum(known.values())
    met = right == len(known) if wanted is None else right >= wanted
    return Claim(words, met, f"{right} of {len(known)}", ", ".join(name for name, ok in known.items() if not ok))


def _full_rank(races) -> list[Claim]:
    near, above, cheap, cheaper, converged = {}, {}, {}, {}, {}
    for name, race in races.items():
        if not (fits := race.of(FULL_RANK)):
            continue
        off, gained, spent = gap(race, fits), gain(race), worst(fits, "evaluations")
        near[name] = None if off is None else off[0] <= 0.1 + off[1]
        errors = [line["elbo_se"] or 0.0 for line in [*fits, *race.of(MEAN_FIELD)]]
        above[name] = None if gained is None else gained >= -3 * math.hypot(max(errors), max(errors))
        converged[name] = all(line["outcome"] == "CONVERGED" for line in fits)
        allowed, nuts = allowed_evaluations(race), median(race.of(NUTS), "evaluations")
        if race.kind == "regression" and allowed is not None and spent is not None:
            cheap[name] = spent <= allowed
        if (race.size or 0) > 30 and nuts is not None and spent is not None:
            cheaper[name] = spent < nuts / 2
    return [
        _over("full rank ends converged", converged),
        _over("full rank within 0.1 nat + 3 s.e. of the best known full-rank ELBO", near),
        _over("full rank never below mean field (3 s.e.)", above),
        _over("full rank on regressions: at most 16 d + 6,000 gradients", cheap),
        _over("full rank, d > 30: fewer than half of NUTS's gradients", cheaper),
    ]


def _default(races) -> Claim:
    right = {name: all_right(race.of(DEFAULT)) for name, race in races.items() if name in _OPEN}
    words = f"default: rms {MAX_RMS}, sd {MAX_SD}, factor {MAX_FACTOR} on at least 11 of the 14 open posteriors"
    return _over(words, right, 11)


def _seconds(races) -> list[Claim]:
    out = []
    for words, unit in (("", "seconds"), (", processor seconds", "cpu_seconds")):
        colder, shares = {}, []
        for name, race in races.items():
            cold, nuts = median(race.of(DEFAULT), f"cold_{unit}"), median(race.of(NUTS), f"cold_{unit}")
            colder[name] = None if cold is None or nuts is None else cold <= nuts
            warm, pairs = median(race.of(DEFAULT), f"warm_{unit}"), equal_error(race)
            if warm is not None and (equal := typical(pairs, unit)) is not None:
                shares.append(math.log(warm / equal))
        out.append(_over(f"default, cold: at most NUTS's seconds{words}", colder))
        warmer = f"default, warm: at most a tenth of NUTS's seconds to equal error, geometric mean{words}"
        mean = math.exp(statistics.fmean(shares)) if shares else None
        shown = "no lines yet" if mean is None else f"{mean:.2g}"
        out.append(Claim(warmer, None if mean is None else mean <= 0.1, shown, ""))
    return out


def _gains(races) -> Claim:
    right = {name: gain_is_right(predicted(race), gain(race)) for name, race in races.items() if race.of(DEFAULT)}
    known = sum(met is not None for met in right.values())
    return _over("predicted gain within 25 % or 0.05 nats on 80 % of the problems", right, 0.8 * known)


def _verdicts(races) -> list[Claim]:
    counts = sum(verdict_counts(races).values(), collections.Counter())
    out = []
    for right, words, bound in (
        (False, "the verdict warns on at least 90 % of the fits that are wrong", 0.9),
        (True, "the verdict warns on at most 10 % of the fits that are right", 0.1),
    ):
        warned, silent = counts[right, True], counts[right, False]
        if not warned + silent:
            out.append(Claim(words, None, "no lines yet", ""))
            continue
        share = warned / (warned + silent)
        met = share <= bound if right else share >= bound
        out.append(Claim(words, met, f"{warned} of {warned + silent}", ""))
    return out


def verdict(met: bool | None) -> str:
    return {True: "yes", False: "**no**", None: "-"}[met]
