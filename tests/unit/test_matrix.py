"""make test-matrix: which interpreters and versions it takes, and what it says where one is missing."""

import importlib.util
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("matrix_run", ROOT / "tests" / "matrix" / "run.py")
run = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(run)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_versions_are_those_that_the_package_names():
    named = [line.rsplit(" ", 1)[1] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert list(run.PYTHONS) == named and all((ROOT / path).exists() for path in run.TESTS)


def test_an_interpreter_is_asked_for_its_version(tmp_path, monkeypatch):
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    # A shim on the path that leads nowhere, as pyenv's.
    shim = tmp_path / f"python{own}"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert (found := run.find(own)) is not None and found != str(shim)
    assert run.find("2.6") is None


def test_a_missing_interpreter_ends_it_before_anything_is_built():
    command = [sys.executable, str(ROOT / "tests" / "matrix" / "run.py"), "--python", "2.6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert all(words in done.stderr for words in ("Python 2.6 not found", "pyenv install 2.6", "uv python install 2.6"))


@pytest.mark.parametrize("bound, oldest", [("jax>=0.6", "0.6"), ("jax<1,>=0.7.1", "0.7.1")])
def test_the_oldest_jax_is_that_of_the_wheel(tmp_path, bound, oldest):
    wheel = tmp_path / "curvi-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "curvi-1.dist-info/METADATA", f"Name: curvi\nRequires-Dist: jaxtyping>=1\nRequires-Dist: {bound}\n"
        )
    assert run.oldest_jax(wheel) == oldest
