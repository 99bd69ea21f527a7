"""Tables and a picture of the races against other libraries, made of the lines in results/peers.jsonl alone."""

import collections
import statistics
from pathlib import Path

import lines

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "peers.jsonl"
PAGE = ROOT / "docs" / "peers.md"
PICTURE = ROOT / "docs" / "images" / "peers.png"
ON_GPU = RESULTS.with_name("peers_h200.jsonl")
WHOLE = ON_GPU.with_name("peers_whole.jsonl")
GOAL = "0.1"
OURS = "curvi"


def write() -> None:
    """The page and the picture."""
    races = read()
    if not races:
        print("no lines in", RESULTS)
        return
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    draw(races)
    PAGE.write_text(page(races))
    print(f"wrote {PAGE.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}")


def label(line: dict) -> str:
    draws = line["setting"].get("num_draws")
    if line["method"] == "fixed draws, trust-ncg":
        return f"fixed draws ({draws}), trust-ncg" + (": DADVI's recipe" if draws == 30 else "")
    if line["method"] == "fixed draws, L-BFGS":
        return f"fixed draws ({draws}), L-BFGS"
    if line["method"] == "BlackJAX Pathfinder":
        return "BlackJAX Pathfinder (full rank)"
    return line["method"]


def read() -> dict[str, list[dict]]:
    """Lines by problem, with every gap taken to the best mean field that any run or the reference run reached.

    Only seeds that all methods of a problem ran with: others were measured at another time, under another load.
    """
    races = collections.defaultdict(list)
    for line in lines.read(RESULTS):
        races[line["problem"]].append(line)
    for problem, race in races.items():
        seeds = collections.defaultdict(set)
        for line in race:
            seeds[label(line)].add(line["seed"])
        common = set.intersection(*seeds.values())
        races[problem] = [line for line in race if line["seed"] in common] or race
    for race in races.values():
        normal = [line for line in race if line["family"] == "mean field" and line["elbo"] is not None]
        best = max([line["reference_elbo"] for line in race] + [line["elbo"] for line in normal])
        for line in race:
            shift = best - line["reference_elbo"]
            line["best_elbo"] = best
            line["gap"] = None if line["gap"] is None else line["gap"] + shift
            line["track"] = [[s, c, None if g is None else g + shift] for s, c, g in line["track"]]
            line["hit"] = hit(line["track"], float(GOAL))
            line["label"] = label(line)
    return dict(races)


def hit(track, threshold: float):
    """(seconds, calls) from which on the gap stays below the threshold."""
    found = None
    for seconds, calls, gap in track:
        if gap is None or gap > threshold:
            found = None
        elif found is None:
            found = (seconds, calls)
    return found


def best_of(race: list[dict], name: str, measure, largest: bool = False):
    """The best setting of a method by `measure`, the median over its seeds; None where no setting has a number."""
    settings = collections.defaultdict(list)
    for line in race:
        if line["label"] == name:
            settings[str(line["setting"])].append(measure(line))
    found = [statistics.median(v) for v in settings.values() if all(x is not None for x in v)]
    return (max if largest else min)(found, default=None)


def warm(line):
    if line["method"] == OURS and line["setting"]["start"] == "cold":
        return None
    return None if line["hit"] is None else line["hit"][0]


def cold(line):
    if line["method"] == OURS and line["setting"]["start"] == "warm":
        return None
    return None if line["hit"] is None else line["compile_seconds"] + line["hit"][0]


def calls(line):
    return None if line["hit"] is None else line["hit"][1]


def gap(line):
    return line["gap"]


def table(races, measure, show, worst_of_ours=False) -> list[str]:
    """Methods down, problems across; the best mean field in bold. A method that was not run has a dash."""
    names = list(dict.fromkeys(line["label"] for race in races.values() for line in race))
    names.sort(key=lambda n: n != OURS)
    dimension = {problem: race[0]["num_latents"] for problem, race in races.items()}
    rows = ["| method | " + " | ".join(f"{p} ({dimension[p]})" for p in races) + " |", "|---" * (len(races) + 1) + "|"]
    cells = {}
    for name in names:
        for problem, race in races.items():
            cells[name, problem] = best_of(race, name, measure, largest=worst_of_ours and name == OURS)
    for name in names:
        row = []
        for problem, race in races.items():
            value, ran = cells[name, problem], any(line["label"] == name for line in race)
            rank = [cells[n, problem] for n in names if cells[n, problem] is not None and "full rank" not in n]
            text = ("never" if measure is not gap else "no number") if value is None else show(value)
            row.append("-" if not ran else f"**{text}**" if value in rank and value <= min(rank) else text)
        rows.append(f"| {name} | " + " | ".join(row) + " |")
    return rows


