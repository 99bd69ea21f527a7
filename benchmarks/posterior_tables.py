"""docs/posteriors.md, made of the lines in results/posteriors.jsonl and posterior_references.jsonl and nothing else."""

from pathlib import Path

import lines
import posterior_claims as claims
from posterior_claims import DEFAULT, FULL_RANK, MEAN_FIELD, NUTS, RESPONSE
from tables import DOCS, paragraph, table

RESULTS = Path(__file__).parent / "results" / "posteriors.jsonl"
REFERENCES = RESULTS.with_name("posterior_references.jsonl")
PAGE = DOCS / "posteriors.md"
_ORDER = (DEFAULT, FULL_RANK, MEAN_FIELD, RESPONSE, NUTS)


def write() -> None:
    """The page."""
    found = lines.read(RESULTS)
    if not found:
        raise SystemExit(f"{RESULTS} holds no lines; run python benchmarks/posteriors.py first")
    races = claims.races(found)
    references = {line["problem"]: line for line in lines.read(REFERENCES)}
    checked = claims.check(races)
    parts = [
        *_head(found),
        *_summary(checked),
        *_full_rank(races),
        *_default(races),
        *_seconds(races),
        *_gains(races),
        *_verdicts(races),
        *_rivals(races),
        *_references(references),
    ]
    PAGE.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"wrote {PAGE}")


def _head(found) -> list[str]:
    devices = sorted({line["device"] for line in found})
    packages = [{**line["versions"], **line["peers"]} for line in found]
    versions = sorted({", ".join(f"{name} {version}" for name, version in row.items()) for row in packages})
    loads = [line["load"] for line in found]
    return [
        "# As right as NUTS?",
        paragraph(
            "Posteriors whose means and standard deviations are known, from the reference draws of posteriordb or from "
            "long NUTS runs: how far the answers of curvi and of its rivals are from them, and at what cost. Made by "
            "`python benchmarks/posteriors.py --tables` from `benchmarks/results/posteriors.jsonl` and "
            "`posterior_references.jsonl`, one line of JSON a run; `make bench-posteriors` runs what has no line yet."
        ),
        paragraph(
            f"Device: {'; '.join(devices)}, float64, load average {min(loads):.1f} to {max(loads):.1f} on "
            f"{found[-1]['num_cpus']} processors: seconds are rough, counts are exact. Versions: "
            f"{'; or '.join(versions)}."
        ),
        paragraph(
            "Errors are those of all scalars that the reference has, on the model's own supports. *rms* and *max* are "
            "errors of means in reference standard deviations, *sd* the median of |sd ratio - 1|, *factor* the worst "
            "ratio of standard deviations or its inverse. A *gradient* counts one, a Hessian-vector product two, a "
            "value without gradient one. *Cold* is the first run of a fresh process after its imports and data, with "
            "tracing and compilation; *warm* runs what is compiled."
        ),
    ]


def _summary(checked) -> list[str]:
    """What fails first."""
    missed = [claim for claim in checked if claim.met is False]
    rest = [claim for claim in checked if claim.met is not False]
    rows = [[claim.words, claims.verdict(claim.met), claim.figure, claim.failing or "-"] for claim in [*missed, *rest]]
    return ["## What is met, and where it fails", table(["asked for", "met", "measured", "fails on"], rows)]


def _full_rank(races) -> list[str]:
    rows = []
    for name, race in races.items():
        if not (fits := race.of(FULL_RANK)):
            continue
        gap = claims.gap(race, fits)
        gain = claims.gain(race)
        spent = claims.worst(fits, "evaluations")
        nuts = claims.median(race.of(NUTS), "evaluations")
        allowed = claims.allowed_evaluations(race) if race.kind == "regression" else None
        rows.append(
            [
                name, str(race.size or "-"), race.kind, _outcomes(fits),
                "-" if gap is None else f"{gap[0]:.3f} ({gap[1]:.3f})",
                _number(gain), _count(spent), _count(allowed), _count(nuts),
                "-" if not nuts or spent is None else f"{spent / nuts:.2g}",
            ]
        )  # fmt: skip
    head = [
        "problem", "d", "kind", "outcomes", "below the best known ELBO (3 s.e.)", "above mean field", "gradients",
        "allowed", "NUTS's", "share of NUTS's",
    ]  # fmt: skip
    words = (
        "The best known ELBO is the highest of all full-rank runs, a long stochastic ascent from our own optimum among "
        "them, each on fresh draws. Of several seeds the worst counts."
    )
    return ["## Full rank", paragraph(words), table(head, rows) if rows else "No lines yet."]


def _default(races) -> list[str]:
    rows = []
    for name, race in races.items():
        if fits := race.of(DEFAULT):
            errors = [_number(claims.worst_error(fits, key)) for key in claims.ERRORS]
            families = ", ".join(sorted({line["family"] for line in fits}))
            rows.append([name, families, _outcomes(fits), *errors, claims.verdict(claims.all_right(fits))])
    head = ["problem", "q", "outcomes", "rms", "max", "sd", "factor", "within all three"]
    words = (
        f"Asked for: rms at most {claims.MAX_RMS}, sd at most {claims.MAX_SD}, factor at most {claims.MAX_FACTOR}. Of "
        "several seeds the worst counts."
    )
    return ["## The default", paragraph(words), table(head, rows) if rows else "No lines yet."]


