"""The table of docs/many.md, made of the lines of benchmarks/many.py and of nothing else."""

import statistics
from pathlib import Path

import lines
from tables import table

_BEGIN, _END = "<!-- many: begin -->", "<!-- many: end -->"
_METHODS = ("together", "warm", "new targets")
_PROBLEMS = {"linear": "linear, 5 latents", "logistic": "logistic, 4 latents"}


def write(path: Path, page: Path) -> None:
    """Put the table between its marks in the page."""
    found = lines.read(path)
    if not found:
        raise SystemExit(f"{path} holds no lines; run python benchmarks/many.py first")
    text = page.read_text(encoding="utf-8")
    head, tail = text.split(_BEGIN)[0], text.split(_END)[1]
    page.write_text(f"{head}{_BEGIN}\n{_table(found)}\n{_END}{tail}", encoding="utf-8")
    print(f"wrote {page}")


def _table(found: list[dict]) -> str:
    rows = []
    for problem, words in _PROBLEMS.items():
        for family in ("full_rank", "mean_field"):
            own = [line for line in found if line["problem"] == problem and line["setting"]["family"] == family]
            of = {
                name: [line for line in own if line["method"] == name] for name in ("together", "warm", "new targets")
            }
            if not all(of.values()):
                continue
            seconds = {name: _median(of[name], "processor") for name in of}
            again = _median(of["together"], "processor_again")
            walls = {name: _median(of[name], "seconds") for name in of}
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


def _median(found: list[dict], name: str) -> float:
    return statistics.median(line[name] for line in found)
