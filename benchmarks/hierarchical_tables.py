"""The tables of docs/families.md, made of the lines in results/hierarchical.jsonl and hierarchical_references.jsonl.

A table stands between the comments `<!-- lines: NAME -->` and `<!-- end -->`; the rest of the page is written by hand.
"""

import math
import re

import hierarchical_problems as problems
import lines
from hierarchical import FAMILIES, RESULTS
from hierarchical_references import RESULTS as REFERENCES
from hierarchical_references import reference
from tables import DOCS, table

PAGE = DOCS / "families.md"
MAX_MEAN, MAX_FACTOR = 0.4, 1.6


def write() -> None:
    """The page with its tables made anew."""
    found = lines.read(RESULTS)
    if not found:
        raise SystemExit(f"{RESULTS} holds no lines; run python benchmarks/hierarchical.py first")
    made = {
        "scalars": _scalars(found), "costs": _costs(found), "polished": _polished(found), "gains": _gains(found),
        "optima": _optima(found), "centering": _centering(found), "references": _references(), "device": _device(found),
        "groups": _groups(found),
    }  # fmt: skip
    text = PAGE.read_text(encoding="utf-8")
    for name, words in made.items():
        pattern = rf"(<!-- lines: {name} -->\n).*?(<!-- end -->)"
        text, count = re.subn(pattern, lambda m, w=words: f"{m[1]}{w}\n{m[2]}", text, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"{PAGE} has {count} places for the table '{name}'; it needs one")
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE}")


def _of(found, method: str) -> dict[str, list[dict]]:
    """Lines of a method by problem, in the order of the problems."""
    every = {name: [x for x in found if (x["problem"], x["method"]) == (name, method)] for name in problems.NAMES}
    return {name: own for name, own in every.items() if own}


def errors(line: dict) -> dict[str, tuple[float, float]]:
    """By scalar, the error of the mean in reference sds and the ratio of sds."""
    known = reference(line["problem"])
    return {
        name: ((mean - known[name]["mean"]) / known[name]["sd"], sd / known[name]["sd"])
        for name, (mean, sd) in line["scalars"].items()
        if name in known
    }


def _factor(ratio: float) -> float:
    return max(ratio, 1 / ratio) if ratio > 0 else float("inf")


def _right(error: tuple[float, float]) -> bool:
    return abs(error[0]) <= MAX_MEAN and _factor(error[1]) <= MAX_FACTOR


def _worst(line: dict) -> list[str]:
    own = errors(line)
    if not own:
        return ["no reference", "-", "-"]
    mean = max(own, key=lambda name: abs(own[name][0]))
    sd = max(own, key=lambda name: _factor(own[name][1]))
    right = sum(map(_right, own.values()))
    return [f"{right} of {len(own)}", f"{own[mean][0]:+.2f} ({mean})", f"{own[sd][1]:.2f} ({sd})"]


def _outcome(line: dict) -> str:
    return "converged" if line["outcome"] == "CONVERGED" else line["outcome"].lower().replace("_", " ")


def _verdict(line: dict) -> str:
    return {True: "doubtful", False: "right", None: "-"}[line["warns"]]


def _scalars(found) -> str:
    shown = [line for name, own in _of(found, "default").items() if name not in problems.GROUPS for line in own]
    rows = [
        [line["problem"], f"{line['num_latents']:,}", line["family"], _outcome(line), _verdict(line), *_worst(line)]
        for line in shown
    ]
    every = [(line["warns"], _right(error)) for line in shown for error in errors(line).values()]
    right = sum(own for _, own in every)
    said = sum(warned is not False for warned, own in every if not own)
    words = (
        f"{right} of {len(every)} are right; of the other {len(every) - right} the verdict of the fit warned of {said}."
    )
    head = ["problem", "d", "family", "outcome", "posterior, it says", "right", "worst mean, sds", "worst sd ratio"]
    return f"{table(head, rows)}\n\n{words}"


def _costs(found) -> str:
    nuts = {line["problem"]: line for line in lines.read(REFERENCES) if line["method"] == "NumPyro NUTS"}
    rows = []
    for name, own in _of(found, "default").items():
        for line in own if name not in problems.GROUPS else ():
            leapfrogs = f"{nuts[name]['leapfrogs']:,}" if name in nuts else "-"
            rows.append(
                [
                    name, f"{line['num_rows']:,}", f"{line['num_params']:,}", f"{line['evaluations']:,}", leapfrogs,
                    _seconds(line, "cold"), _seconds(line, "warm"), f"{line['load']:.0f}",
                ]
            )  # fmt: skip
    head = [
        "problem", "rows", "parameters", "evaluations", "of the reference's NUTS", "cold s (of processors)",
        "warm s (of processors)", "load",
    ]  # fmt: skip
    return table(head, rows)


def _seconds(line, kind: str) -> str:
    if f"{kind}_seconds" not in line:
        return "-"
    return f"{line[f'{kind}_seconds']:.1f} ({line[f'{kind}_cpu_seconds']:.1f})"


