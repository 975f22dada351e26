# PYTHON=python3.12 takes another interpreter; TORCH_INDEX=URL takes torch, and torch alone, from another package index.

PYTHON ?= python3
TORCH_INDEX ?=
VENV := .venv
IN := $(VENV)/bin

.PHONY: help run test test-fast check format bench soak gpu results
.DELETE_ON_ERROR:

help: ## this list; all but help and results install into .venv first
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/installed ## a search of four device-minutes
	$(IN)/python tune/run.py --budget 4m

test: $(VENV)/installed-dev ## all tests
	$(IN)/python -m pytest -n 3 --no-loadscope-reorder

test-fast: $(VENV)/installed-dev ## those without Ray that take a core no seconds
	$(IN)/python -m pytest -n 2 --no-loadscope-reorder -m 'not ray and not slow'

check: $(VENV)/installed-dev ## ruff, mypy and the arrows between folders
	$(IN)/ruff check .
	$(IN)/ruff format --check .
	$(IN)/mypy
	$(IN)/lint-imports

format: $(VENV)/installed-dev ## the code as ruff writes it, and what it can mend
	$(IN)/ruff format .
	$(IN)/ruff check --fix .

bench: $(VENV)/installed-dev ## figures of models and kernels; DATA=FOLDER with tatoeba/spa.txt and shakespeare/input.txt
	$(IN)/python tests/bench/run.py --data $(DATA)
	$(IN)/python tests/bench/kernels.py

soak: $(VENV)/installed-dev ## an hour of searches, killed, resumed and held against the operating system's account
	$(IN)/python tests/soak/run.py

gpu: $(VENV)/installed-dev ## on a machine with a GPU: kernels checked and timed on it, what is special to CUDA tested, a short search
	$(IN)/pip install -e '.[dev,cuda]'
	$(IN)/python -m pytest tests/kernels $(wildcard tests/cuda)
	$(IN)/python kernels/run.py --sizes full
	$(IN)/python tune/run.py --budget 2m

results: ## RESULTS.md, from results/*.json
	$(PYTHON) results/make.py

$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' || \
		{ echo "Ration needs Python 3.11 or 3.12, and '$(PYTHON)' is neither: write make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: requirements.txt pyproject.toml | $(VENV)/bin/pip
ifneq ($(TORCH_INDEX),)
	$(IN)/pip install --no-deps --index-url $(TORCH_INDEX) $$(grep '^torch==' requirements.txt)
endif
	$(IN)/pip install -r requirements.txt
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(IN)/pip install -e '.[dev]'
	touch $@
