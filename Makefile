# The two commands of the README. Everything is installed into .venv, once, with the versions of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
INPUTS := pyproject.toml constraints.txt

.PHONY: demo test lint clean

demo: .venv/installed
	$(BIN)/torchspot demo

test: .venv/installed-test
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 2
	$(BIN)/lint-imports

lint: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

.venv/installed: $(INPUTS)
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "torchspot needs Python 3.11 or newer; try: make $(MAKECMDGOALS) PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

.venv/installed-dev: .venv/installed-test
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv
