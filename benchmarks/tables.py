"""docs/benchmarks.md and its pictures, made of the lines of runs and of nothing else."""

import textwrap
from pathlib import Path

import lines

DOCS = Path(__file__).parent.parent / "docs"
IMAGES = DOCS / "images"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")


def write(path: Path) -> None:
    """The page and its pictures."""
    import cost_tables
    import newton_tables
    import race_tables

    found = lines.read(path)
    if not found:
        raise SystemExit(f"{path} holds no lines; run python benchmarks/paper.py first")
    IMAGES.mkdir(parents=True, exist_ok=True)
    parts = [
        *_head(found),
        *cost_tables.section(found),
        *race_tables.breast_cancer(found),
        *race_tables.rotated_gaussian(found),
        *newton_tables.section(found),
    ]
    (DOCS / "benchmarks.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"wrote {DOCS / 'benchmarks.md'}")


def _head(found) -> list[str]:
    devices = sorted({line["device"] for line in found})
    versions = sorted({", ".join(f"{name} {v}" for name, v in line["versions"].items()) for line in found})
    return [
        "# Benchmarks of the paper's claims",
        paragraph(
            "Made by `python benchmarks/paper.py --only tables` from `benchmarks/results/paper.jsonl`, one line of "
            "JSON a run. `make bench-paper` runs everything again, which takes about half an hour on two cores."
        ),
        paragraph(
            f"Device: {'; '.join(devices)}; float64. The machine was shared with other work: seconds are rough, calls "
            f"are exact. Versions: {'; or '.join(versions)}."
        ),
    ]


def paragraph(text: str) -> str:
    """The text in lines of at most 118 characters."""
    return textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown; columns of numbers are set to the right."""
    right = [all(row[i][:1] in "0123456789-" for row in rows) for i in range(len(head))]
    rule = ["---:" if r else "---" for r in right]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def picture(file: str, words: str) -> str:
    return f"![{words}](images/{file})"


def pyplot():
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def save(figure, file: str) -> None:
    # No version in the file: the same lines give the same bytes.
    figure.savefig(IMAGES / file, dpi=110, metadata={"Software": None})
