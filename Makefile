# Everything runs in .venv, which `make setup` builds; PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: help setup run serve test test-quick test-slow lint fmt bench gpu gpu-service

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(INSTALLED)  ## make the environment in .venv

# A service, its parts and its trials are many processes. Where Python may not keep what it compiled,
# each of them compiles all of Eigensweep again, and that takes it seconds.
unexport PYTHONDONTWRITEBYTECODE

# Folders of packages of which no program here imports much: they are not compiled ahead.
RARE := tests? _tests testing moto rllib serve databricks _inductor ao onnx devtools mypyc? networkx \
  schemathesis hypothesis lexers physics combinatorics table_grapheme_overrides _vendor gunicorn git \
  pyasn1_modules distutils docker virtualenv distlib identify elastic pipelining llm _bidi \
  sympy mpmath _dynamo _functorch distributed torchgen ttLib varLib signal semconv linear_model \
  ensemble setuptools pip

$(INSTALLED): pyproject.toml constraints.txt
	@test -d eigensweep/models/ || { echo "eigensweep/models is not a link to the folder models/: this copy was made without symbolic links. Use 'git clone' (on Windows: in WSL) in place of a zip file."; exit 1; }
	@command -v $(PYTHON) >/dev/null || { echo "Eigensweep needs Python 3.11 or newer; there is no '$(PYTHON)'. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Eigensweep needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv .venv || { echo "The environment .venv could not be made. On Debian and Ubuntu, 'apt-get install python3-venv' installs what is missing."; exit 1; }
	@echo 'Installing into .venv: this takes one to four minutes'
	@$(BIN)/python .ci/install.py
	@$(BIN)/python -m compileall -qq --workers 0 -x '/($(subst $() ,|,$(RARE)))/' .venv/lib || true  # some files are of an older Python
	@touch $@
	@echo "Installed. To call eigensweep in a shell: source $(BIN)/activate"

run: setup  ## run a small experiment, from POST to ranked trials
	@$(BIN)/python -m eigensweep.command.quickstart

serve: setup  ## run the service until Ctrl-C
	@$(BIN)/eigensweep serve

# Many tests wait: for servers, browsers and other processes. So two more processes than processors.
# One of them begins with the tests that start Ray; tests/helpers/handing_out.py says what comes next.
AT_ONCE := $(shell echo $$(($$(nproc 2>/dev/null || echo 2) + 2)))
QUICK := not slow and not gpu
TIDY := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

test: setup  ## lint, and run the tests that need no GPU and are not slow
	@echo 'Two things run side by side; what each of them says comes at its end, after some minutes'
	@$(MAKE) --no-print-directory --jobs 2 $(TIDY) test-quick lint

test-quick: setup
	OMP_NUM_THREADS=1 RAY_worker_niceness=0 $(BIN)/pytest -m "$(QUICK)" \
	  -n $(AT_ONCE) --maxprocesses 5 --dist loadfile --no-loadscope-reorder

test-slow: setup  ## run the other tests: whole systems, kills, learning
	$(BIN)/pytest -m "slow or gpu"

lint: setup  ## check with ruff, mypy and import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: setup  ## format the code, and fix what ruff can fix
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: setup  ## measure the overhead, training steps and the drawing of batches
	$(BIN)/python -m bench.overhead
	$(BIN)/python -m bench.models --models exprnn scornn enrnn asrnn --plot .bench/cost
	$(BIN)/python -m bench.drawing

# Without `setup`: a machine with a GPU has its own torch, and needs neither Ray nor a network.
# OPTIONS='--quick --device cpu' tries it out where there is no GPU.
gpu:  ## run the GPU tests and measurements, with the PyTorch of PYTHON
	$(PYTHON) -m bench.carry run bench.gpu $(OPTIONS)

# With what `python -m bench.carry pack --service` packed, it needs no `setup` either.
CARRIED := .bench/carried/site.tar.xz.*
gpu-service: $(if $(wildcard $(CARRIED)),,setup)  ## run a sweep of 32 trials through the service on one GPU
	$(if $(wildcard $(CARRIED)),$(PYTHON) -m bench.carry run,$(BIN)/python -m) bench.gpu_service $(OPTIONS)
