"""One line of JSON a run: what ran, on what, what it cost. Tables and pictures are made of such lines alone."""

import functools
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path

import jax

RESULTS = Path(__file__).parent / "results" / "paper.jsonl"
_PACKAGES = ("jax", "jaxlib", "equinox", "numpyro", "optax", "numpy", "scipy")
_KEY = ("problem", "method", "setting", "seed", "device")


@functools.cache
def commit() -> str:
    """The commit that is checked out, with a plus where the tree differs from it; in a copy of the files alone, what
    the variable CURVI_COMMIT says.
    """
    if said := os.environ.get("CURVI_COMMIT"):
        return said
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", "../src") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


@functools.cache
def environment() -> dict:
    """Commit, versions and device, the same in all lines of a process."""
    import curvi

    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    device = jax.devices()[0]
    kind = _cpu_name() if device.platform == "cpu" else device.device_kind
    return {
        "commit": commit(),
        "device": f"{device.platform}: {kind}",
        "versions": {"python": platform.python_version(), "curvi": curvi.__version__, **versions},
    }


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    names = [row.split(":", 1)[1].strip() for row in text.splitlines() if row.startswith("model name")]
    return names[0] if names else platform.machine()


def append(path: Path, problem: str, method: str, setting: dict, seed: int, **measured) -> None:
    """One more line at the end of `path`."""
    line = {"problem": problem, "method": method, "setting": setting, "seed": seed, **measured, **environment()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line, default=float, separators=(",", ":")) + "\n")


def read(path: Path) -> list[dict]:
    """All lines; of several runs of one thing on one device the last counts."""
    if not path.exists():
        return []
    lines = [json.loads(row) for row in path.read_text().splitlines() if row]
    last = {json.dumps([line[name] for name in _KEY], sort_keys=True): line for line in lines}
    return list(last.values())