def _seconds(races) -> list[str]:
    rows, nearer = [], []
    for name, race in races.items():
        fits, nuts = race.of(DEFAULT), race.of(NUTS)
        if not fits or not nuts:
            continue
        pairs, row = claims.equal_error(race), [name]
        for unit in ("seconds", "cpu_seconds"):
            cold, cold_nuts, warm = (
                claims.median(runs, f"{when}_{unit}") for runs, when in ((fits, "cold"), (nuts, "cold"), (fits, "warm"))
            )
            equal = claims.typical(pairs, unit)
            share = None if warm is None or equal is None else warm / equal
            row += [_number(value) for value in (cold, cold_nuts, warm, equal, share)]
        nearer += [name] * (not all(pair.reached for pair in pairs))
        rows.append(row)
    columns = ["cold", "NUTS cold", "warm", "NUTS to equal error", "share"]
    head = ["problem", *columns, *(f"{column}, cpu" for column in columns)]
    words = (
        "NUTS: two chains, 500 warm-up iterations and 500 draws each, cold by NumPyro's `MCMC.run`, warm in a loop "
        "compiled once with a thread for each chain. To equal error: the seconds, with warm-up, until rms and sd of "
        "the draws so far are at most those of the fit of the same seed. *cpu* are seconds of the processors, which "
        "other work on the machine does not stretch. Medians over seeds."
    )
    if nearer:
        words += f" Where a run of NUTS ended before that the share is an upper bound: {', '.join(nearer)}."
    return ["## Seconds", paragraph(words), table(head, rows) if rows else "No lines yet."]


def _gains(races) -> list[str]:
    rows = []
    for name, race in races.items():
        predicted, gain = claims.predicted(race), claims.gain(race)
        if race.of(DEFAULT) and race.of(FULL_RANK) and race.of(MEAN_FIELD):
            right = claims.verdict(claims.gain_is_right(predicted, gain))
            rows.append([name, "unknown" if predicted is None else _number(predicted), _number(gain), right])
    head = ["problem", "predicted", "measured", "within 25 % or 0.05 nats"]
    words = "Nats that full rank gains over mean field, as `fit.families` predicts them, and as the two fits have them."
    return ["## Predicted gain", paragraph(words), table(head, rows) if rows else "No lines yet."]


def _verdicts(races) -> list[str]:
    counts = claims.verdict_counts(races)
    rows = []
    for method, row in counts.items():
        told = [row[right, warns] for right in (True, False) for warns in (True, False, None)]
        if sum(told):
            rows.append([method, *(str(number) for number in told)])
    head = [
        "fits by", "right: warns", "right: does not", "right: says nothing", "wrong: warns", "wrong: does not",
        "wrong: says nothing",
    ]  # fmt: skip
    words = (
        "Fits that are within the three thresholds of the default (right) and that are not, by what the verdict says."
    )
    return ["## The verdict", paragraph(words), table(head, rows) if rows else "No lines yet."]


def _rivals(races) -> list[str]:
    methods = claims.methods(races, _ORDER)
    counts = []
    for method in methods:
        ran = [race.of(method) for race in races.values() if race.of(method)]
        right = sum(claims.all_right(fits) is True for fits in ran)
        counts.append([method, str(right), str(len(ran))])
    rows = []
    for name, race in races.items():
        for method in methods:
            if fits := race.of(method):
                errors = [_number(claims.median_error(fits, key)) for key in claims.ERRORS]
                spent = _count(claims.median(fits, "evaluations"))
                seconds = [_number(claims.median(fits, key)) for key in ("cold_seconds", "warm_seconds")]
                elbo = claims.median(fits, "elbo")
                shown = "-" if elbo is None else f"{elbo:.2f}"
                rows.append([name, method, *errors, shown, spent, *seconds, _outcomes(fits)])
    head = ["problem", "method", "rms", "max", "sd", "factor", "ELBO", "gradients", "cold", "warm", "outcomes"]
    words = (
        "Medians over seeds. AutoMultivariateNormal has the best of the rates 0.03, 0.01 and 0.003 by its ELBO, and "
        "the cost of that one alone. Pathfinder's line searches may have taken more gradients than are counted, and "
        "linear response takes products that are not. "
        "Laplace has the Hessian at the mode, where there is one."
    )
    return [
        "## All methods",
        table(["method", "problems on which every seed is within all three", "problems"], counts),
        paragraph(words),
        table(head, rows),
    ]


def _references(references) -> list[str]:
    rows = [
        [
            name, str(line["num_latents"]), str(line["setting"]["num_chains"]), str(line["setting"]["num_draws"]),
            f"{line['rhat']:.4f}", f"{line['smallest_ess']:.0f}", str(line["divergences"]), _count(line["leapfrogs"]),
        ]
        for name, line in references.items()
    ]  # fmt: skip
    head = ["problem", "d", "chains", "draws a chain", "R-hat", "smallest effective size", "divergences", "leapfrogs"]
    words = (
        "Of the open posteriors of posteriordb the references are its own. The others have NUTS runs of four chains "
        "with 1,000 iterations of warm-up, which end at R-hat 1.01 and an effective size of 1,000."
    )
    return ["## References", paragraph(words), table(head, rows) if rows else "No lines yet."]


def _outcomes(fits) -> str:
    """Every outcome once, in words."""
    return ", ".join(sorted({line["outcome"].lower().replace("_", " ").partition(":")[0] for line in fits}))


def _number(value) -> str:
    return "-" if value is None else f"{value:.0f}" if abs(value) >= 100 else f"{value:.2g}"


def _count(value) -> str:
    return "-" if value is None else f"{value:.0f}" if value < 10_000 else f"{value / 1000:.0f}k"
