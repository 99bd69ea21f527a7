"""The tables of docs/many.md and docs/calibration.md, made of lines and of nothing else."""

import statistics
from pathlib import Path

import lines
from tables import table

_METHODS = ("together", "warm", "new targets")
_PROBLEMS = {"linear": "linear, 5 latents", "logistic": "logistic, 4 latents"}
_KINDS = {"q": "q", "linear_response": "linear response"}


def write(path: Path, page: Path) -> None:
    """The table of many regressions."""
    _put(path, page, "many", _many)


def write_new_data(path: Path, page: Path) -> None:
    """The table of updates."""
    _put(path, page, "new data", _new_data)


def write_calibration(path: Path, page: Path) -> None:
    """The table of ranks."""
    _put(path, page, "calibration", _calibration)


def _put(path: Path, page: Path, mark: str, made) -> None:
    """Put a table between its marks in a page."""
    if not (found := lines.read(path)):
        raise SystemExit(f"{path} holds no lines; run the benchmark first")
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    text = page.read_text(encoding="utf-8")
    page.write_text(f"{text.split(begin)[0]}{begin}\n\n{made(found)}\n\n{end}{text.split(end)[1]}", encoding="utf-8")
    print(f"wrote {page}")


def _many(found: list[dict]) -> str:
    rows = []
    for problem, words in _PROBLEMS.items():
        for family in ("full_rank", "mean_field"):
            own = [line for line in found if line["problem"] == problem and line["setting"]["family"] == family]
            of = {name: [line for line in own if line["method"] == name] for name in _METHODS}
            if not all(of.values()):
                continue
            seconds = {name: _median(of[name], "processor") for name in of}
            walls = {name: _median(of[name], "seconds") for name in of}
            again = _median(of["together"], "processor_again")
            converged = sum(line["converged"] for line in of["together"]), sum(line["fits"] for line in of["together"])
            rows.append(
                [
                    words,
                    family,
                    f"{seconds['together']:.1f}, again {again:.1f} ({walls['together']:.1f})",
                    f"{seconds['warm']:.0f} ({walls['warm']:.0f})",
                    f"{seconds['new targets']:.0f} ({walls['new targets']:,.0f})",
                    f"{seconds['warm'] / seconds['together']:.0f}, again {seconds['warm'] / again:.0f}",
                    f"{_median(of['together'], 'gradients'):,.0f}",
                    f"{_median(of['warm'], 'gradients'):,.0f}",
                    f"{converged[0]:,} of {converged[1]:,}",
                ]
            )
    head = ["regression", "family", "together", "loop, warm", "loop, new targets", "times less than warm"]
    head += ["gradients a fit, together", "gradients a fit, loop", "converged together"]
    return table(head, rows)


def _new_data(found: list[dict]) -> str:
    rows = []
    for problem in dict.fromkeys(line["problem"] for line in found):
        own = [line for line in found if line["problem"] == problem]
        anew, update = ([line for line in own if line["method"] == name] for name in ("anew", "from the old q"))
        calls = [_median(part, "gradients") for part in (anew, update)]
        off = max(update, key=lambda line: abs(line["difference"]))
        converged = sum(line["outcome"] == "CONVERGED" for line in update)
        rows.append(
            [
                problem,
                f"{calls[0]:,.0f}",
                f"{calls[1]:,.0f}",
                f"{1 - calls[1] / calls[0]:.0%}",
                f"{_median(anew, 'steps'):.0f} and {_median(update, 'steps'):.0f}",
                f"{off['difference']:.3f} ± {off['difference_se']:.3f}",
                f"{converged} of {len(update)}",
            ]
        )
    head = ["model", "evaluations anew", "from the old q", "saved", "steps", "ELBO of the update less that anew, nats"]
    return table([*head, "updates converged"], rows)


def _calibration(found: list[dict]) -> str:
    rows = []
    for line in found:
        smallest = min(line["p_values"], key=line["p_values"].get)
        wrong = "; ".join(f"`{label}` {words}" for label, words in line["wrong"].items()) or "none"
        rows.append(
            [
                line["problem"],
                line["setting"]["family"],
                _KINDS[line["method"]],
                f"{line['p_values'][smallest]:.2g} (`{smallest}`)",
                wrong,
                f"{line['together']} of {line['setting']['simulations']}",
            ]
        )
    return table(["model", "family", "draws of", "smallest p (uniform)", "said to be wrong", "fitted together"], rows)


def _median(found: list[dict], name: str) -> float:
    return statistics.median(line[name] for line in found)
