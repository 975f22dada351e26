# PYTHON=python3.12 takes another interpreter; TORCH_INDEX=URL takes torch, and torch alone, from another package index.

PYTHON ?= python3
TORCH_INDEX ?=
PART ?= 1 2 3 4
VENV := .venv
IN := $(VENV)/bin
# Once, so that none of the processes which tests begin compiles it again
COMPILED = $(IN)/python -m compileall -q -j 2 tune model kernels analysis

.PHONY: help run test test-fast check format bench soak gpu results
.DELETE_ON_ERROR:

help: ## this list; all but help and results install into .venv first
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/installed ## a search of four device-minutes
	$(IN)/python tune/run.py --budget 4m

test: $(VENV)/installed-dev ## all tests
	$(COMPILED)
	$(IN)/python -m pytest -n 3 --no-loadscope-reorder

test-fast: $(VENV)/installed-dev ## the quick ones, without Ray
	$(COMPILED)
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
	$(IN)/python tests/bench/run.py --only kernels,ray

soak: $(VENV)/installed-dev ## an hour of searches, killed, resumed and held against the operating system's account
	$(IN)/python tests/soak/run.py

gpu: $(VENV)/installed-dev ## on a machine with a GPU, eight minutes each: PART=1 what runs, 2 how fast, 3 memory and neighbours, 4 kernels and a search
	$(IN)/pip install -e '.[dev,cuda]'
	for part in $(PART); do $(IN)/python tests/cuda/run.py $$part $(if $(DATA),--data $(DATA)) || exit; done

results: ## RESULTS.md and results/README.md, from results/*.json
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
