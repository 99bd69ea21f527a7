# Needs Python 3.11 or newer and make; everything else is installed into .venv at the versions of constraints.txt.
# Another interpreter: make PYTHON=python3.12 test. More test processes: make JOBS=8 test.

PYTHON ?= python3
JOBS ?= 2
PYTEST_ARGS ?=
MATRIX_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The wheel of pyright is pinned: do not ask the network whether there is a newer one.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test test-slow test-matrix gallery lint format docs docs-serve bench bench-full bench-paper bench-posteriors bench-hierarchical lock clean

help:
	@echo "make demo         fit the demonstration models, write curvi-demo/"
	@echo "make test         run the fast tests"
	@echo "make test-slow    run the tests marked slow"
	@echo "make test-matrix  install the wheel on Python 3.11, 3.12 and 3.13 with the oldest and the newest JAX, and test it"
	@echo "make lint         ruff check, ruff format --check, pyright"
	@echo "make format       apply ruff's fixes and formatting"
	@echo "make docs         build the documentation site in site/; make docs-serve shows it while you write"
	@echo "make gallery      run the studies of docs/gallery, write their pictures and what they print"
	@echo "make bench        compare with other libraries: six problems in under ten minutes, write docs/peers.md"
	@echo "make bench-full   the same on all problems; takes hours"
	@echo "make bench-paper  run benchmarks/paper.py"
	@echo "make bench-posteriors  compare answers and costs with NUTS and others, write docs/posteriors.md; takes hours"
	@echo "make bench-hierarchical  fit hierarchical models of real data, write the tables of docs/families.md"
	@echo "make lock         write constraints.txt anew from pyproject.toml (LOCK_ARGS=--upgrade: newest versions)"
	@echo "make clean        remove .venv, caches and build outputs"

venv: $(STAMP)

# The build backend goes in first, so that it is the pinned one that builds the package.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "curvi needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try make PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt hatchling editables
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable ".[dev]"
	@touch $@

demo: $(STAMP)
	$(BIN)/curvi demo

test: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) $(PYTEST_ARGS)

# PyStan is large, and only slow tests need it.
test-slow: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pystan setuptools
	$(BIN)/python -m pytest -n $(JOBS) -m slow $(PYTEST_ARGS)

# The wheel in fresh environments; takes half an hour. MATRIX_ARGS="--python 3.12 --jax oldest" runs one of the six.
test-matrix:
	$(PYTHON) tests/matrix/run.py $(MATRIX_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

gallery: $(STAMP)
	cd docs/gallery && set -e && for study in ../../examples/gallery/*.py; do echo $$study; \
	  MPLBACKEND=Agg ../../$(BIN)/python $$study > $$(basename $$study .py).txt; done

# The peers live in a virtual environment of their own: they are no dependencies of the package.
BENCH_VENV := .venv-bench
BENCH_STAMP := $(BENCH_VENV)/.installed

$(BENCH_STAMP): pyproject.toml constraints.txt benchmarks/requirements.txt
	test -x $(BENCH_VENV)/bin/python || $(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --constraint constraints.txt hatchling editables
	$(BENCH_VENV)/bin/python -m pip install --quiet --constraint constraints.txt --no-build-isolation \
	  --editable . --requirement benchmarks/requirements.txt
	@touch $@

bench: $(BENCH_STAMP)
	$(BENCH_VENV)/bin/python benchmarks/peers.py --short

bench-full: $(BENCH_STAMP)
	$(BENCH_VENV)/bin/python benchmarks/peers.py --full

# Runs that have a line already are left out.
bench-posteriors: $(BENCH_STAMP)
	$(BENCH_VENV)/bin/python benchmarks/posterior_references.py
	$(BENCH_VENV)/bin/python benchmarks/posteriors.py

bench-hierarchical: $(BENCH_STAMP)
	$(BENCH_VENV)/bin/python benchmarks/hierarchical_references.py
	$(BENCH_VENV)/bin/python benchmarks/hierarchical.py

bench-paper: $(STAMP)
	$(BIN)/python benchmarks/paper.py

# One file for every Python from 3.11 on: a version that all of them can install wins over a newer one.
lock: $(STAMP)
	$(BIN)/python -m pip install --quiet uv
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	  --fork-strategy fewest --all-extras --no-emit-index-url --no-emit-find-links $(LOCK_ARGS) \
	  --no-emit-package curvi --output-file constraints.txt pyproject.toml

clean:
	rm -rf $(VENV) $(BENCH_VENV) build dist site curvi-demo .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
