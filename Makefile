.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= python3
VENV := .venv
UV_VERSION := 0.13.9
READY := $(VENV)/.synced node_modules/.synced

# The environment brings its own Node; what is on the machine is neither needed nor used.
export PATH := $(CURDIR)/$(VENV)/bin:$(CURDIR)/node_modules/.bin:$(PATH)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)

.PHONY: help
help:  ## Print every target
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(READY)  ## Make .venv and node_modules; every other target does it by itself

.PHONY: demo
demo: $(READY)  ## Synthesize everything, then train on this machine, lose a worker, resume
	@python -m operations.demo

.PHONY: synth
synth: $(READY)  ## Write cdk.out/ and dist/ for CONFIG=config/platforms/NAME.yaml
	@python -m operations.synth --config "$(CONFIG)"

.PHONY: preflight
preflight: $(READY)  ## Ask the account of CONFIG what would fail a deployment, and say what it costs an hour
	@python -m operations.preflight --config "$(CONFIG)"

.PHONY: outputs
outputs: $(READY)  ## Write outputs.json from the deployed stacks of CONFIG
	@python -m operations.outputs --config "$(CONFIG)"

.PHONY: upload
upload: $(READY)  ## Put folder FROM into the bucket of CONFIG as TO=data/NAME or models/NAME, where FSx shows it
	@python -m operations.upload --config "$(CONFIG)" --from "$(FROM)" --to "$(TO)"

.PHONY: image
image: $(READY)  ## Build the trainer's image of CONFIG in CodeBuild
	@python -m operations.image --config "$(CONFIG)"

.PHONY: apply
apply: $(READY)  ## Put the manifests of CONFIG onto its cluster, jobs left out
	@python -m operations.apply --config "$(CONFIG)"

.PHONY: submit
submit: $(READY)  ## Start job JOB of CONFIG
	@python -m operations.submit --config "$(CONFIG)" --job "$(JOB)"

.PHONY: fabric-check
fabric-check: $(READY)  ## All-reduce over the nodes of CONFIG's GROUP, which must go by EFA (NODES=n takes fewer)
	@python -m operations.fabric_check --config "$(CONFIG)" --group "$(GROUP)" --nodes "$(NODES)"

.PHONY: destroy
destroy: $(READY)  ## Stop the jobs of CONFIG, wait for the export, destroy and sweep (YES=1 does not ask)
	@python -m operations.destroy --config "$(CONFIG)" $(if $(YES),--yes) $(if $(EXPORTED),--exported)

.PHONY: sweep
sweep: $(READY)  ## List what AWS services left behind of CONFIG; DELETE=1 removes it
	@python -m operations.sweep --config "$(CONFIG)" $(if $(DELETE),--delete)

.PHONY: drill-deploy
drill-deploy: $(READY)  ## Deploy, change and destroy a platform with the real CLI on an AWS emulator
	@python -m operations.drill

.PHONY: test
test: $(READY)  ## Run every test
	@python -m pytest -q $(PYTEST_FLAGS)

.PHONY: check
check: $(READY)  ## Check format, lint and types
	@ruff format --check .
	@ruff check .
	@mypy

.PHONY: format
format: $(READY)  ## Format the code and mend what the linter can
	@ruff check --fix-only --quiet .
	@ruff format --quiet .

.PHONY: snapshots
snapshots: $(READY)  ## Accept the synthesized output as it is now; read the diff before you commit it
	@python -m pytest -q --snapshot-update tests/stacks tests/charts

.PHONY: bench-synth
bench-synth: $(READY)  ## Measure synthesis beside the smallest app there is
	@python -m bench.synth

.PHONY: schemas
schemas: $(READY)  ## Write config/schemas/ for editors
	@python -m config.schemas

LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header

.PHONY: lock
lock: $(VENV)/bin/uv  ## Resolve pyproject.toml's dependency groups into the requirements files
	@$(LOCK) --group synth --output-file requirements.txt
	@$(LOCK) --group trainer --output-file trainer/requirements.txt
	@$(LOCK) --group dev --output-file requirements-dev.txt

.PHONY: clean
clean:  ## Remove what was built, and keep the environment
	@rm -rf build cdk.out dist .mypy_cache .pytest_cache .ruff_cache

$(VENV)/bin/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed and $(PYTHON) is older; name another with PYTHON=…" >&2; exit 2; }
	@echo "set-up: making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# Byte-compiled, or synth takes three times as long and every worker starts six seconds later.
$(VENV)/.synced: requirements-dev.txt $(VENV)/bin/uv
	@echo "set-up: installing the pinned Python packages, once (about a minute)"
	@uv pip install --quiet --require-hashes --compile-bytecode --requirement requirements-dev.txt
	@touch $@

node_modules/.synced: package-lock.json $(VENV)/.synced
	@echo "set-up: installing the pinned CDK and cdk8s command-line tools, once"
	@npm ci --no-audit --no-fund --silent
	@touch $@
