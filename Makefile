# memscale: every verb a person or a CI run needs. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUNS   ?= runs
WHEELHOUSE ?= wheelhouse
EXTRAS ?= all
MACHINE ?=
SEEDS  ?= 0-9
ONLY   ?=
# Of the examples that test-long draws; a red run says it, and SEED=N draws them again.
SEED   := $(or $(SEED),$(shell date +%s))
# Test processes. A file's tests run in one of them, because they share fixtures that take seconds
# to make. Unit tests are two sessions, so that each half imports its own libraries and makes its
# own fixtures only: with two processes, one each. Integration tests run beside the others, in half
# as many processes again, because they mostly wait; each has folders, ports and processes of its
# own.
WORKERS ?= 2
# One thread for each, said before any plugin imports numpy (tests/conftest.py).
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist loadfile
UNIT_WORKERS := -n $(WORKERS)
HALF := $(shell expr $(WORKERS) / 2)
HALF_WORKERS := -n $(if $(filter 0 1,$(HALF)),0,$(HALF))
INTEGRATION_WORKERS := -n $(shell expr \( 3 \* $(WORKERS) + 1 \) / 2)
# Golden and property tests run with those of workloads: then both sessions take about as long.
WITH_WORKLOADS := tests/unit/workloads tests/golden tests/property
# Only files that may hold some are read for them: reading all takes as long as a test. All tests of
# the last two of these folders bear the mark of their folder (tests/unit/test_marks.py).
ELSEWHERE := $(addprefix --ignore=,$(WITH_WORKLOADS) tests/integration tests/gpu)
OTHERS = $(if $(TEST_ARGS),$(UNIT_WORKERS),$(HALF_WORKERS) $(ELSEWHERE))
INTEGRATION = $(if $(TEST_ARGS),,$(shell grep -rl --include='test_*.py' 'mark\.integration' tests))
PROPERTIES = $(if $(TEST_ARGS),,$(shell grep -rl --include='test_*.py' '@given' tests))
QUICK := not long and not slow and not gpu
# TEST_ARGS may name tests of one kind only; then pytest finds none (exit status 5) of the other.
NONE_FITS := $(if $(TEST_ARGS),|| [ $$? -eq 5 ])
STAMP  := $(VENV)/.installed

# Without byte code every import of torch, Ray and MLflow takes twice as long.
unexport PYTHONDONTWRITEBYTECODE
export MLFLOW_DISABLE_TELEMETRY := true
export RAY_USAGE_STATS_ENABLED := 0

.PHONY: help setup quickstart check format figures notebooks docs wheel wheelhouse clean
.PHONY: test test-long test-all test-gpu test-chaos test-faults test-mutants
.PHONY: .test-unit .test-others .test-workloads .test-integration .test-properties

help:  ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' \
	    $(MAKEFILE_LIST)

setup: $(STAMP)  ## Make the virtual environment .venv and install memscale into it

$(STAMP): pyproject.toml constraints.txt .ci/setup.sh
	@PYTHON="$(PYTHON)" bash .ci/setup.sh "$(VENV)"
	@touch $(STAMP)

quickstart: $(STAMP)  ## Plan, train and report sweeps/quickstart.yaml (five minutes, two cores)
	@$(BIN)/memscale plan sweeps/quickstart.yaml --runs $(RUNS)
	@$(BIN)/memscale submit sweeps/quickstart.yaml --runs $(RUNS)
	@$(BIN)/memscale report quickstart --runs $(RUNS)
	@if nvidia-smi -L >/dev/null 2>&1; then \
	    echo "A GPU is here. The same question at 1m and 3m: memscale submit quickstart_gpu"; fi

test: $(STAMP)  ## Unit, property, golden and quicker integration tests (four minutes, two cores)
	@$(MAKE) --no-print-directory -j 3 -k .test-unit .test-integration KINDS="$(QUICK)"

# All to their end, also where one fails. What the later ones print waits for their end, so that it
# stays together.
.test-unit: .test-others .test-workloads

