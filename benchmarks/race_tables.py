"""The sections on calls to a gap."""

import math

import numpy as np

from tables import COLOURS, paragraph, picture, pyplot, save, table

CLAIM = 5.0  # times fewer calls than the best first-order score method
GROUPS = {
    "second": "Values only, second order",
    "safe first": "Values only, first order, safe step",
    "first": "Values only, first order, tuned rate",
    "printed": "The paper's algorithms as printed",
    "pathwise": "Derivatives of the model",
}


def breast_cancer(found) -> list[str]:
    problem, far, near = "breast cancer", "1.0", "0.3"
    races = _races(found, problem)
    if not races:
        return []
    _draw(races, problem, far, "paper-breast.png")
    return [
        "## 2. Breast cancer: calls to within 1 nat",
        paragraph(
            "Logistic regression with 31 coefficients (`breast_cancer_target` of `curvi demo`), from "
            "`MeanField(target)`, some 410 nats below the best mean field. Under a mean field of Normals each logit is "
            "Normal, so the "
            "ELBO, its maximum and every gap come from Gauss-Hermite quadrature, without Monte Carlo noise. The gap "
            "is looked at whenever the number of steps has grown by 5 %. Each method stands at its best setting, "
            "median over three seeds; the same seeds choose the setting and make the figure, for all methods alike. "
            "`-`: most seeds did not arrive within about 60,000 calls; the final gap in nats stands in brackets."
        ),
        paragraph(f"Tried: {_tried(races)}."),
        _table(races, far, near),
        _verdict(races, far, near),
        *_why(found, races, problem),
        picture("paper-breast.png", "Gap against calls of the log density, breast cancer"),
    ]


def _verdict(races, far: str, near: str) -> str:
    best = best_of_groups(races, far)
    second, first, safe = best["second"], best["first"], best["safe first"]
    ratio = first.calls(far) / second.calls(far)
    holds = "holds" if ratio >= CLAIM else "does **not** hold"
    overlap = "overlap" if second.spread(far)[1] >= first.spread(far)[0] else "do not overlap"
    shipped = [s for s in races["Scheme I, CG"] if s.num_draws == 256 and s.setting["rate"] == 0.001]
    text = (
        "**Does second order pay in calls?** The claim to check is that Scheme I on the anchored score needs at least "
        f"{CLAIM:g} times fewer calls than the best first-order score method. It {holds} here: {second.name} "
        f"({second.num_draws} draws) needs {second.calls(far):,.0f} calls at its best of {len(races[second.name])} "
        f"settings, {first.name} ({first.num_draws} draws) {first.calls(far):,.0f} at its best of "
        f"{len(races[first.name])}: a factor of {ratio:.1f}, and the ranges over seeds {overlap}. As shipped "
        f"(256 draws, damping 0.001) Scheme I needs {_number(shipped[0].calls(far))}. The same safe "
        f"step without curvature, `NaturalGradient`, needs {safe.calls(far):,.0f}, so these runs do not show that the "
        "curvature helps. "
    )
    closer = best_of_groups(races, near)
    words = [f"{closer[g].name} {_number(closer[g].calls(near))}" for g in ("second", "safe first", "first")]
    return paragraph(f"{text}To {near} nats the best of each kind need: {'; '.join(words)}.")


def rotated_gaussian(found) -> list[str]:
    problem, far, near = "rotated Gaussian", "1.0", "0.1"
    races = _races(found, problem)
    if not races:
        return []
    _draw(races, problem, far, "paper-synthetic.png")
    best = best_of_groups(races, far)
    words = ", ".join(f"{best[g].name} {best[g].calls(far):,.0f}" for g in ("second", "safe first", "first"))
    ratio = best["first"].calls(far) / best["second"].calls(far)
    return [
        "## 3. A rotated Gaussian",
        paragraph(
            "A Gaussian in 10 dimensions, condition 100, turned by three Householder reflections; the best mean field "
            "and every gap are known in closed form. Settings, seeds and marks as above."
        ),
        paragraph(f"Tried: {_tried(races)}."),
        _table(races, far, near),
        paragraph(
            f"The best of each kind to 1 nat, in calls: {words}. "
            + (
                f"Second order needs {ratio:.1f} times fewer calls than the best tuned first-order method."
                if ratio >= 1
                else f"The best tuned first-order method needs {1 / ratio:.1f} times fewer calls than second order."
            )
        ),
        picture("paper-synthetic.png", "Gap against calls of the log density, rotated Gaussian"),
    ]


