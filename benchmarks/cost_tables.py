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
        times.append([name, *cells, f"{power(by_size, 'run_seconds'):.2f}"])
        cells = [f"{by_size[d]['bytes'] / 2**20:,.1f}" if d in by_size else "" for d in sizes]
        memory.append([name, *cells, f"{power(by_size, 'bytes'):.2f}"])
    num_draws = rows[0]["setting"]["num_draws"]
    dense = ", ".join(f"{d:,}" for d in sorted(costs.get(DENSE, {})))
    return [
        "## 1. Cost of a step against the number of latents",
        paragraph(
            f"A separable density of d latents, O(d) to evaluate; 2 d variational parameters; {num_draws} draws a "
            "step. Processor time of a step on one thread, among steps that run as they do in a fit, in one compiled "
            "loop: the difference between a long call and a short one. Memory as XLA reports it for the compiled loop "
            "(temporaries, arguments and results), which is exact. Solvers run a fixed number of steps: 10 of "
            "conjugate gradients, in each of two solves (one for the gradient, one for its noise). The row *as "
            "shipped* leaves that to the method. An inner step of Scheme II draws two fresh points; its time is the "
            f"difference of two depths, its memory that of the whole step. Algorithm 0 was run at d = {dense}; its "
            "exponents are those of this range."
        ),
        "Milliseconds, and the exponent of the power law through all points:",
        table(head, times),
        "MiB:",
        table(head, memory),
        _reading(costs),
        picture("paper-cost.png", "Time and memory of one step against the number of latents"),
    ]


def _reading(costs) -> str:
    linear = {name: power(by_size, "run_seconds") for name, by_size in costs.items() if name != DENSE}
    above = [f"{name} ({exponent:.2f})" for name, exponent in linear.items() if exponent > MOST]
    return paragraph(
        "Memory is linear in d for all but Algorithm 0. Time: "
        + (f"above an exponent of {MOST} are {', '.join(above)}." if above else f"no exponent exceeds {MOST}.")
        + " The row *as shipped* stops its solver by a tolerance, after a number of steps that varies with d."
        + " A single step called by itself costs more at large d: its temporaries are handed out anew at every call, "
        "and the kernel clears their pages."
    )


def power(by_size: dict[int, dict], what: str) -> float:
    """Exponent of the power law through all sizes, by least squares on logarithms."""
    sizes = sorted(by_size)
    return float(np.polyfit(np.log(sizes), np.log([by_size[d][what] for d in sizes]), 1)[0])


def by_method(rows) -> dict[str, dict[int, dict]]:
    """Per method and number of latents: seconds and bytes; Scheme II as one inner step."""
    out: dict[str, dict[int, dict]] = {}
    depths: dict[int, dict[int, dict]] = {}
    for line in rows:
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
        inner = (lines[long]["run_seconds"] - lines[short]["run_seconds"]) / terms
        out.setdefault("Scheme II, one inner step", {})[size] = {"bytes": lines[long]["bytes"], "run_seconds": inner}
    return out


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