def losses(races) -> list[str]:
    """Where another method was better than curvi, by name."""
    rows = []
    kinds = (("seconds to 0.1 nat, compiled", warm, "s"), ("seconds to 0.1 nat with compilation", cold, "s"))
    for problem, race in races.items():
        for kind, measure, unit in kinds:
            ours = best_of(race, OURS, measure)
            rivals = {n: best_of(race, n, measure) for n in {line["label"] for line in race} - {OURS}}
            faster = {n: v for n, v in rivals.items() if v is not None and (ours is None or v < ours)}
            if faster:
                text = ", ".join(f"{n} {v:.3g}" for n, v in sorted(faster.items(), key=lambda item: item[1]))
                mine = "never" if ours is None else f"{ours:.3g}"
                rows.append(f"- **{problem}**, {kind}: curvi {mine}; {text} {unit}.")
        ours = best_of(race, OURS, gap, largest=True)
        normal = {line["label"] for line in race if line["family"] == "mean field"} - {OURS}
        nearer = {n: best_of(race, n, gap) for n in normal}
        # Below the tolerance of a fit, 0.05 nats, there is no loss to speak of.
        nearer = {n: v for n, v in nearer.items() if v is not None and (ours is None or v < ours - 0.05)}
        if nearer:
            text = ", ".join(f"{n} {v:.3g}" for n, v in sorted(nearer.items(), key=lambda item: item[1]))
            rows.append(f"- **{problem}**, final gap: curvi {'none' if ours is None else f'{ours:.3g}'}; {text} nats.")
        bad = [line for line in race if line["method"] == OURS and line["outcome"] != "converged"]
        rows += [f"- **{problem}**: a curvi fit ended as {line['outcome']}." for line in bad]
    return rows or ["Nowhere in these lines."]


def spread() -> list[str]:
    """Seconds of whole fits of curvi, over everything that was run."""
    found = collections.defaultdict(list)
    for line in lines.read(RESULTS):
        if line["method"] == OURS:
            found[line["problem"]].append(line)
    head = "| problem | fits | cold, with compilation | warm | cold over bare compilation | to 0.1 nat over the same |"
    rows = [head, "|---" * 6 + "|"]
    for problem, fits in found.items():
        cells, over, first = [], [], []
        for start in ("cold", "warm"):
            chosen = [line for line in fits if line["setting"]["start"] == start]
            seconds = [line["compile_seconds"] + line["run_seconds"] for line in chosen]
            cells.append(f"{min(seconds):.3g} to {max(seconds):.3g}")
            if start == "cold":
                over = [t / line["bare_compile_seconds"] for t, line in zip(seconds, chosen, strict=True)]
                hits = [(line["seconds_to"][GOAL], line) for line in chosen]
                first = [
                    (line["compile_seconds"] + at) / line["bare_compile_seconds"] for at, line in hits if at is not None
                ]
        cells += [f"{statistics.median(numbers):.2g}" if numbers else "never" for numbers in (over, first)]
        rows.append(f"| {problem} | {len(fits)} | {' | '.join(cells)} |")
    return rows


