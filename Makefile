# Every target sets itself up in .venv: python3 (3.11 or newer) is all that has to be there.
PYTHON ?= python3
BIN := .venv/bin
CHIP ?= ort-cpu
EXAMPLE ?= llama

.DEFAULT_GOAL := help
.PHONY: help demo test lint lint-format lint-rules lint-types format docs bench clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: .venv/.installed  ## the decisions for a real export on a chip, values checked
	$(BIN)/fuse optimize --example $(EXAMPLE) --chip $(CHIP) --check

test: .venv/.dev  ## the whole test suite
	$(BIN)/python -m pytest -q -n 2

lint: lint-format lint-rules lint-types  ## format, lint and types

lint-format: .venv/.dev
	$(BIN)/ruff format --check .

lint-rules: .venv/.dev
	$(BIN)/ruff check .

lint-types: .venv/.dev
	$(BIN)/mypy

format: .venv/.dev  ## format every file
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/.dev  ## write the generated pages of docs/ and the output shown in README.md
	$(BIN)/python docs/generate.py

bench: .venv/.dev  ## fuse beside onnxruntime's own optimizer, as ratios
	$(BIN)/python tests/bench/side_by_side.py

clean:  ## remove the environment and all caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: set-up runs once, and again where pyproject.toml changes.
.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

.venv/.dev: .venv/.installed pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