class Setting:
    """The runs of one method at one setting, over seeds."""

    def __init__(self, runs: list[dict]):
        self.runs = sorted(runs, key=lambda run: run["seed"])
        self.name: str = runs[0]["method"]
        self.setting: dict = runs[0]["setting"]
        self.num_draws = self.setting.get("num_draws")
        self.order: str = runs[0]["order"]

    @property
    def group(self) -> str:
        if "as printed" in self.name:
            return "printed"
        return "safe first" if self.name == "NaturalGradient" else self.order

    def median(self, threshold: str, what: str) -> float:
        """Median over seeds of steps or calls to a gap; infinite where most seeds did not arrive."""
        hits = [run["to_gap"][threshold] for run in self.runs]
        return float(np.median([math.inf if hit is None else hit[what] for hit in hits]))

    def calls(self, threshold: str) -> float:
        return self.median(threshold, "log_density")

    def spread(self, threshold: str) -> tuple[float, float]:
        """Fewest and most calls of the log density over the seeds that arrived."""
        calls = [hit["log_density"] for run in self.runs if (hit := run["to_gap"][threshold])]
        return (min(calls), max(calls)) if calls else (math.inf, math.inf)

    def final_gap(self) -> float:
        gaps = [run["final_gap"] for run in self.runs]
        return float(np.median([math.inf if gap is None else gap for gap in gaps]))


def _races(found, problem: str) -> dict[str, list[Setting]]:
    """All settings of each method."""
    grouped: dict[tuple, list[dict]] = {}
    for line in found:
        if line["problem"] == problem and "to_gap" in line:
            grouped.setdefault((line["method"], *sorted(line["setting"].items())), []).append(line)
    races: dict[str, list[Setting]] = {}
    for (method, *_), runs in grouped.items():
        races.setdefault(method, []).append(Setting(runs))
    return races


def best_setting(settings: list[Setting], threshold: str) -> Setting:
    """The setting that needs the fewest calls of the log density; where none arrives, that of the least final gap."""
    return min(settings, key=lambda s: (s.calls(threshold), s.final_gap()))


def best_of_groups(races, threshold: str) -> dict[str, Setting]:
    best: dict[str, Setting] = {}
    for settings in races.values():
        setting = best_setting(settings, threshold)
        if setting.group not in best or setting.calls(threshold) < best[setting.group].calls(threshold):
            best[setting.group] = setting
    return best


def _tried(races) -> str:
    words = []
    for method, settings in races.items():
        draws = sorted({s.num_draws for s in settings if s.num_draws})
        rates = sorted({s.setting["rate"] for s in settings if "rate" in s.setting})
        tuned = (
            f", {len(rates)} values of {settings[0].setting['tuned']}, {rates[0]:g} to {rates[-1]:g}" if rates else ""
        )
        if draws:
            words.append(f"{method} ({'/'.join(map(str, draws))} draws{tuned})")
    return "; ".join(words)


def _table(races, far: str, near: str) -> str:
    head = [
        "method",
        "draws",
        "tuned",
        "steps",
        f"log-density calls to {float(far):g} nat",
        "over seeds",
        "all calls, with derivatives",
        f"log-density calls to {near} nats",
    ]
    rows = []
    for group, title in GROUPS.items():
        mine = [best_setting(settings, far) for settings in races.values() if settings[0].group == group]
        rows += [[f"**{title}**", *[""] * 7]] if mine else []
        for s in sorted(mine, key=lambda s: (s.calls(far), s.final_gap())):
            hits = sorted(hit["log_density"] for run in s.runs if (hit := run["to_gap"][far]))
            spread = f"{hits[0]:,} to {hits[-1]:,}" if len(hits) > 1 else ""
            arrived = "" if len(hits) in (0, len(s.runs)) else f" ({len(hits)} of {len(s.runs)})"
            rows.append(
                [
                    s.name,
                    str(s.num_draws or "growing"),
                    _tuned(s, races[s.name]),
                    _number(s.median(far, "steps")),
                    _number(s.calls(far)) if math.isfinite(s.calls(far)) else f"- ({_gap(s.final_gap())})",
                    spread + arrived,
                    _number(s.median(far, "calls")) if group == "pathwise" else "",
                    _number(best_setting(races[s.name], near).calls(near)),
                ]
            )
    return table(head, rows)


