# Each command says what it does, installs what it needs, and may be run again at any time.
# `make test ARGS="-k tree"` and `make serve ARGS="--port 9000"` pass arguments on.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# Named by what was installed, and where, since a virtual environment cannot be moved.
STAMP := $(VENV)/installed-$(shell { echo "$(CURDIR)"; cat pyproject.toml constraints.txt; } | cksum | cut -d' ' -f1)
# Progress for a person who waits, silence in a log.
QUIET := $(shell test -t 2 || echo --quiet)
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input $(QUIET)

.DEFAULT_GOAL := help
.PHONY: help install serve test lint bench build clean

help: ## Show these targets.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

install: $(STAMP) ## Make .venv with all that serving and testing need.
	@echo "$(VENV) holds what constraints.txt names."

$(STAMP):
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "radixd needs Python 3.11 or later; '$(PYTHON)' is older or does not run."; \
	  echo "Install one, or name it: make install PYTHON=/path/to/python3.11"; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments: install its venv package"; \
	  echo "(python3-venv or python3.11-venv on Debian and Ubuntu)."; exit 1; }
	@echo "Installing radixd into $(VENV) with $$("$(PYTHON)" --version), PyTorch and the test tools."
	@echo "This downloads about 400 MB and takes 1.3 GB on disk with a PyTorch for CPUs; the one with"
	@echo "CUDA is several times as large. Which one comes is for pip's own settings to say: README.md."
	@# The scripts of an environment that was moved start a Python that is gone.
	@if grep -s '^command = ' $(VENV)/pyvenv.cfg | grep -qvF ' $(abspath $(VENV))'; then \
	  echo "$(VENV) was made in another folder: making it anew."; rm -rf $(VENV); fi
	@"$(PYTHON)" -m venv $(VENV)
	@$(PIP) install --upgrade --constraint constraints.txt pip setuptools
	@PYTHONWARNINGS="ignore:Editable installation" \
	  $(PIP) install --constraint constraints.txt --no-build-isolation \
	  --editable '.[torch]' --group dev
	@rm -f $(VENV)/installed-*
	@touch $@
	@echo "Installed: $$(du -sh $(VENV) | cut -f1) in $(VENV)."

serve: install ## Serve the embedded model; ARGS are flags of `radixd serve`.
	@$(BIN)/radixd serve $(ARGS)

test: install ## Run the tests; ARGS are pytest's.
	@$(BIN)/python -m pytest $(ARGS)

lint: install ## Check style, types and the import rules.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/lint-imports

bench: install ## Measure the time to first token, cold and cached.
	@$(BIN)/python bench/ttft.py $(ARGS)

build: install ## Build the wheel and the source archive into dist/.
	$(BIN)/python -m build --no-isolation

clean: ## Remove what builds and tools left; .venv stays.
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
