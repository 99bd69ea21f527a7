"""The section on the cost of a step."""

import numpy as np

from tables import COLOURS, paragraph, picture, pyplot, save, table

DENSE = "Algorithm 0 (dense)"


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
        own = sorted(by_size)

        def power(what, own=own, by_size=by_size):
            return f"{slope(own, [by_size[d][what] for d in own]):.2f}"

        cells = [f"{by_size[d]['run_seconds'] * 1e3:,.4g}" if d in by_size else "" for d in sizes]
        times.append([name, *cells, power("run_seconds"), power("user_seconds")])
        cells = [f"{by_size[d]['bytes'] / 2**20:,.1f}" if d in by_size else "" for d in sizes]
        memory.append([name, *cells, power("bytes")])
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
        "Milliseconds, and the exponent of the power law through all points, of all processor time and of user mode alone:",
        table([*head, "user mode"], times),
        "MiB:",
        table(head, memory),
        paragraph(
            "Conjugate gradients, Woodbury and the inner steps of Scheme II are linear in d in memory, and in "
            "user-mode time up to cache effects. Over all processor time the exponent is higher because the kernel "
            "hands out the large temporaries anew, page by page, at every call: at the largest d that is "
            f"{_system_share(rows)} of a step of Scheme I, at d = 1,000 next to nothing."
        ),
        picture("paper-cost.png", "Time and memory of one step against the number of latents"),
    ]


def slope(x, y) -> float:
    """Exponent of the power law through the points, by least squares on logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


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
        inner = {name: (lines[long][name] - lines[short][name]) / terms for name in ("run_seconds", "user_seconds")}
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
