# `make` alone lists the targets. demo and test set up .venv by themselves; a warm run installs nothing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Tests start thousands of processes: where compiled code may not be kept, each compiles all of runcue anew.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
PYTHON_DIRS := src tests tools $(wildcard bench examples)
# Workers that run tests. Some of them wait at any time, so that it takes four to keep two cores busy.
JOBS ?= 4
# Tests of core/ wait for nothing: more workers than cores would only have each of them read all tests.
CORES := $(shell nproc 2> /dev/null || echo 2)
ARGS ?=
FETCHED := $(foreach name,chromium postgresql pgbouncer mariadb node,.cache/$(name)/.ready)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ------------------------------------------------------------------------------------ use

.PHONY: demo
demo: .venv/.run ## Run the document pipeline on mock services
	@$(BIN)/python examples/pipeline.py $(ARGS)

.PHONY: test
test: ready ## Everything: format, lint, types, imports, tests (ARGS="-k name" goes to pytest)
	@$(MAKE) style lint
	@$(MAKE) types imports > .cache/checks.txt 2>&1 & checks=$$!; trap 'kill $$checks 2> /dev/null || true' EXIT; \
	code=0; $(MAKE) pytest || code=$$?; \
	wait $$checks || code=$$?; \
	cat .cache/checks.txt; \
	exit $$code

.PHONY: check
check: test ## The same

.PHONY: test-all
test-all: ## The same with every example of every test (tests/sample.py), and what there is for Windows, where Wine can be had
	@RUNCUE_ALL=1 $(MAKE) test
	@if command -v wine > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; }; then $(MAKE) windows; \
	else echo "test-all: tests on Windows were left out, for there is no Wine."; fi

.PHONY: bench
bench: .venv/.run ## Measure; prints ratios from one run
	@$(BIN)/python -m bench $(ARGS)

.PHONY: torture
torture: .venv/.test ## Kill processes that share one file, and check (ARGS="--kills 5000 --seed 1", or "--soak 10")
	@mkdir -p .cache
	@$(BIN)/python -m tests.torture --report .cache/torture.json $(ARGS)

.PHONY: postgres
postgres: .venv/.test ## All tests of the engine on PostgreSQL (make test takes every ninth)
	RUNCUE_ALL=1 $(BIN)/pytest $(PYTEST) tests/engine tests/pg $(ARGS)

.PHONY: windows
windows: .venv/.test ## Tests on the Windows CPython, under Wine (ARGS=smoke for a few; WINDOWS_PYTHON=3.12 for another)
	@tools/windows/run.sh $(ARGS)

.PHONY: format
format: .venv/.test ## Format, and fix what ruff can fix
	$(BIN)/ruff check --fix-only --quiet $(PYTHON_DIRS)
	$(BIN)/ruff format $(PYTHON_DIRS)

# --------------------------------------------------------------------------- parts of check

.PHONY: style
style: .venv/.test ## Is everything formatted?
	$(BIN)/ruff format --check $(PYTHON_DIRS)

.PHONY: lint
lint: .venv/.test ## Ruff's rules
	$(BIN)/ruff check $(PYTHON_DIRS)

.PHONY: types
types: .venv/.test ## mypy, strict
	$(BIN)/mypy --cache-dir .cache/mypy $(PYTHON_DIRS)
	$(BIN)/mypy --cache-dir .cache/mypy-windows --config-file tools/windows/mypy.ini src

.PHONY: imports
imports: .venv/.test ## Who may import whom
	$(BIN)/lint-imports --no-logo --cache-dir .cache/import_linter

# Recording coverage takes as long again as running, so it is done where core/ is tried; all other tests run without,
# and so do those marked no_cover, which do often what others do once.
# A test has longer here than by hand: together they keep the machine busy, and others may do so too.
PYTEST := -n $(JOBS) --timeout 300
COVERED := tests/core tests/edge tests/throttling/test_headers.py \
	tests/engine/test_forecast.py tests/engine/test_quantities.py

.PHONY: pytest
ifeq ($(ARGS),)
pytest: gate $(FETCHED) ## The tests alone, and every branch of core/ taken
	$(BIN)/pytest $(PYTEST) $(COVERED:%=--ignore=%)
else
pytest: .venv/.test $(FETCHED)
	$(BIN)/pytest $(PYTEST) $(ARGS)
endif

# pytest rewrites every test before it is run, and keeps that: one process does it for all, instead of each worker anew.
# What cannot be collected is told by the run itself.
.cache/rewritten: .venv/.test $(wildcard tests/*.py tests/*/*.py tests/*/*/*.py)
	@$(BIN)/pytest --collect-only --quiet > /dev/null || true
	@mkdir -p .cache && touch $@

