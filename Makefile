# The commands of the project. `make help` lists them.
PYTHON ?= python3
# Another Python has an environment of its own: `make test PYTHON=python3.13` leaves .venv as it is.
ifeq ($(PYTHON),python3)
VENV   ?= .venv
else
VENV   ?= .venv-$(notdir $(PYTHON))
endif
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
SEEDS  ?= ../shared/seeds/runnable
# As many processes run tests as the machine has cores; one more those of `make test`, which now and then wait.
JOBS   ?= logical
MORE    = $(if $(filter logical,$(JOBS)),$(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)'),$(JOBS))

# uv where it is, else pip; both tell what they fetch, for the first time takes a while.
ifneq ($(shell command -v uv 2>/dev/null),)
CREATE  := uv venv --quiet --clear --python $(PYTHON)
INSTALL := uv pip install --compile-bytecode --python $(BIN)/python
else
# The start script that an older pip writes imports `re`, for which each hook would wait.
CREATE  := $(PYTHON) -m venv --clear --upgrade-deps
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check
endif
COMPILE := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-annotate --no-header --quiet
# Those that only other systems have are not counted.
pinned = $$(grep '==' $(1) | grep -vc "sys_platform == '[we]")

# tests/lanes.py says which cases CI and the night run.
TESTS := $(BIN)/pytest --dist loadfile --no-loadscope-reorder

# One file has most of their tests, and each test takes seconds: they are given out one by one.
DRIVE_CLIENTS := $(BIN)/pytest -n $(JOBS) --dist load --maxschedchunk 1

# Pytest compiles every test module; where that is not kept, each start of it costs half a minute.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help

# What running needs, and nothing more: most people who clone this never run its tests.
$(STAMP): pyproject.toml requirements.lock
	@echo "Making $(VENV): $(call pinned,requirements.lock) packages that the server needs (tests bring their own later)"
	@$(CREATE) $(VENV)
	@$(INSTALL) --require-hashes -r requirements.lock
	@$(INSTALL) --quiet --no-deps -e .
	@echo "Made $(VENV): $$(du -sm $(VENV) | cut -f1) MB"
	@touch $@

# Tests, lint, types and every extra, into the same environment.
$(DEV): $(STAMP) requirements-dev.lock
	@echo "Adding to $(VENV) what tests and checks need: $(call pinned,requirements-dev.lock) packages in all"
	@$(INSTALL) --require-hashes -r requirements-dev.lock
	@echo "Added: $(VENV) has $$(du -sm $(VENV) | cut -f1) MB now"
	@touch $@

.PHONY: install extra dev run test test-long test-nightly test-pauses test-properties nightly unit seeds seeds-postgres check format static lock docs bench soak soak-servers simulate simulate-planted planted paths peers clients libraries raise-clients test-clients test-clients-nightly clients-table cooperate audit sbom wheel site screenshot clean help

install: $(STAMP) ## make the environment in .venv with what the server needs; `PYTHON=python3.13` makes .venv-python3.13

extra: $(STAMP) ## add some extras, and print what was added: `make extra NAMES=openai,slack`
	@$(BIN)/python .ci/extra '$(NAMES)' $(INSTALL)

dev: $(DEV) ## add every extra, and what tests and checks need

run: $(STAMP) ## start the server on 127.0.0.1:8765; prints the page's link and the line that connects a client
	@$(BIN)/postroom up $(ARGS)

test: $(DEV) ## run the tests to run while you work, in under five minutes on two cores, and the seeds
	$(TESTS) -n $(MORE) -m "not long and not nightly" --ignore tests/real_clients tests
	@$(MAKE) --no-print-directory seeds

test-long: $(DEV) ## run the tests that take long: whole servers, browsers, kills, storms
	$(TESTS) -n $(JOBS) -m "long and not nightly" --ignore tests/real_clients tests

# Each part has a log in build/nightly; what CI runs is not repeated.
nightly: $(DEV) ## run the tests that CI leaves out: whole servers, PostgreSQL, real clients, other Pythons, soak; hours, a line a part
	@.ci/nightly $(PARTS)

test-nightly: $(DEV)
	$(TESTS) -n $(JOBS) -m nightly --ignore tests/real_clients tests

# With the seed of the output, the stores pause in the same way; what runs beside each other does not repeat itself.
PAUSE_STORES ?= $(shell date +%s)
test-pauses: $(DEV)
	PAUSE_STORES=$(PAUSE_STORES) $(TESTS) -n $(JOBS) -m "not long and not nightly" --ignore tests/real_clients tests

# The examples that CI tries are the same each time.
test-properties: $(DEV)
	$(TESTS) -n $(JOBS) -m hypothesis --hypothesis-profile night --ignore tests/e2e --ignore tests/real_clients tests

unit: $(DEV) ## run the unit tests and the seeds: what CI runs on every other Python
	$(TESTS) -n $(MORE) -m "not nightly" tests/unit
	@$(MAKE) --no-print-directory seeds

seeds: $(DEV) ## run the acceptance tests beside the project, unchanged
	@if [ -d "$(SEEDS)" ]; then \
	  data=$$(mktemp -d) && trap 'rm -rf "$$data"' EXIT && \
	  POSTROOM_DATA_DIR="$$data" PYTHONDONTWRITEBYTECODE=1 $(BIN)/pytest -q -p no:cacheprovider -c pyproject.toml --rootdir . \
	    $(SEEDS)/test_concurrency_agents.py $(SEEDS)/test_concurrent_writes.py \
	    $(SEEDS)/test_session_race_guard.py; \
	elif [ -n "$$CI" ]; then \
	  echo "the acceptance tests are not at $(SEEDS): in CI they must run" >&2; exit 1; \
	else \
	  echo "skipped: the acceptance tests are not at $(SEEDS)"; \
	fi

seeds-postgres: $(DEV) ## run them on a PostgreSQL that is started for it
	@PYTHONPATH=tests PYTHONDONTWRITEBYTECODE=1 $(BIN)/pytest -q -p no:cacheprovider -p seeds_on_postgres \
	  -c pyproject.toml --rootdir . $(SEEDS)/test_concurrency_agents.py $(SEEDS)/test_concurrent_writes.py \
	  $(SEEDS)/test_session_race_guard.py

static: $(DEV) ## formatting, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

check: static ## what CI runs: formatting, lint, types, layers, every test
	@$(MAKE) --no-print-directory test test-long

format: $(DEV) ## format the code and fix what lint can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(DEV) ## write the generated reference pages
	$(BIN)/python docs/generate.py

screenshot: $(DEV) ## write docs/images/control-room.png: a server with demo data, seen by a headless Chromium
	$(BIN)/python docs/screenshot.py

# A server is killed so often; OPTIONS are those of `python -m soak --help`.
KILLS ?= 100
soak: $(DEV) ## kill a server again and again under mail, runs, chats and programs, and compare the books; KILLS=2000
	PYTHONPATH=tests $(BIN)/python -m soak --kills $(KILLS) $(OPTIONS)

SECONDS ?= 600
soak-servers: $(DEV) ## the same with three servers on PostgreSQL behind Caddy and 100 agents, and with more faults; SECONDS=600
	PYTHONPATH=tests $(BIN)/python -m soak --servers 3 --seconds $(SECONDS) --agents 100 --sessions 20 --think 20 $(OPTIONS)

# A number of seeds, or a range (100-299); OPTIONS are those of `python -m simulation --help`.
SEEDED ?= 1000
ifeq ($(origin SEEDS),command line)
SEEDED := $(SEEDS)
endif
simulate: $(DEV) ## live seeded worlds of several servers with faults; SEEDS=1000, SEED=7 replays one, STORY=name a kept one
	@PYTHONPATH=tests:src $(BIN)/python -m simulation $(if $(STORY),--story $(STORY),$(if $(SEED),--seed $(SEED),--seeds $(SEEDED))) $(OPTIONS)

simulate-planted: $(DEV) ## plant faults of the protocol one by one; print after how many worlds each is found; OPTIONS="--worlds 2000"
	@PYTHONPATH=tests:src $(BIN)/python -m planted.measuring $(OPTIONS)

planted: $(DEV) ## plant 60 faults of one line each in a copy; print which of them the tests of "make test" find
	@PYTHONPATH=tests:src $(BIN)/python -m planted.suite $(OPTIONS)

paths: $(DEV) ## count functions, files, statements and record types on seven paths, beside their limits; OPTIONS="--show run"
	@PYTHONPATH=tests:src $(BIN)/python -m paths $(OPTIONS)

bench: $(DEV) ## run the benchmarks; prints each figure with its ratio to a limit taken in the same run
	$(BIN)/python -m benchmarks $(ARGS)

peers: ## install the queues that benchmarks run beside ours, in .venv-peers
	$(PYTHON) -m venv --clear .venv-peers
	.venv-peers/bin/python -m pip install --quiet 'dbos>=3.4,<4' 'procrastinate>=3.10,<4' 'psycopg[binary,pool]>=3.3'

# The versions stand in one file; what they bring with them is chosen by npm.
.clients/.installed: tests/real_clients/package.json
	@command -v npm >/dev/null || { echo "npm is needed for the real clients" >&2; exit 1; }
	@mkdir -p .clients
	@cp $< .clients/package.json
	npm install --prefix .clients --no-audit --no-fund --loglevel=error --fetch-retries=5
	@touch $@

.venv-clients/.installed: tests/real_clients/requirements.txt
	$(PYTHON) -m venv --clear .venv-clients
	.venv-clients/bin/python -m pip install --quiet --requirement $<
	@touch $@

libraries: .venv-clients/.installed ## install the Python libraries that speak to our API, in .venv-clients

clients: .clients/.installed libraries ## install the real clients that tests drive: from npm in .clients, from PyPI

raise-clients: ## pin the newest version of each real client; prints old and new
	@$(PYTHON) tests/real_clients/raising.py

test-clients: $(DEV) .clients/.installed libraries ## drive the real clients against a scripted model: some tests of each
	$(DRIVE_CLIENTS) -m "not nightly" tests/real_clients

test-clients-nightly: $(DEV) .clients/.installed libraries
	$(DRIVE_CLIENTS) -m nightly tests/real_clients

clients-table: $(DEV) .clients/.installed ## drive one after another and write docs/clients.md; goes on where it stopped, AGAIN=1 begins anew
	@$(if $(AGAIN),rm -rf .clients/results)
	-$(BIN)/pytest -q --only-left tests/real_clients/test_table.py
	@PYTHONPATH=tests:src $(BIN)/python -m real_clients.page

cooperate: $(DEV) .clients/.installed ## let two real clients run into the failures of teams, without and with postroom; write docs/internals/cooperation.md
	@PYTHONPATH=tests:src $(BIN)/python -m real_clients.cooperation

# Everything is resolved together, and what running needs is a part of that: a package has one version in both.
lock: ## pin every dependency anew (needs uv)
	$(COMPILE) --all-extras --group dev --output-file requirements-dev.lock $(ARGS)
	$(COMPILE) --constraint requirements-dev.lock --output-file requirements.lock

# Neither is a dependency of the project, so that the locks name only what runs and what tests it.
.venv-supply/.installed: Makefile
	$(PYTHON) -m venv --clear .venv-supply
	.venv-supply/bin/python -m pip install --quiet 'pip-audit==2.10.1' 'cyclonedx-bom==7.5.0'
	@touch $@

# The lock of development has every package of the other, and those of the extras.
# Strict: a dependency that could not be looked up fails the check, like one with a known vulnerability.
audit: .venv-supply/.installed ## compare requirements-dev.lock with the vulnerabilities that PyPI knows (asks pypi.org)
	.venv-supply/bin/pip-audit --strict --require-hashes --disable-pip --progress-spinner off \
	  -r requirements-dev.lock $(ARGS) \
	  || { echo 'audit: NOT PASSED. A vulnerability is listed above; or, where "not found" or "failed to" is said, pypi.org' \
	    'did not answer for that package: then nothing is known of it and of those behind it. Try again where it can be reached.' >&2; exit 1; }

sbom: .venv-supply/.installed ## write build/sbom.cdx.json, the software bill of materials of requirements.lock
	@mkdir -p build
	.venv-supply/bin/cyclonedx-py requirements --output-reproducible --pyproject pyproject.toml \
	  --output-file build/sbom.cdx.json requirements.lock

# Not a dependency of the project either.
.venv-build/.installed: Makefile
	$(PYTHON) -m venv --clear .venv-build
	.venv-build/bin/python -m pip install --quiet 'build==1.6.1'
	@touch $@

# The wheel is built from the sdist, so that a file missing there is missed here. It is installed as users do, without the lock.
wheel: .venv-build/.installed ## build sdist and wheel into dist/, install them beside an application, and each extra; asks the index
	rm -rf dist
	.venv-build/bin/python -m build --outdir dist
	$(PYTHON) tests/try_package.py dist

# Not a dependency of the project either. Strict: a broken link or a page without a place fails.
.venv-site/.installed: Makefile
	$(PYTHON) -m venv --clear .venv-site
	.venv-site/bin/python -m pip install --quiet 'mkdocs-material==9.8.2'
	@touch $@

site: .venv-site/.installed ## build the website of docs/ into build/site; fails on a broken link
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --strict --quiet

clean: ## remove the environment and caches
	rm -rf $(VENV) .venv-python* .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
