"""The page docs/black-boxes.md from the lines of `black_boxes.py` and of nothing else."""

from pathlib import Path

import numpy as np

import lines
from tables import paragraph, table

DOC = Path(__file__).parents[1] / "docs" / "black-boxes.md"
RIVALS = ("importance sampling", "Adam")
_QUARTER = 0.25


def write(results: Path) -> None:
    found = lines.read(results)
    names = list(dict.fromkeys(line["problem"] for line in found))
    DOC.write_text("\n\n".join([_HEAD.strip(), *_calls(found, names), _WHY.strip()]) + "\n")


def _calls(found: list[dict], names: list[str]) -> list[str]:
    rows, dear, wrong = [], [], []
    for name in names:
        own = [line for line in found if line["problem"] == name]
        mine = [line for line in own if line["method"] == "PooledRegression" and line["setting"]["family"] == "auto"]
        usual = [line for line in mine if line["setting"]["tolerance"] is None]
        rough = [line for line in mine if line["setting"]["tolerance"] is not None]
        first, whole, short = (
            _middle(usual, "first_right"),
            _middle(usual, "total_calls"),
            _middle(rough, "total_calls"),
        )
        best = {rival: _best([line for line in own if line["method"] == rival]) for rival in RIVALS}
        least = min(calls for calls, _ in best.values())
        for label, calls in (("first right", first), ("whole fit", whole), ("at 0.2 nats", short)):
            if calls > _QUARTER * least:
                dear.append(f"{name}, {label} ({calls / least:.2f})")
        wrong += [f"{line['sd_error']:.2f} on {name}" for line in mine if line["sd_error"] > 0.15]
        rows.append([name, str(_noise(own)), f"{first:,.0f}", f"{whole:,.0f}", f"{short:,.0f}"])
        rows[-1] += [f"{calls:,.0f} ({setting})" if np.isfinite(calls) else "-" for calls, setting in best.values()]
        rows[-1] += [f"{max(line['sd_error'] for line in of):.2f}" for of in (usual, rough)]
    more = f"More than a quarter of the calls of the better rival: {', '.join(dear)}." if dear else ""
    less = (
        f"Sds off by more than 15 % at the end: {', '.join(wrong)}."
        if wrong
        else "No fit ended with an sd off by more."
    )
    field = [line for line in found if line["setting"].get("family") == "mean_field" and line["seed"] == 0]
    said = ", ".join(f"{line['sd_error']:.2f} ({line['problem']})" for line in field)
    seeds = {line["seed"] for line in found if line["method"] == "PooledRegression"}
    heads = ["model", "noise", "right", "whole fit", "at 0.2 nats", "importance sampling", "Adam"]
    return [
        "## Calls of the log density",
        paragraph(f"""
            Right: every sd within 15 % of the reference and every mean within a quarter of an sd, for the first time.
            curvi by default, medians over {len(seeds)} seeds: until q was right, of the whole fit with its verdict, and
            of the whole fit with `tolerance=0.2`. Rivals, medians over five seeds: until their answer was right for the
            first time, which nobody would know; their stop comes on top. {more}
        """),
        table([*heads, "largest error of an sd", "at 0.2 nats"], rows),
        paragraph(f"{less} A mean field, the default before, ends with an sd off by this share: {said}."),
    ]


def _noise(own: list[dict]) -> float:
    return next((line["noise"] for line in own if "noise" in line), 0.0)


def _middle(of: list[dict], key: str) -> float:
    return float(np.median([np.inf if line[key] is None else line[key] for line in of]))


def _best(of: list[dict]) -> tuple[float, str]:
    """The best setting by its median, and what it is in words."""
    medians = [np.median([np.inf if calls is None else calls for calls in line["first_right"]]) for line in of]
    if not medians or not np.isfinite(min(medians)):
        return np.inf, ""
    setting = of[int(np.argmin(medians))]["setting"]
    words = {
        "size": "{} draws",
        "num_draws": "{} draws",
        "rate": "rate {:g}",
        "window": "window {}",
        "start": "sd {:.2g}",
    }
    return float(min(medians)), ", ".join(words[key].format(setting[key]) for key in setting if key in words)


_HEAD = """
# Correlated black boxes

A simulator's parameters are rarely independent of each other, and a mean field is then wrong in its sds. By default
`curvi.fit` follows a continuous black box to full rank, up to 30 latents, from its values alone:

```python
target = curvi.Target(simulate, {"rates": np.ones(4)}, {"rates": constraints.positive}, order=0, black_box=True)
fit = curvi.fit(target, key=jax.random.key(0))  # or family="full_rank", or family="mean_field"
print(fit.families)  # what full rank gains, and why it was chosen
```

A fit begins with a mean field and goes on with full rank as soon as products of scores show that it gains more than
0.05 nats, or when its end leaves that open: half of the variance of what the regression does not explain bounds what
any family could gain. Values may be noisy; then their expectation is the objective, and a verdict takes draws in
proportion to the variance of the noise. `tolerance=0.2` ends such a fit sooner, with sds that are somewhat less right.

## How it was measured

Made by `python benchmarks/black_boxes.py --tables` from `benchmarks/results/black_boxes.jsonl`; models in
`benchmarks/black_box_problems.py`, rivals in `benchmarks/black_box_rivals.py`.

- Gaussian: ten dimensions, rotated at random, variances from 10^-2 to 10^2, far from the start.
- tumours: logistic regression of 569 tumours on eight features, three of them almost copies (scikit-learn).
- lynxes: eight parameters of the equations of Lotka and Volterra, solved by Runge and Kutta in NumPy, for hares and
  lynxes of 21 years; each value is off by a normal error of half a nat.

References are 40,000 draws of NUTS. The rivals: populations of draws of a normal distribution that follows their
weighted moments, weights of the mixture of the last populations (importance sampling); and Adam on the score gradient
of full rank, whitened by q, which ordinary Adam is not. Both begin at the same means with curvi's sd of 0.14 or with 1.
Grids: 20 to 250 draws, windows of 8, 16 and 32 populations, shares of 0.3 and 0.6 effective draws, rates 0.5 and 1; 4,
8, 16, 64, 256 draws and rates of 0.001 to 0.3 for Adam. A setting was given up after twice the calls of the best before
it. The rivals see compiled densities, with noise of the same size. How earlier draws are tempered and batches grow was
chosen on these three models, and so was the size of the noise: other models may do worse.
"""

_WHY = """
## What makes it cheap

- The regression of ln p - ln q on the scores of a full-rank normal q is a quadratic model of ln p, in coordinates in
  which q is round. Its natural gradient is followed straight in natural parameters: where ln p is quadratic, one step
  ends at the posterior (`FullRank.move`).
- How long the step may be follows from the residual: it grows with the cube of the distance where ln p is smooth, and
  may hold half of the predicted gain; or the divergence stays within the trust radius (`descent/normal.py`).
- Where few draws overlap with the new q, those of earlier ones count with tempered weights. A verdict never does so.
"""