.PHONY: gate
gate: .venv/.test .cache/rewritten ## The tests of core/, and every branch of it taken
	@mkdir -p .cache/coverage
	$(BIN)/pytest $(PYTEST) -n $$(( $(CORES) < $(JOBS) ? $(CORES) : $(JOBS) )) --cov --cov-report= $(COVERED)
	$(BIN)/coverage report --include='src/runcue/core/*' --fail-under=100

# ------------------------------------------------------------------------------ housekeeping

.PHONY: changelog
changelog: .venv/.test ## Show what the fragments in changelog.d will say
	@$(BIN)/towncrier build --draft

.PHONY: docs
docs: .venv/.run ## Build the documentation site into .cache/site; a warning is a failure
	@$(BIN)/python tools/docs_site.py

.PHONY: dist
dist: .venv/.run ## Build wheel and sdist into dist/
	@rm -rf dist
	@$(BIN)/python -m hatchling build -d dist

.PHONY: wheel-test
wheel-test: .venv/.test .cache/chromium/.ready ## Install the built wheel elsewhere and test it there (PYTHON=python3.12)
	@PYTHON=$(PYTHON) JOBS=$(JOBS) tools/wheel_test.sh $(ARGS)

.PHONY: typing
typing: .venv/.run ## Ask mypy, pyrefly and pyright about the public API of the built wheel
	@tools/typing.sh

.PHONY: picture
picture: .venv/.test ## Go on the tour of the README, and draw what a terminal and a browser show
	@$(BIN)/python tools/picture.py
	@tools/chromium.sh > /dev/null
	@$(BIN)/python -m tools.web_pictures
	@$(BIN)/python -m tools.sim_pictures

.PHONY: lock
lock: .venv/.run ## Pin the dependencies anew (ARGS=--upgrade for newer ones)
	tools/lock.sh $(ARGS)

.PHONY: clean
clean: ## Remove the environment, caches and build results
	rm -rf .venv .cache .hypothesis .pytest_cache .ruff_cache .mypy_cache build dist
	find src tests $(wildcard bench examples) -name __pycache__ -type d -prune -exec rm -rf {} +

# ------------------------------------------------------------------------------- environment

# What tests need is fetched side by side.
.PHONY: ready
ready:
	@mkdir -p .cache
	@$(MAKE) -s -j 2 .venv/.test $(FETCHED) .cache/windows/.made

# An environment that was moved, copied or lost its interpreter is made anew.
ifneq ($(shell test -x .venv/bin/python && cat .venv/.place 2>/dev/null),$(CURDIR))
.PHONY: .venv/.run .venv/.test
endif

.venv/.run: pyproject.toml requirements/run.txt requirements/uv.txt tools/bootstrap.sh
	@tools/bootstrap.sh $(if $(wildcard .venv/.test),test,run)

# A browser for the tests; where none can be had, they are skipped, but never where CI is set.
.cache/chromium/.ready: tools/chromium.sh tools/debian.sh
	@tools/chromium.sh > /dev/null || test -z "$${CI:-}"

# An old PostgreSQL besides the wheel's new one, fetched only where CI is set: elsewhere tests that want it are skipped.
.cache/postgresql/.ready: tools/postgres.sh tools/debian.sh
	@test -z "$${CI:-}" || tools/postgres.sh > /dev/null

# A lab for the tests on Windows, where there is Wine; where there is none, or it cannot be made, they are skipped.
.cache/windows/.made: tools/windows/setup.sh tools/windows/python requirements/test.txt
	@mkdir -p $(@D)
	@! command -v wine > /dev/null || timeout 300 tools/windows/setup.sh $(@D) > /dev/null 2> $(@D)/.said || true
	@touch $@

# What stands beside a queue in tests (a pooler, another database, a driver of another language) is fetched there, too,
# if it can be had.
.cache/pgbouncer/.ready .cache/mariadb/.ready: .cache/%/.ready: tools/server.sh tools/debian.sh
	@test -z "$${CI:-}" || tools/server.sh $* > /dev/null || true

.cache/node/.ready: tools/node.sh requirements/test-npm/package-lock.json
	@test -z "$${CI:-}" || tools/node.sh > /dev/null || true

.venv/.test: pyproject.toml requirements/test.txt requirements/uv.txt tools/bootstrap.sh
	@tools/bootstrap.sh test