.test-others:
	$(PYTEST) $(OTHERS) -m "not integration and $(KINDS)" $(TEST_ARGS) $(NONE_FITS)

define PRINTED_LATER
@printed=$$(mktemp); trap "rm -f $$printed" EXIT; \
{ $(2); } > $$printed 2>&1; \
status=$$?; printf '\n$(1):\n'; cat $$printed; exit $$status
endef

.test-workloads:
	$(if $(TEST_ARGS),@:,$(call PRINTED_LATER,golden and property tests and those of workloads, \
	    $(PYTEST) $(HALF_WORKERS) -m "not integration and $(KINDS)" $(WITH_WORKLOADS)))

.test-integration:
	$(call PRINTED_LATER,integration tests,$(PYTEST) $(INTEGRATION_WORKERS) \
	    -m "integration and $(KINDS)" $(INTEGRATION) $(TEST_ARGS) $(NONE_FITS))

# All architectures by one command, kills of controllers and servers, preempted Slurm jobs, ranks
# together.
test-long: $(STAMP)  ## What takes half a minute and more, and properties with new examples
	@$(MAKE) --no-print-directory -j 3 -k .test-properties .test-integration \
	    KINDS="long and not slow and not gpu" SEED=$(SEED)

.test-properties: .test-unit
	@echo "property tests with new examples; to draw them again: make test-long SEED=$(SEED)"
	HYPOTHESIS_PROFILE=explore $(PYTEST) $(UNIT_WORKERS) --hypothesis-seed=$(SEED) \
	    -m "hypothesis and $(QUICK)" $(PROPERTIES) $(TEST_ARGS) $(NONE_FITS)

test-all: $(STAMP)  ## Everything but GPU tests
	@$(MAKE) --no-print-directory -j 3 -k .test-unit .test-integration KINDS="not gpu"

test-gpu: $(STAMP)  ## Tests that need CUDA
	$(BIN)/python -m pytest -m gpu $(TEST_ARGS)

# A sweep on four Ray nodes with ten seeds, then one on four hosts, which ends with status 2 where
# network namespaces are not allowed.
test-chaos: $(STAMP)  ## Kill everything at random times (SEEDS=0-9; half an hour and more)
	$(BIN)/python tests/chaos/chaos.py --seeds $(SEEDS)
	$(BIN)/python tests/chaos/chaos.py --seeds 0 --hosts || [ $$? -eq 2 ]

# Kills at writes, clocks that are set, full and failing disks, other users, namespaces, damaged
# databases.
test-faults: $(STAMP)  ## Faults of the system: kills at writes, clocks, disks, users (five minutes)
	$(PYTEST) $(UNIT_WORKERS) -m "faults and not gpu" $(TEST_ARGS)

test-mutants: $(STAMP)  ## Small faults in a copy: which test falls? (ONLY=train; half an hour)
	$(BIN)/python tests/mutants/mutants.py --workers $(WORKERS) --only "$(ONLY)"

check: $(STAMP)  ## Formatting, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
# These run seldom, and not here: at least they call what is there, with arguments that it takes.
	! $(BIN)/mypy --check-untyped-defs tests/gpu benchmarks | grep -E \
	    "Unexpected keyword|Missing (positional|named)|Module has no attribute|Cannot find impl"
	$(BIN)/lint-imports

format: $(STAMP)  ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

figures: $(STAMP)  ## Redraw figures of the documentation from numbers in the repository
	$(BIN)/python docs/figures.py

notebooks: $(STAMP)  ## Execute the notebooks and store what they show (a few minutes)
	$(BIN)/python docs/notebooks.py

docs: $(STAMP)  ## Build the site of docs/ with the API reference; broken links are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

wheel: $(STAMP)  ## Build the wheel into dist/
	$(BIN)/python -m build --wheel

wheelhouse:  ## Wheels for a machine without network: PYTHON=3.12 [EXTRAS=all MACHINE=x86_64]
	@bash .ci/wheelhouse.sh "$(PYTHON)" $(WHEELHOUSE) "$(EXTRAS)" "$(MACHINE)"

clean:  ## Remove the virtual environment and caches (never runs/)
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