def _polished(found) -> str:
    rows = []
    for name, own in _of(found, "polished").items():
        for line in own:
            found_errors = errors(line)
            factor = max((_factor(ratio) for _, ratio in found_errors.values()), default=float("nan"))
            mean = max((abs(error) for error, _ in found_errors.values()), default=float("nan"))
            rows.append(
                [
                    name, f"{mean:.2f}", f"{factor:.2f}", f"{line['largest_r_hat']:.3f}", f"{line['smallest_ess']:.0f}",
                    f"{line['leapfrogs']:,}", str(line["divergences"]),
                ]
            )  # fmt: skip
    head = ["problem", "worst mean, sds", "worst sd factor", "R-hat", "effective draws", "leapfrogs", "divergences"]
    return table(head, rows) if rows else "No lines yet."


def _gains(found) -> str:
    """Predicted gains, by the fit that may choose, against ELBOs of fits by name."""
    rows = []
    for name, own in _of(found, "as_written").items():
        predicted = {row["name"]: row["predicted_gain"] for row in own[0]["families"]}
        fits = {family: _of(found, family).get(name, [None])[0] for family in FAMILIES}
        base = fits["mean_field"]
        if base is None:
            continue
        cells = []
        for family in FAMILIES[1:]:
            line = fits[family]
            true = "-" if line is None else f"{line['elbo'] - base['elbo']:.2f}"
            guess = predicted.get(family)
            cells.append(f"{'?' if guess is None else f'{guess:.2f}'} / {true}")
        rows.append([name, own[0]["family"], *cells])
    head = ["problem", "chosen", *(family.replace("_", " ") for family in FAMILIES[1:])]
    return table(head, rows) if rows else "No lines yet."


def _optima(found) -> str:
    rows = []
    for family in FAMILIES:
        for name, own in _of(found, family).items():
            for line in own:
                if "refined_gain" in line:
                    gain, error = line["refined_gain"]
                    met = "yes" if gain <= 0.1 + 3 * error else "no"
                    numbers = [f"{line['elbo']:.2f}", f"{gain:+.3f}", f"{error:.3f}"]
                    rows.append([name, family, _outcome(line), *numbers, met])
    head = ["problem", "family", "outcome", "ELBO", "a long climb gains", "s.e.", "within 0.1 + 3 s.e."]
    return table(head, rows) if rows else "No lines yet."


def _centering(found) -> str:
    """The default without learned centring, and without skewed marginals."""
    rows = []
    off, normal = _of(found, "as_written"), _of(found, "normal")
    for name, own in _of(found, "default").items():
        if name not in off and name not in normal:
            continue
        cells, on = [], own[0]
        for others in (off, normal):
            if name not in others:
                cells += ["-", "-", "-"]
                continue
            other = others[name][0]
            more = f"{on['elbo'] - other['elbo']:+.2f}"
            cells += [more, f"{on['evaluations'] / other['evaluations']:.2f}", _worst(other)[0]]
        lambdas = ", ".join(
            f"{site} {low:.2f}" + ("" if high - low < 0.005 else f" to {high:.2f}")
            for site, (low, high) in on["centering"].items()
        )
        rows.append([name, _worst(on)[0], *cells, lambdas])
    head = [
        "problem", "right", "over as written: nats", "evaluations", "right as written", "over normal: nats",
        "evaluations", "right normal", "lambdas",
    ]  # fmt: skip
    return table(head, rows) if rows else "No lines yet."


def _groups(found) -> str:
    """Costs by the number of groups, and their growth from the smallest number on as a power."""
    rows, before = [], None
    for name in problems.GROUPS:
        for line in _of(found, "default").get(name, []):
            seconds = line.get("warm_cpu_seconds", line["cold_cpu_seconds"])
            size = int(name.partition("_")[2])
            slope = "-" if before is None else f"{math.log(seconds / before[1]) / math.log(size / before[0]):.2f}"
            before = before or (size, seconds)
            costs = [f"{line['evaluations']:,}", f"{seconds:.2f}", f"{1e9 * seconds / line['evaluations'] / size:.0f}"]
            rows.append([f"{size:,}", line["family"], _outcome(line), *costs, slope])
    head = ["groups", "family", "outcome", "evaluations", "processor s", "ns an evaluation and group", "slope"]
    return table(head, rows) if rows else "No lines yet."


def _references() -> str:
    rows = [
        [
            line["problem"], line["method"], f"{line['rhat']:.4f}" if "rhat" in line else "-",
            f"{line['smallest_ess']:.0f}", str(line.get("divergences", "-")), f"{line['run_seconds']:.0f}",
        ]
        for line in lines.read(REFERENCES)
    ]  # fmt: skip
    head = ["problem", "how", "R-hat", "effective draws", "divergences", "seconds"]
    return table(head, rows) if rows else "No lines yet."


def _device(found) -> str:
    devices = sorted({line["device"] for line in found})
    loads = [line["load"] for line in found]
    return (
        f"Device: {'; '.join(devices)}, {found[-1]['num_cpus']} processors, float64, load average {min(loads):.0f} to\n"
        f"{max(loads):.0f}: seconds on the wall are those of a crowded machine; those of processors and counts are not."
    )
