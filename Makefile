# Everything runs in .venv, which `make setup` builds; PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: help setup run serve test test-slow lint fmt bench

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(INSTALLED)  ## the environment, in .venv

$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "Eigensweep needs Python 3.11 or newer; '$(PYTHON)' is not there. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Eigensweep needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv .venv || { echo "No environment: on Debian and Ubuntu, 'apt-get install python3-venv' gives what is missing."; exit 1; }
	@echo 'installing into .venv: two to four minutes'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[speech]' || echo 'no C compiler: speech trials go without STOI and PESQ'
	@touch $@

run: setup  ## the main job: a small experiment, from POST to ranked trials
	@$(BIN)/python -m eigensweep.service.command.quickstart

serve: setup  ## the service, until Ctrl-C
	@$(BIN)/eigensweep serve

# Tests that start a Ray of their own are run by themselves: two at once would wait for each other.
WITH_RAY := tests/system tests/workers/test_driver.py
QUICK := -m "not slow and not gpu"

test: setup lint  ## lint and every test that takes no GPU and no patience
	OMP_NUM_THREADS=1 $(BIN)/pytest $(QUICK) -n logical --maxprocesses 4 --dist loadfile $(WITH_RAY:%=--ignore=%)
	OMP_NUM_THREADS=1 $(BIN)/pytest $(QUICK) $(WITH_RAY)

test-slow: setup  ## the rest: whole systems, kills, learning
	$(BIN)/pytest -m "slow or gpu"

lint: setup  ## ruff, mypy, import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: setup  ## format, and fix what ruff can
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: setup  ## what it costs: the machinery, training steps, drawing batches
	$(BIN)/python -m bench.overhead
	$(BIN)/python -m bench.models --models exprnn scornn enrnn asrnn --plot .bench/cost
	$(BIN)/python -m bench.drawing