def _tuned(setting: Setting, others: list[Setting]) -> str:
    if "rate" not in setting.setting:
        return ""
    rates = [s.setting["rate"] for s in others if s.num_draws == setting.num_draws]
    rate, name = setting.setting["rate"], setting.setting["tuned"]
    end = " (end of the grid)" if rate in (min(rates), max(rates)) else ""
    return f"{name} {rate:g}{end}"


def _number(value: float) -> str:
    return "-" if math.isinf(value) else f"{value:,.0f}"


def _gap(value: float) -> str:
    return f"{value:,.3g}" if value < 1e5 else "diverged"


def _why(found, races, problem: str) -> list[str]:
    errors = [line for line in found if line["problem"] == problem and line["method"].startswith("Hessian error")]
    if not errors:
        return []
    counts = sorted({line["setting"]["num_draws"] for line in errors})
    rows = []
    for name in dict.fromkeys(line["method"] for line in errors):
        mine = {
            line["setting"]["num_draws"]: np.median(line["relative_error"]) for line in errors if line["method"] == name
        }
        rows.append([f"`{name.split(', ')[1]}`", *[f"{mine[c]:.2g}" if c in mine else "" for c in counts]])
    size = errors[0]["num_params"]
    weights = {
        s.num_draws: float(np.median([run["curvature_weight"] for run in s.runs]))
        for s in races.get("Scheme I, CG", [])
        if s.setting["rate"] == 0.001
    }
    believed = ", ".join(f"{weights[count]:.2f} at {count} draws" for count in sorted(weights))
    return [
        paragraph(
            f"**Why.** The score estimate of the {size} x {size} Hessian is mostly noise at these numbers of draws. "
            "Its relative error in the spectral norm at the optimum, in Fisher-whitened coordinates, median over "
            "eight replicates:"
        ),
        table(["draws", *[f"{count:,}" for count in counts]], rows),
        paragraph(
            "An estimate that is off by about its own size has no usable inverse. Scheme I shrinks it towards the "
            "Fisher information by the agreement of two half samples; the share believed, averaged over the steps, "
            f"was {believed}. Shrunk so far, its step is nearly that of the natural gradient. The pathwise Hessian, "
            "from derivatives of the model, is accurate with few draws; no first-order method with derivatives was run "
            "here."
        ),
    ]


def _draw(races, problem: str, threshold: str, file: str) -> None:
    shown: list[Setting] = []
    for group, count in {"second": 2, "safe first": 1, "first": 3, "pathwise": 2}.items():
        mine = [best_setting(settings, threshold) for settings in races.values() if settings[0].group == group]
        shown += sorted(mine, key=lambda s: s.calls(threshold))[:count]
    figure, axis = pyplot().subplots(figsize=(7.5, 4.8), layout="constrained")
    for colour, s in zip(COLOURS, shown):
        derivatives = s.group == "pathwise"
        label = f"{s.name}{f' ({s.num_draws})' if s.num_draws else ''}"
        for k, run in enumerate(s.runs):
            gap = np.array([np.nan if g is None else g for g in run["track"]["gap"]], float)
            line = {"color": colour, "linestyle": "--" if derivatives else "-", "linewidth": 1.3, "alpha": 0.85}
            axis.loglog(run["track"]["calls"], gap, label=label if k == 0 else None, **line)
    axis.axhline(float(threshold), color="0.4", linewidth=0.8, linestyle=":")
    axis.set_xlabel("calls of the log density (dashed lines: gradients and Hessian products too)")
    axis.set_ylabel("gap to the best mean field, nats")
    axis.set_title(f"{problem}: the best methods of each kind at their best settings, three seeds", fontsize=10)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, frameon=False, loc="lower left")
    save(figure, file)
