PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# The constraints are not optional: they pin the torch build that is tested.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
CHECKED := src tests tools benchmarks examples docs/build_api.py docs/papers/figures

.PHONY: setup demo test mutations lint bench figures docs clean distclean
.DEFAULT_GOAL := test

setup: $(VENV)/.stamp-setup

demo: $(VENV)/.stamp-demo
	$(BIN)/quietgrad train digits --baseline

# Two worker processes with one thread each: more threads than cores only slow the workers down.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

# Plants faults into copies of the library, one by one: the tests must notice each. Takes minutes.
mutations: setup
	$(BIN)/python -m tests.mutations

lint: setup
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy

bench: $(VENV)/.stamp-bench
	$(BIN)/python -m benchmarks.bench --rounds 5 --noise both --out docs/benchmarks $(BENCH)

# The papers' figures that need no training; FIGURES='--list' names them.
figures: $(VENV)/.stamp-setup
	PYTHONPATH=docs/papers $(BIN)/python -m figures $(FIGURES)

# The API reference, from docstrings: build/docs/index.html.
docs: $(VENV)/.stamp-docs
	$(BIN)/python docs/build_api.py build/docs

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The demo needs less than the tests do, so it installs less and starts sooner.
$(VENV)/.stamp-demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[recipes]'
	touch $@

$(VENV)/.stamp-setup: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev,recipes,transformers]'
	touch $@ $(VENV)/.stamp-demo

$(VENV)/.stamp-bench: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[bench]'
	touch $@

$(VENV)/.stamp-docs: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[docs]'
	touch $@
