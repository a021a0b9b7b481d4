# Two commands: `make demo` and `make test`. Both make .venv and install into it once; a second call installs nothing.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

# Two processes, each with whole files: see tests/conftest.py.
PYTEST := $(BIN)/python -m pytest --numprocesses=2 --durations=15

# The browser is fetched while Python packages are.
MAKEFLAGS += --jobs=2

.PHONY: demo quick test test-all lint browser docs bench constraints clean help

help:
	@echo "make demo      compare fair algorithms on real data, with a table, a picture and a report"
	@echo "make quick     tests of the parts alone: under a minute"
	@echo "make test      linter, type checker and tests"
	@echo "make test-all  the same with the tests that take minutes"
	@echo "make bench     speed and memory against a bare training loop"
	@echo "make docs      the documentation site, into site/"

# Torch comes first and alone: a CPU build that is already on the machine satisfies the pin, and nothing else asks again.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(INSTALLED)
	$(BIN)/propfair sweep examples/demo.toml --workers 2 --out runs/demo

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

quick: $(INSTALLED)
	$(PYTEST) -m 'not slow' tests/unit tests/contract tests/golden

test: lint browser
	$(PYTEST) -m 'not slow'

test-all: lint browser
	$(PYTEST)

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

browser:
	@scripts/install-browser

docs: $(INSTALLED)
	$(BIN)/mkdocs build --strict

# After a change of dependencies: write down what is installed now, without build tags such as +cpu.
constraints: $(INSTALLED)
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > constraints.txt
	@touch $(INSTALLED)

clean:
	rm -rf .venv site artifacts build dist
