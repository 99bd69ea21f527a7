"""The section on the cost of a step."""

import numpy as np

from tables import COLOURS, paragraph, picture, pyplot, save, table

DENSE = "Algorithm 0 (dense)"
MOST = 1.1  # the exponent that linear cost may show


def section(found) -> list[str]:
    rows = [line for line in found if line["problem"] == "cost per step"]
    if not rows:
        return []
    costs = by_method(rows)
    _draw(costs)
    sizes = sorted({d for name, by_size in costs.items() for d in by_size if name != DENSE})
    head = ["one step", *[f"d = {d:,}" for d in sizes], "exponent"]
    times, memory = [], []
    for name, by_size in costs.items():
        cells = [f"{by_size[d]['run_seconds'] * 1e3:,.4g}" if d in by_size else "" for d in sizes]
        exponents = [f"{power(by_size, what):.2f}" for what in ("run_seconds", "own_seconds")]
        times.append([name, *cells, *exponents])
        cells = [f"{by_size[d]['bytes'] / 2**20:,.1f}" if d in by_size else "" for d in sizes]
        memory.append([name, *cells, f"{power(by_size, 'bytes'):.2f}"])
    num_draws = rows[0]["setting"]["num_draws"]
    dense = ", ".join(f"{d:,}" for d in sorted(costs.get(DENSE, {})))
    return [
        "## 1. Cost of a step against the number of latents",
        paragraph(
            f"A separable density of d latents, O(d) to evaluate; 2 d variational parameters; {num_draws} draws a "
            "step. Processor time of the fastest step, on one thread; memory as XLA reports it for the compiled step "
            "(temporaries, arguments and results), which is exact. Solvers run a fixed number of steps: 10 of "
            "conjugate gradients, in each of two solves (one for the gradient, one for its noise). The row *as "
            "shipped* leaves that to the method. An inner step of Scheme II draws two fresh points; its time is the "
            f"difference of two depths, its memory that of the whole step. Algorithm 0 was run at d = {dense}; its "
            "exponents are those of this range."
        ),
        paragraph(
            "Milliseconds, and the exponent of the power law through all points. *Without kernel*: the same times less "
            "the share that a step spends in the kernel on average."
        ),
        table([*head, "without kernel"], times),
        "MiB:",
        table(head, memory),
        _reading(costs, rows),
        picture("paper-cost.png", "Time and memory of one step against the number of latents"),
    ]


def _reading(costs, rows) -> str:
    linear = [name for name in costs if name != DENSE]
    whole = {name: power(costs[name], "run_seconds") for name in linear}
    above = [f"{name} ({whole[name]:.2f})" for name in linear if whole[name] > MOST]
    bare = [power(costs[name], "own_seconds") for name in linear]
    scheme = sorted(
        (line for line in rows if line["method"] == "Scheme I, CG"), key=lambda line: line["setting"]["num_latents"]
    )
    faults = ", ".join(f"{line['minor_faults']:,.0f}" for line in scheme)
    return paragraph(
        "Memory is linear in d for all but Algorithm 0. Time: "
        + (f"above an exponent of {MOST} are {', '.join(above)}. " if above else f"no exponent exceeds {MOST}. ")
        + f"Without the kernel they lie between {min(bare):.2f} and {max(bare):.2f}. That share is page faults, as "
        "large temporaries and results are handed out anew at every call: a step of Scheme I by conjugate "
        f"gradients has {faults} of them, in the order of the columns, and the kernel takes {_system_share(rows)} of "
        "the steps of Scheme I at the largest d. It varies from run to run on a shared machine, and the exponents "
        "with it."
    )


def power(by_size: dict[int, dict], what: str) -> float:
    """Exponent of the power law through all sizes, by least squares on logarithms."""
    sizes = sorted(by_size)
    return float(np.polyfit(np.log(sizes), np.log([by_size[d][what] for d in sizes]), 1)[0])


def own_seconds(line) -> float:
    """The time of the fastest step less the kernel's share of the mean step.

    Both exponents so rest on the fastest step: means are raised by other work, most of all for short steps.
    """
    total = line["user_seconds"] + line["system_seconds"]
    return line["run_seconds"] * line["user_seconds"] / total


def by_method(rows) -> dict[str, dict[int, dict]]:
    """Per method and number of latents: seconds and bytes; Scheme II as one inner step."""
    out: dict[str, dict[int, dict]] = {}
    depths: dict[int, dict[int, dict]] = {}
    for raw in rows:
        line = {**raw, "own_seconds": own_seconds(raw)}
        size, depth = line["setting"]["num_latents"], line["setting"].get("depth")
        if depth is None:
            out.setdefault(line["method"], {})[size] = line
        else:
            depths.setdefault(size, {})[depth] = line
    for size, lines in depths.items():
        short, long = min(lines), max(lines)
        if short == long:
            continue
        terms = 2 * (long - short)  # two solves a step
        inner = {name: (lines[long][name] - lines[short][name]) / terms for name in ("run_seconds", "own_seconds")}
        out.setdefault("Scheme II, one inner step", {})[size] = {"bytes": lines[long]["bytes"], **inner}
    return out


def _system_share(rows) -> str:
    largest = max(line["setting"]["num_latents"] for line in rows)
    shares = [
        line["system_seconds"] / (line["system_seconds"] + line["user_seconds"])
        for line in rows
        if line["setting"]["num_latents"] == largest and line["method"].startswith("Scheme I,")
    ]
    return f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %"


def _draw(costs) -> None:
    figure, axes = pyplot().subplots(1, 2, figsize=(10.5, 4.2), layout="constrained")
    for index, (name, by_size) in enumerate(costs.items()):
        sizes = sorted(by_size)
        style = {"color": COLOURS[index], "marker": "o", "markersize": 4, "label": name}
        axes[0].loglog(sizes, [by_size[d]["run_seconds"] for d in sizes], **style)
        axes[1].loglog(sizes, [by_size[d]["bytes"] / 2**20 for d in sizes], **style)
    ends = np.array([1e3, 1e6])
    for axis, start in ((axes[0], 1.2e-4), (axes[1], 0.8)):
        axis.loglog(ends, start * ends / ends[0], color="0.6", linestyle=":", label="proportional to d")
        axis.set_xlabel("latents d")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("processor seconds a step")
    axes[1].set_ylabel("MiB")
    axes[1].legend(fontsize=8, frameon=False)
    save(figure, "paper-cost.png")