def ratios(races) -> list[str]:
    """How many times longer each mean-field peer takes to 0.1 nat, in the geometric mean."""
    names = list(dict.fromkeys(line["label"] for race in races.values() for line in race))
    rows = ["| peer | compiled (never counts as its budget) | with compilation, where it gets there |", "|---|---|---|"]
    for name in names:
        if name == OURS or "full rank" in name:
            continue
        compiled, whole = [], []
        for race in races.values():
            own = [line for line in race if line["label"] == name]
            ours = best_of(race, OURS, warm)
            if not own or ours is None:
                continue
            budget = max(line["setting"]["budget"] for line in own)
            theirs = best_of(race, name, warm)
            compiled.append((budget if theirs is None else theirs) / ours)
            if (theirs := best_of(race, name, cold)) is not None:
                whole.append(theirs / best_of(race, OURS, cold))
        cells = [f"{statistics.geometric_mean(r):.3g} ({len(r)})" if r else "-" for r in (compiled, whole)]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def calibration(races) -> list[str]:
    """Reported against true remaining gain, at the end and stopped early."""
    rows = ["| problem | end: reported | end: true gap | early stops | right within 2 | unknown |", "|---" * 6 + "|"]
    shares = []
    for problem, race in races.items():
        fits = [line for line in race if line["label"] == OURS]
        worst = max(fits, key=lambda line: abs((line["said"] or [0])[0] or 0.0) if line.get("said") else 0.0)
        stops = [stop for line in fits for stop in line["stops"] if stop[0] is not None and 0.2 <= stop[0] <= 5]
        right = [said is not None and true / 2 <= said <= 2 * true for true, _, said, _ in stops]
        unknown = sum(said is None for _, _, said, _ in stops)
        said = "-" if worst["said"][0] is None else f"{worst['said'][0]:.3f} ± {worst['said'][1]:.3f}"
        share = f"{100 * sum(right) / len(right):.0f} %" if right else "-"
        shares += [sum(right) / len(right)] if right else []
        true = f"{worst['gap']:.3f} ± {worst['gap_se']:.3f}"
        rows.append(f"| {problem} | {said} | {true} | {len(stops)} | {share} | {unknown} |")
    rows.append(f"| mean share | | | | {100 * statistics.mean(shares):.0f} % | |")
    return rows


def whole_fits() -> list[str]:
    """Whole fits against the time at which tuned Adam is near, on another machine, with a file of its own."""
    found = lines.read(WHOLE)
    if not found:
        return []
    rows = ["| problem | whole fit, warm | Adam to 0.1 nat | ratio |", "|---|---|---|---|"]
    for problem in dict.fromkeys(line["problem"] for line in found):
        race = [line for line in found if line["problem"] == problem]
        ours = [line["run_seconds"] for line in race if line["method"] == OURS and line["setting"]["start"] == "warm"]
        hits = [line["seconds_to"][GOAL] for line in race if line["method"] != OURS]
        hits = [seconds for seconds in hits if seconds is not None]
        best, whole = min(hits, default=None), statistics.median(ours)
        ratio = "-" if best is None else f"{whole / best:.2f}"
        rows.append(f"| {problem} | {whole:.3g} | {'never' if best is None else f'{best:.3g}'} | {ratio} |")
    load = max(line["load"] for line in found)
    words = (
        "Seconds of curvi's whole mean-field fits, certificate and final ELBO included, warm, against those after "
        "which NumPyro's Adam at its best rate is within 0.1 nat, with hindsight and without compilation "
        f"({found[0]['device']}, {found[0]['num_cpus']} processors, load average {load:.1f} at most; made by `python "
        "benchmarks/peers.py --methods curvi numpyro --output benchmarks/results/peers_whole.jsonl`)."
    )
    return ["## Whole fits against tuned Adam", words, "\n".join(rows)]


def on_gpu() -> list[str]:
    """curvi's runs on another device, which has a file of its own."""
    found = lines.read(ON_GPU)
    if not found:
        return []
    rows = ["| problem | start | outcome | gap | seconds to 0.1 nat | whole fit |", "|---|---|---|---|---|---|"]
    for line in sorted(found, key=lambda line: (line["problem"], line["setting"]["start"])):
        whole, to_goal = (line["compile_seconds"] + part for part in (line["run_seconds"], line["seconds_to"][GOAL]))
        rows.append(
            f"| {line['problem']} | {line['setting']['start']} | {line['outcome']} | {abs(line['gap']):.4f} | "
            f"{to_goal:.3g} | {whole:.3g} |"
        )
    words = (
        f"Gaussians of ten thousand dimensions, {found[0]['device']}, jax {found[0]['versions']['jax']}, double "
        "precision; the H0 that serves as control variate and metric is a dense matrix there. Made by `python "
        "benchmarks/peers.py --methods curvi --problems gauss_1e+00_10000 ... --output FILE` with "
        "`benchmarks/results/peers_h200.jsonl` for FILE."
    )
    return ["## On a GPU", words, "\n".join(rows)]


