# make run    install, then a search of four device-minutes
# make test   install, then all tests
# make check  install, then ruff, mypy and the arrows between folders
# make bench  install, then the figures of the models and of the kernels; DATA=FOLDER with tatoeba/spa.txt and shakespeare/input.txt
# make soak   install, then an hour of searches that are killed, resumed and held against the operating system's account
# make results  RESULTS.md, from results/*.json; installs nothing
# PYTHON=python3.12 takes another interpreter; TORCH_INDEX=URL takes torch, and torch alone, from another package index.

PYTHON ?= python3
TORCH_INDEX ?=
VENV := .venv
IN := $(VENV)/bin

.PHONY: run test check soak bench results
.DELETE_ON_ERROR:

run: $(VENV)/installed
	$(IN)/python tune/run.py --budget 4m

test: $(VENV)/installed-dev
	$(IN)/python -m pytest -n 2 --no-loadscope-reorder

check: $(VENV)/installed-dev
	$(IN)/ruff check .
	$(IN)/mypy
	$(IN)/lint-imports

soak: $(VENV)/installed-dev
	$(IN)/python tests/soak/run.py

bench: $(VENV)/installed-dev
	$(IN)/python tests/bench/run.py --data $(DATA)
	$(IN)/python tests/bench/kernels.py

results:
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
