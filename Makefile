.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
VENV := .venv
UV_VERSION := 0.13.9

# The environment's own Node comes first, so that no Node on the machine is needed or used.
export PATH := $(CURDIR)/$(VENV)/bin:$(CURDIR)/node_modules/.bin:$(PATH)

$(VENV)/bin/uv:
	@echo "set-up: creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) --version); name another with PYTHON=…"; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet uv==$(UV_VERSION)

# Byte-compiled, or synth takes three times as long and every worker starts six seconds later.
$(VENV)/.synced: requirements-dev.txt $(VENV)/bin/uv
	@echo "set-up: installing the pinned Python packages"
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) uv pip sync --quiet --require-hashes --compile-bytecode requirements-dev.txt
	@touch $@