def moments(races) -> list[str]:
    """Mean field against the reference draws; linear response where curvi has it."""
    rows = [
        "| problem | largest error of a mean (sd) | sd ratio, mean field: smallest, median | "
        "sd ratio, linear response: smallest, median, largest | best gap of a full-rank peer |",
        "|---|---|---|---|---|",
    ]
    for problem, race in races.items():
        fits = [line for line in race if line["method"] == OURS and line["reference_errors"]]
        if not fits:
            continue
        errors = fits[-1]["reference_errors"]
        response = errors.get("linear_response_sd_ratio")
        shown = "undefined" if response is None else "{min:.2f}, {median:.2f}, {max:.2f}".format(**response)
        full = [line["gap"] for line in race if line["family"] == "full rank" and line["gap"] is not None]
        rows.append(
            f"| {problem} | {errors['mean_error']['max']:.2f} | {errors['sd_ratio']['min']:.2f}, "
            f"{errors['sd_ratio']['median']:.2f} | {shown} | {number(min(full)) if full else '-'} |"
        )
    return rows


def number(value: float) -> str:
    if abs(value) < 5e-4:
        return "0.000"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2g}" if abs(value) >= 1 else f"{value:.3f}"


def count(value: float) -> str:
    return f"{value / 1000:.3g}k" if value >= 1000 else f"{value:.0f}"


def page(races) -> str:
    every = [line for race in races.values() for line in race]
    versions = {**every[-1]["versions"], **{k: v for k, v in every[-1]["peers"].items() if v}}
    devices = ", ".join(sorted({line["device"] for line in every}))
    most = max(len({line["seed"] for line in race}) for race in races.values())
    runs = "one seed" if most == 1 else f"medians over up to {most} seeds"
    loads = [line["load"] for line in every if line.get("load") is not None]
    budgets = sorted({line["setting"]["budget"] for line in every if "budget" in line["setting"]})
    budget = " or ".join(f"{seconds:g}" for seconds in budgets)
    busy = f"{every[-1].get('num_cpus')} processors, load average {min(loads):.1f} to {max(loads):.1f}" if loads else ""
    parts = [
        "# curvi and its peers",
        "Made by `benchmarks/peer_tables.py` from `benchmarks/results/peers.jsonl`; `make bench` writes the lines "
        "of the short set, `make bench-full` those of all problems.",
        f"Device: {devices}; {busy}. Seconds are wall time; a peer's run has {budget} of them without compilation. "
        f"Double precision; {runs}. Versions: " + ", ".join(f"{k} {v}" for k, v in versions.items()) + ".",
        "## How to read this",
        "- All methods see the same log density over the same unconstrained coordinates. PyMC has models of its own, "
        "written to the same coordinates; where there is none the cell is a dash.\n"
        "- The gap is that to the best mean field that any run, or a long reference run, reached. ELBOs are those of "
        "20,480 fresh draws, the same for all mean fields. Full-rank methods (Pathfinder, GSM) can have a negative "
        "gap; bold is the best of the mean fields.\n"
        "- A peer's time to 0.1 nat is read off its trajectory with hindsight, at the first point from which on its "
        "gap stays below, and at the best learning rate of the grid 0.1, 0.03, 0.01, 0.003, 0.001 (PyMC: its default "
        "and Adam); each table picks the rate anew, and the cost of trying the others is not counted. "
        "curvi's time to 0.1 nat is read off its own steps likewise; the time of its whole fit, with the "
        "certificate that ends it and the final ELBO, has a table of its own.\n"
        "- Of runs on fixed draws, and of curvi's warm fits, that take less than a second there are three, which "
        "differ in their seconds alone; the median counts.\n"
        "- For curvi the larger gap of two fits with different keys counts; for peers the best setting.\n"
        "- Calls are gradients plus Hessian-vector products, per draw.\n"
        "- PyMC keeps compiled code on disk: its compilation time depends on what it compiled before.",
        "![Gap against seconds](images/peers.png)",
        "## Final gap in nats",
        "\n".join(table(races, gap, number, worst_of_ours=True)),
        "## Seconds to a gap of 0.1 nat, compiled",
        "\n".join(table(races, warm, lambda v: f"{v:.3g}")),
        "## Seconds to a gap of 0.1 nat, compilation included",
        "Every method in a fresh process, in which nothing was compiled before.",
        "\n".join(table(races, cold, lambda v: f"{v:.3g}")),
        "## All in one number",
        "Geometric means over the problems of a peer's seconds to 0.1 nat over curvi's. A run that never gets there "
        "counts with its whole budget in the first column, and is left out of the second.",
        "\n".join(ratios(races)),
        "## The whole fit",
        "Smallest and largest seconds of curvi's whole fits, certificate and final ELBO included, over all seeds. The "
        "last columns compare the cold fit, and its time to 0.1 nat, with what JAX needs to compile one "
        "value-and-gradient and one Hessian-vector product of the same log density.",
        "\n".join(spread()),
        *whole_fits(),
        "## What is left to gain",
        "curvi's own word against the truth. At the end: remaining gain as reported, and the true gap on 20,480 draws. "
        "Stopped early: the fit was cut after each of its steps; those with a true gap of 0.2 to 5 nats count, and the "
        "share whose reported gain is right within a factor of 2 is shown. *Unknown*: the fit said that the ELBO "
        "curves upwards there and that nothing bounds the gain; that counts as wrong in the share.",
        "\n".join(calibration(races)),
        *on_gpu(),
        "## Calls to a gap of 0.1 nat",
        "\n".join(table(races, calls, count, worst_of_ours=True)),
        "## Where curvi loses",
        "\n".join(losses(races)),
        "## Against reference draws",
        "Ratios and errors are those of curvi's mean field, and of its linear-response correction.",
        "\n".join(moments(races)),
    ]
    return "\n\n".join(parts) + "\n"


