"""docs/discrete.md from the lines of runs, and of nothing else."""

import numpy as np

import lines
from tables import DOCS, paragraph, table

THRESHOLD = 0.1
OURS, PLAIN = "regression", "regression, main effects only"
ADAM, NUMPYRO = "Adam on the leave-one-out score gradient", "NumPyro, TraceGraph_ELBO, Adam"


def write(path) -> None:
    found = lines.read(path)
    if not found:
        raise SystemExit(f"{path} holds no lines; run python benchmarks/discrete.py first")
    names = list(dict.fromkeys(line["problem"] for line in found))
    parts = [*_head(found), _calls(found, names), *_correction(found, names)]
    (DOCS / "discrete.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"wrote {DOCS / 'discrete.md'}")


def _head(found) -> list[str]:
    devices = sorted({line["device"] for line in found})
    versions = sorted({", ".join(f"{name} {v}" for name, v in line["versions"].items()) for line in found})
    return [
        "# Second order from values alone",
        paragraph("""
            Where a model has discrete latents, or is known by its values only, there is no gradient to
            follow. The default of `curvi.fit` there is `PooledRegression`: least squares of ln p - ln q
            on the scores of q and on products of scores of different factors, over pooled draws. The
            coefficients are the natural gradient and the Hessian off its diagonal blocks.
            `PooledRegression(correction=False)` leaves the products out: a natural-gradient step.
        """),
        paragraph("""
            Python functions on the host are fitted in the same way: `curvi.Target(f, init, order=0,
            black_box=True)`, with `workers=` for spawned processes and `timeout=` for the seconds a call
            may take. If `f` fails, the error (`curvi.BlackBoxError`) names the draw, and its `fit` is the
            fit so far.
        """),
        paragraph("""
            Latents that belong to the rows of a plate, such as the assignments of a mixture, need not be
            sampled: `curvi.FactoredTarget` takes the factors by name and says which rows a local latent
            touches. Its rows are then at their best throughout, in closed form, and regression runs on
            the global latents alone. `curvi.from_numpyro` finds this structure by itself: it follows the
            rows of each discrete latent of a plate through the traced densities of all sites.
        """),
        "## How it was measured",
        paragraph("""
            Made by `python benchmarks/discrete.py --tables` from `benchmarks/results/discrete.jsonl`. The
            gap of any q is exact, by enumeration or in closed form. Its reference is the lowest local
            optimum that regression ended in over its seeds, the same for all methods. Regression runs
            with no setting given; Adam and NumPyro have their best of five rates and three or four
            numbers of draws, by the median over five seeds; a moment below the gap counts. NumPyro differentiates
            the density of the change point in its continuous latents; the others see values only. The
            sizes of batches and the first radius that regression uses by default were chosen among a
            handful on these models and seeds, so that its figures are those of a method that was tuned
            here once, for all four together; new models may fare worse.
        """),
        paragraph(f"Device: {'; '.join(devices)}; float64. Versions: {'; or '.join(versions)}."),
    ]


def hits(found, name, method) -> list[float]:
    """Calls to the threshold of each seed of regression, infinite where it was not reached."""
    own = [line for line in found if line["problem"] == name and line["method"] in (OURS, PLAIN)]
    reference = min(line["optimum"] for line in own)
    out = []
    for line in own:
        if line["method"] == method:
            out.append(next((c for c, value in line["track"] if reference - value <= THRESHOLD), np.inf))
    return out


def tuned(found, name, method) -> tuple[float, str]:
    """The best median over seeds of all settings, and that setting."""
    settings = {}
    for line in found:
        if line["problem"] == name and line["method"] == method:
            key = (line["setting"]["num_draws"], line["setting"]["rate"])
            settings.setdefault(key, []).append(np.inf if line["calls"] is None else line["calls"])
    if not settings:
        return np.nan, ""
    best = min(settings, key=lambda key: np.median(settings[key]))
    return float(np.median(settings[best])), f"{best[0]} draws, rate {best[1]:g}"


def _calls(found, names) -> str:
    rows, ratios = [], {ADAM: [], NUMPYRO: []}
    for name in names:
        ours = float(np.median(hits(found, name, OURS)))
        size = next(line["num_params"] for line in found if line["problem"] == name and "num_params" in line)
        row = [name, str(size), _number(ours)]
        for method in (ADAM, NUMPYRO):
            calls, setting = tuned(found, name, method)
            ratios[method].append(calls / ours)
            row += [_number(calls) + (f" ({setting})" if np.isfinite(calls) else ""), f"{calls / ours:.1f}"]
        rows.append(row)
    means = {method: float(np.exp(np.mean(np.log(values)))) for method, values in ratios.items()}
    head = ["model", "parameters", "regression", "Adam, tuned", "ratio", "NumPyro, tuned", "ratio"]
    return "\n\n".join(
        [
            "## Calls of the log density to within 0.1 nat",
            table(head, rows),
            paragraph(f"""
                Geometric mean of the ratios: {means[ADAM]:.1f} against Adam, {means[NUMPYRO]:.1f}
                against NumPyro's TraceGraph_ELBO. A dash: no setting brought half of its seeds there
                within its budget (400,000 calls, or a minute of running time for each number of
                draws); the ratio is then infinite.
            """),
        ]
    )


def _correction(found, names) -> list[str]:
    rows = []
    for name in names:
        with_it, without = hits(found, name, OURS), hits(found, name, PLAIN)
        weights = [
            weight
            for line in found
            if line["problem"] == name and line["method"] == OURS
            for weight in line["curvature_weight"][1:]
        ]
        low, middle, high = np.quantile(weights, [0.1, 0.5, 0.9])
        rows.append(
            [
                name,
                f"{_number(np.median(with_it))} ({_number(min(with_it))} to {_number(max(with_it))})",
                f"{_number(np.median(without))} ({_number(min(without))} to {_number(max(without))})",
                f"{np.median(with_it) / np.median(without):.2f}",
                f"{middle:.2f} ({low:.2f} to {high:.2f})",
            ]
        )
    head = ["model", "with products", "without", "ratio", "share of B believed"]
    return [
        "## What the products are worth",
        paragraph("""
            Calls to within 0.1 nat with and without products of scores, median over ten seeds (least to
            most), and the share of the regressed curvature that half samples confirmed (median over steps
            and seeds, tenth and ninetieth percentile). A dash: a seed that did not come within 0.1 nat of
            the reference.
        """),
        table(head, rows),
    ]


def _number(value) -> str:
    return f"{value:,.0f}" if np.isfinite(value) else "-"
