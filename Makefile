# `make run` and `make test` set everything up by themselves; `make help` lists the rest.
# PYTHON=... chooses the interpreter (3.11 or newer), ARGS=... is passed on to the program that a target runs.

PYTHON ?= $(shell for p in python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help run test architecture lint types bench clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22

run: $(INSTALLED) ## a demonstration of the kernel
	$(BIN)/python -m dshd.testing.demonstration

test: $(INSTALLED) ## run all tests
	$(BIN)/pytest $(ARGS)

architecture: $(INSTALLED) ## check only which layer imports what
	$(BIN)/pytest $(ARGS) tests/test_architecture.py

lint: $(INSTALLED) ## check style and formatting
	$(BIN)/ruff check $(ARGS)
	$(BIN)/ruff format --check

types: $(INSTALLED) ## check the types
	$(BIN)/mypy $(ARGS)

bench: $(INSTALLED) ## measure the kernel and the vocabulary
	$(BIN)/python benchmarks/kernel.py $(ARGS)
	$(BIN)/python benchmarks/vocabulary.py $(ARGS)

clean: ## remove the environment and everything generated
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml hatch_build.py
	@test -n "$(PYTHON)" || { echo 'dshd needs Python 3.11 or newer; say where it is with PYTHON=...' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo 'dshd needs Python 3.11 or newer; "$(PYTHON)" does not run or is older' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	mkdir -p $(VENV)/types
	ln -sfn ../../plugins $(VENV)/types/dshd_plugins
	touch $@