def draw(races) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(3, len(races))
    rows = -(-len(races) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.2 * rows), squeeze=False)
    names = list(dict.fromkeys(line["label"] for race in races.values() for line in race if line["label"] != OURS))
    colours = {name: f"C{i}" for i, name in enumerate(names)}
    for axis, (problem, race) in zip(axes.flat, races.items()):
        for name in names:
            lane = [line for line in race if line["label"] == name and line["gap"] is not None]
            if not lane:
                continue
            line = min(lane, key=lambda one: (one["hit"] is None, one["hit"][0] if one["hit"] else one["gap"]))
            points = [(s, max(g, 1e-4)) for s, _, g in line["track"] if g is not None and s > 1e-3]
            if not points:
                continue
            marker = "o" if len(points) == 1 else None
            axis.plot(*zip(*points), marker=marker, color=colours[name], label=name, linewidth=1.3)
        for line in race:
            if line["label"] == OURS and line["gap"] is not None:
                start = line["setting"]["start"]
                if start == "warm":
                    points = [(s, max(g, 1e-4)) for s, _, g in line["track"] if g is not None]
                    axis.plot(*zip(*points), color="black", linewidth=1.3, label="curvi, its steps")
                seconds = line["compile_seconds"] + line["run_seconds"]
                marker, fill = ("*", "black") if start == "warm" else ("*", "white")
                axis.plot(
                    seconds, max(line["gap"], 1e-4), marker, color="black", markerfacecolor=fill, markersize=13,
                    label=f"curvi, {start}" + (" (with compilation)" if start == "cold" else ""), linestyle="",
                )  # fmt: skip
        axis.axhline(float(GOAL), color="grey", linewidth=0.7, linestyle=":")
        axis.set(xscale="log", yscale="log", title=f"{problem} ({race[0]['num_latents']})", ylim=(8e-5, 1e4))
    for axis in axes[-1]:
        axis.set_xlabel("seconds, compiled")
    for axis in axes[:, 0]:
        axis.set_ylabel("gap to best mean field (nats)")
    for axis in axes.flat[len(races) :]:
        axis.set_visible(False)
    seen = {}
    for axis in axes.flat:
        seen.update(dict(zip(*axis.get_legend_handles_labels()[::-1])))
    figure.legend(seen.values(), seen.keys(), loc="lower center", ncols=3, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.06 + 0.12 / rows, 1, 1))
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)
