"""The wheel in fresh environments: every Python that curvi says it runs on, with the oldest and the newest JAX allowed.

    python tests/matrix/run.py [--python 3.11 ...] [--jax oldest|newest ...]

Builds a wheel, and for each pair makes a virtual environment outside of the checkout, installs the wheel and nothing of
the checkout into it, and runs the checks of `checks.py` and the tests of `TESTS`. Fails where an interpreter is
missing, before anything is built. It stands on the standard library alone.
"""

import argparse
import email.parser
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
JAXES = ("oldest", "newest")
# Each side of the package once, in a few minutes; the whole suite runs on one pair, in `make test`.
TESTS = (
    "tests/unit/test_import.py",
    "tests/unit/test_fit.py",
    "tests/unit/test_storage.py",
    "tests/adapters/test_numpyro.py",
    "tests/adapters/test_guide.py",
)


def find(version: str) -> str | None:
    """An interpreter of this version: on the path, among those of pyenv, or one that uv has."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = [shutil.which(f"python{version}"), sys.executable]
    named += [str(path) for path in sorted(pyenv.glob(f"{version}*/bin/python"), reverse=True)]
    if (uv := shutil.which("uv")) is not None:
        found = subprocess.run([uv, "python", "find", "--offline", version], capture_output=True, text=True)
        named.append(found.stdout.strip())
    ask = "import sys, ensurepip, venv; print(*sys.version_info[:2], sep='.')"
    for path in filter(None, named):
        # A name on the path may be a shim that leads nowhere, and Debian's Python may have no ensurepip.
        said = subprocess.run([path, "-c", ask], capture_output=True, text=True)
        if said.returncode == 0 and said.stdout.strip() == version:
            return path
    return None


def missing(versions) -> str:
    """What to say of interpreters that were not found."""
    names = ", ".join(f"Python {version}" for version in versions)
    one = versions[0]
    return (
        f"{names} not found, neither as python{one} on the path, nor in ~/.pyenv/versions, nor by uv. Get it by `pyenv "
        f"install {one}` or `uv python install {one}`, on Debian or Ubuntu by `apt-get install python{one}-venv`; then "
        "run make test-matrix again."
    )


def build(python: str, folder: Path) -> Path:
    """The wheel of the checkout, built by an interpreter of its own."""
    environment = folder / "build"
    subprocess.run([python, "-m", "venv", str(environment)], check=True)
    command = [str(environment / "bin" / "python"), "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("curvi-*.whl")
    return wheel


def oldest_jax(wheel: Path) -> str:
    """The version of JAX that the wheel's own metadata begin with."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        metadata = email.parser.Parser().parsestr(archive.read(name).decode())
    (bound,) = [one for one in metadata.get_all("Requires-Dist", []) if re.match(r"jax\b(?!lib)", one)]
    found = re.search(r">=\s*([\d.]+)", bound)
    assert found, f"the wheel names no oldest JAX: {bound}"
    return found[1]


def check(python: str, jax: str, wheel: Path, folder: Path) -> None:
    """One environment; raises CalledProcessError where something in it fails."""
    subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
    inside = str(folder / "bin" / "python")
    pip = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wanted = [f"{wheel}[arviz]", "pytest>=9", "beartype>=0.19"]
    jaxes = ["jax", "jaxlib"] if jax == "newest" else [f"jax=={jax}", f"jaxlib=={jax}"]
    subprocess.run([*pip, *(["--upgrade"] if jax == "newest" else []), *wanted, *jaxes], check=True)
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    clean |= {"JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"}
    # Far from the checkout, so that only what the wheel holds is found.
    subprocess.run([inside, "-W", "error::DeprecationWarning:curvi", str(ROOT / "tests/matrix/checks.py")],
                   check=True, cwd=folder, env=clean)  # fmt: skip
    # Warnings of other packages at versions that nobody has seen yet are theirs.
    pytest = [inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", *TESTS]
    subprocess.run(pytest, check=True, cwd=ROOT, env=clean)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="versions of Python")
    parser.add_argument("--jax", nargs="+", default=JAXES, choices=JAXES)
    asked = parser.parse_args()
    pythons = {version: find(version) for version in asked.python}
    if absent := [version for version, path in pythons.items() if path is None]:
        sys.exit(missing(absent))
    failed = []
    with tempfile.TemporaryDirectory(prefix="curvi-matrix-") as name:
        folder = Path(name)
        wheel = build(next(iter(pythons.values())), folder)
        versions = {"oldest": oldest_jax(wheel), "newest": "newest"}
        for version, python in pythons.items():
            for jax in asked.jax:
                label, start = f"Python {version}, JAX {versions[jax]}", time.monotonic()
                print(f"== {label}", flush=True)
                try:
                    check(python, versions[jax], wheel, folder / "environment")
                except subprocess.CalledProcessError as error:
                    failed.append(label)
                    print(f"== {label}: failed ({' '.join(map(str, error.cmd))[:200]})", flush=True)
                else:
                    print(f"== {label}: passed in {time.monotonic() - start:.0f} s", flush=True)
    if failed:
        sys.exit(f"failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
