"""docs/scale.md and its picture, made of the lines of `scale.py` and of nothing else."""

from pathlib import Path

import numpy as np

import lines
from tables import COLOURS, DOCS, IMAGES, paragraph, picture, pyplot, save, table

MIB = 2**20
_LARGE = 100_000  # latents from which seconds say how they grow


def write(path: Path) -> None:
    """The page and its picture."""
    found = lines.read(path)
    if not found:
        raise SystemExit(f"{path} holds no lines; run python benchmarks/scale.py first")
    IMAGES.mkdir(parents=True, exist_ok=True)
    parts = [*_head(found)]
    for section in (_fits, _globals, _memory, _peers, _breakdown, _schemes, _roofline):
        parts += section(found)
    (DOCS / "scale.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"wrote {DOCS / 'scale.md'}")


def of_kind(found, kind: str) -> list[dict]:
    rows = [line for line in found if line["method"] == kind]
    return sorted(rows, key=lambda line: (line["device"], line["problem"], line["setting"].get("latents", 0)))


def short(device: str) -> str:
    return device.split(": ", 1)[1] if device.startswith("gpu") else "CPU"


def _head(found) -> list[str]:
    devices = sorted({line["device"] for line in found})
    versions = sorted({", ".join(f"{name} {v}" for name, v in line["versions"].items()) for line in found})
    commits = sorted({line["commit"][:9] for line in found if line["commit"]})
    return [
        "# Millions of latents",
        paragraph(
            "Fits of models with 10⁴ to 10⁸ latents on one device: seconds, memory, what is left to gain. Made by "
            "`python benchmarks/scale.py --tables` from `benchmarks/results/scale.jsonl`, one line of JSON a run; "
            "`python benchmarks/scale.py` (with `--cpu` on a machine without a GPU) runs everything again."
        ),
        paragraph(
            f"Devices: {'; '.join(devices)}. The cores of the CPU were two, shared with other work: its seconds are "
            f"rough. float32. Versions: {'; or '.join(versions)}. Commits: {', '.join(commits) or 'not recorded'}."
        ),
        paragraph(
            "*chain*: each latent is tied to its neighbours and seen through a Cauchy-like site, so that ln p is "
            "log-concave nowhere. *counts*: one Poisson count per latent, with a mean and a scale that all share. "
            '`curvi.fit(target, family="mean_field")`, defaults otherwise: [Newton on streamed '
            "draws](methods/streamed-newton.md), tolerance 0.001 nats per latent and 0.1 sd for every mean and sd."
        ),
    ]


# -- fits -------------------------------------------------------------------------------------------------------------


def _fits(found) -> list[str]:
    rows = of_kind(found, "fit")
    if not rows:
        return []
    head = ["device", "model", "latents", "cold s", "warm s", "outcome", "nats left per latent", "largest step, sds"]
    head += ["draws", "gradients", "products"]
    cells = []
    for line in rows:
        size = line["setting"]["latents"]
        cells.append(
            [short(line["device"]), line["problem"], f"{size:,}", f"{line['cold_seconds']:.1f}"]
            + [
                f"{line['seconds']:.2f}" if line.get("warm", line["seconds"] < line["cold_seconds"]) else "not run",
                line["outcome"],
                f"{line['nats_per_latent']:.1e}",
                f"{line['largest_step']:.2f}",
            ]
            + [f"{line[name]:,}" for name in ("draws", "gradients", "products")]
        )
    _draw(rows)
    said = []
    for device in sorted({line["device"] for line in rows}):
        chains = [x for x in rows if x["device"] == device and x["problem"] == "chain"]
        own = {x["setting"]["latents"]: x for x in chains if x["setting"]["latents"] >= _LARGE}
        if len(own) > 1:
            said.append(f"{short(device)} {power(own, lambda line: line['seconds']):.2f} (seconds)")
            said[-1] += f", {power(own, used_bytes):.2f} (memory)"
    return [
        "## Fits",
        paragraph(
            "Cold is the first fit of a process, compilation included; warm the second, with another key. Gradients "
            "and Hessian-vector products are counted per draw."
        ),
        table(head, cells),
        paragraph(
            f"Exponents of the power law through the chains of 10⁵ latents and more: {'; '.join(said)}. 1 is linear."
        )
        if said
        else "",
        picture("scale.png", "Seconds and memory of fits against the number of latents"),
    ]


def used_bytes(line: dict) -> int:
    """Bytes of the device, or on a CPU those of the process beyond its imports."""
    return line["device_bytes"] or max(line["host_bytes"] - line.get("import_bytes", 0), 1)


def power(by_size: dict[int, dict], what) -> float:
    sizes = sorted(by_size)
    return float(np.polyfit(np.log(sizes), np.log([what(by_size[d]) for d in sizes]), 1)[0])


def _draw(rows) -> None:
    figure, axes = pyplot().subplots(1, 2, figsize=(10.5, 4.2), layout="constrained")
    groups = sorted({(line["device"], line["problem"]) for line in rows})
    for index, (device, model) in enumerate(groups):
        own = {x["setting"]["latents"]: x for x in rows if (x["device"], x["problem"]) == (device, model)}
        sizes = sorted(own)
        style = {"color": COLOURS[index], "marker": "o", "markersize": 4, "label": f"{model}, {short(device)}"}
        axes[0].loglog(sizes, [own[d]["seconds"] for d in sizes], **style)
        axes[1].loglog(sizes, [used_bytes(own[d]) / MIB for d in sizes], **style)
    for axis, start, name in ((axes[0], 0.02, "seconds, warm"), (axes[1], 20.0, "MiB")):
        ends = np.array([1e5, 1e7])
        axis.loglog(ends, start * ends / ends[0], color="0.6", linestyle=":", label="proportional to d")
        axis.set_xlabel("latents d")
        axis.set_ylabel(name)
        axis.grid(alpha=0.3)
    axes[1].legend(fontsize=8, frameon=False)
    save(figure, "scale.png")


def _globals(found) -> list[str]:
    rows = [line for line in of_kind(found, "fit") if "off_sds" in line]
    if not rows:
        return []
    cells = [
        [
            short(line["device"]),
            f"{line['setting']['latents']:,}",
            f"{line['off_sds']['mu']:.3f}",
            f"{line['off_sds']['tau']:.3f}",
            f"{line['reference_draws']:,}",
            line["reference_outcome"],
        ]
        for line in rows
    ]
    words = (
        "The mean and the scale that all counts share, against a fit with more draws and a hundredth of the "
        "tolerance: their distance in posterior sds, which fall like 1/√d."
    )
    head = ["device", "latents", "mean off by", "scale off by", "draws of the reference", "its outcome"]
    return ["## Parameters that all latents share", paragraph(words), table(head, cells)]


def _memory(found) -> list[str]:
    rows = [line for line in (*of_kind(found, "fit"), *of_kind(found, "scheme")) if "planned_bytes" in line]
    if not rows:
        return []
    cells = []
    for line in rows:
        taken = used_bytes(line)
        name = line["setting"].get("scheme", line["problem"])
        cells.append(
            [
                short(line["device"]),
                name,
                f"{line['setting']['latents']:,}",
                f"{line['planned_bytes'] / MIB:,.0f}",
                f"{taken / MIB:,.0f}",
                f"{taken / line['planned_bytes']:.2f}",
                f"{line.get('draws_at_once', '')}",
            ]
        )
    words = (
        "`curvi.fit(..., memory=)` takes bytes, by default three quarters of the smaller of host and device. "
        "Chunks and buffers are cut for it before anything runs (`fit.plan`), and what cannot fit is refused "
        "with the number of bytes that it needs. Taken is the peak of the device, or on a CPU that of the "
        "process beyond its imports; a plan holds 256 MiB or more for compiled programs, which live on the host."
    )
    head = ["device", "fit", "latents", "planned MiB", "taken MiB", "ratio", "draws at a time"]
    return ["## Memory", paragraph(words), table(head, cells)]


# -- beside others ----------------------------------------------------------------------------------------------------


def _peers(found) -> list[str]:
    rows = of_kind(found, "peer")
    if not rows:
        return []
    cells = []
    for line in rows:
        setting, ours = line["setting"], line["setting"]["peer"] == "curvi"
        rate = "" if ours else f"{setting['rate']:g}"
        rate += f", halved every {setting['halved_every']:,}" if setting.get("halved_every") else ""
        reached = line["seconds"] if ours else line["reached_seconds"]
        left = 0.0 if ours else line["nats_per_latent"]
        cells.append(
            [
                short(line["device"]),
                line["problem"],
                f"{setting['latents']:,}",
                setting["peer"],
                rate,
                "not reached" if reached is None else f"{reached:.2f}",
                f"{left:.1e}",
                f"{line['steps']:,}",
            ]
        )
    words = (
        "NumPyro's `AutoNormal` with Adam on the same model and device, one draw a step, 200 steps a compiled "
        "call, until its ELBO is within 0.001 nats per latent of that of curvi's warm fit, both on the same 256 "
        "draws; its compilation, the check and the reading of its parameters are not in its seconds. curvi "
        "certifies what is left, Adam does not know. On the GPU Adam at its best schedule, known with hindsight, is "
        "there first, by a factor of three to four: the seconds of curvi are those of a fit to a tenth of that gap, "
        "with its certificate."
    )
    head = ["device", "model", "latents", "by", "rate", "seconds", "nats per latent from curvi's", "steps"]
    return ["## Against Adam", paragraph(words), table(head, cells)]


def _breakdown(found) -> list[str]:
    rows = of_kind(found, "breakdown")
    if not rows:
        return []
    cells = []
    for line in rows:
        model, noise = line["model_share"], line["noise_share"]
        cells.append(
            [short(line["device"]), line["problem"], f"{line['setting']['latents']:,}", f"{line['seconds']:.2f}"]
            + [f"{100 * share:.0f} %" for share in (model, noise, 1 - model - noise)]
        )
    words = (
        "Shares of the seconds of a warm fit: evaluations of the model (gradients and Hessian-vector products "
        "with the vectors that they read and write, each timed alone on numbers that cost nothing to make), the "
        "noise made inside of them, and everything else."
    )
    head = ["device", "model", "latents", "warm s", "evaluations", "noise", "everything else"]
    return ["## Where the seconds go", paragraph(words), table(head, cells)]


def _schemes(found) -> list[str]:
    rows = of_kind(found, "scheme")
    if not rows:
        return []
    cells = [
        [
            short(line["device"]),
            line["setting"]["scheme"],
            f"{line['setting']['latents']:,}",
            f"{line['seconds']:.1f}",
            str(line["steps"]),
            line["outcome"],
            f"{used_bytes(line) / MIB:,.0f}",
            f"{used_bytes(line) / (8 * line['setting']['latents']):.0f}",
        ]
        for line in rows
    ]
    words = (
        "Scheme I with conjugate gradients and with Woodbury, Scheme II; 256 draws a step, a few steps from a "
        "cold start with their certificate, on a tied normal. Scores that are too large to store are made eight "
        "draws at a time; a solver that needs all of them at once takes S more vectors. A vector is as long as "
        "the parameters; compiled programs are counted in."
    )
    head = ["device", "scheme", "latents", "seconds", "steps", "outcome", "MiB", "in vectors"]
    return ["## The paper's schemes", paragraph(words), table(head, cells)]


def _roofline(found) -> list[str]:
    rows = of_kind(found, "roofline")
    if not rows:
        return []
    cells = [
        [
            line["problem"],
            f"{1000.0 * line['seconds']:.2f}",
            f"{line['bytes'] / 1000000000.0:.2f}",
            f"{line['operations'] / 1000000000.0:.1f}",
            f"{1000.0 * line['floor_seconds']:.2f}",
            f"{100 * line['share']:.0f} %",
            ""
            if line["relative_error"] is None or np.isnan(line["relative_error"])
            else f"{line['relative_error']:.0e}",
        ]
        for line in rows
    ]
    stream, peak = rows[0]["stream"], rows[0]["peak"]
    words = (
        f"{short(rows[0]['device'])}: a stream of a = b + s c moved {stream / 1e12:.2f} TB/s in the same run; the "
        f"peak of float32 is {peak / 1e12:.0f} TFLOP/s by the data sheet. The floor is the larger of bytes over "
        "the stream and operations over the peak; the error is against float64 on a part of the data. Logistic: "
        "4·10⁶ rows, 256 columns, 32 draws; low rank: 64 vectors of 2·10⁷, read twice; inner step: 10⁸; sweep: "
        "10⁷ latents, 32 draws, whose bytes are those of the draws alone."
    )
    head = ["product", "ms", "GB", "10⁹ operations", "floor, ms", "share of the floor", "relative error"]
    return ["## Roofline", paragraph(words), table(head, cells)]
