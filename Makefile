# bmqtwist: everything goes through a virtual environment in .venv; nothing is installed outside of it.

PYTHON ?= python3
VENV ?= .venv
FAST ?= .venv-fast
BIN := $(VENV)/bin
CONFIG ?= etc
CONSOLE_PORT ?= 30115
PYTEST := BMQ_BROWSER=$(abspath $(VENV))/browser $(BIN)/python -m pytest
WORKERS ?= 4
SEEDS ?= 20
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
# yes: brokers are compiled, if there is a C compiler with the headers of this Python. COMPILED=no switches it off.
COMPILED ?= $(shell command -v $(CC) >/dev/null && $(PYTHON) -c 'import os, sysconfig; \
    os.stat(sysconfig.get_paths()["include"] + "/Python.h")' 2>/dev/null && echo yes)
IF_COMPILED = $(if $(filter yes,$(COMPILED)),$(1),$(2))
MINUTES ?= 10
# The release from which make test-upgrade upgrades: the last tag, or a commit.
FROM ?= $(shell git describe --tags --abbrev=0 --match "v*" 2>/dev/null)
HOURS ?= 24

# Tests of broker processes on the hot path.
PROCESSES := $(sort $(wildcard tests/integration/test_cluster_*.py tests/integration/test_*_processes.py) \
    tests/integration/test_sdk.py tests/integration/test_sdk_restarts.py)

.PHONY: help run cluster demo browser test suite test-fast test-upgrade conformance soak soak-spark spark-cluster sim fast wheels bench bench-console lint docs clean

help:
	@echo "make run          starts a one-node broker from $(CONFIG)/ (Ctrl-C stops it)"
	@echo "make cluster      starts three nodes and a proxy as processes, in data/cluster (bmq cluster --help)"
	@echo "make demo         posts and consumes through the official SDK against a running broker"
	@echo "make test         runs the test suite (WORKERS=n; TEST=options of pytest; --note-durations measures the distribution again)"
	@echo "make browser      installs what the tests of the console's pages need: a driver from npm, and Chromium if there is none"
	@echo "make conformance  runs the suite, then lists the items of the specifications that it proved"
	@echo "make test-upgrade  upgrades three nodes of the last tag under load and rolls them back (FROM=commit)"
	@echo "make sim          runs simulations with fresh seeds (SEEDS=n), then a campaign over clusters (SIM=options, see its --help)"
	@echo "make soak         sends mutated input, kills brokers under load, then loads a broker process for MINUTES=n"
	@echo "make soak-spark   sends 100,000 messages through a Spark query while query, executor, broker and connections fail"
	@echo "make spark-cluster  runs the jobs on a standalone Spark cluster of a master and two workers on this machine"
	@echo "make fast         makes a second environment, $(FAST)/, with compiled hot modules (needs a C compiler)"
	@echo "make wheels       builds wheels in dist/: a compiled one for each installed interpreter of PYTHONS, a plain one for all others"
	@echo "make bench        measures throughput and latency of the compiled broker (BENCH=options, see bench/run.py)"
	@echo "make bench-console  measures the CPU time and the delay of the web console (CONSOLE=options, see bench/console.py)"
	@echo "make lint         runs ruff, mypy and pyright (which downloads its program from npm)"
	@echo "make docs         writes the API reference to docs/api/, and draws the pictures of docs/*.md from the code"

$(VENV)/.installed: setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -e .
	touch $@

$(VENV)/.installed-test: setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -e '.[test,spark]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-lint: $(VENV)/.installed-test
	$(BIN)/python -m pip install -q -e '.[test,lint]'
	touch $@

run: $(VENV)/.installed
	@$(call IF_COMPILED,$(MAKE) --no-print-directory $(FAST)/.installed-1 || echo "The compilation failed: the broker runs as plain Python.")
	@echo "The broker listens on tcp://localhost:30114 when it says 'BMQbrkr started successfully'."
	@echo "Its console is http://127.0.0.1:$(CONSOLE_PORT)/; its overview can start demonstration traffic."
	@echo "Try it: make demo (in another terminal). Stop it: Ctrl-C."
	@test -e "$(call IF_COMPILED,$(FAST)/.installed-1)" && bin=$(FAST)/bin || bin=$(BIN); \
	BMQ_HTTP_PORT=$(CONSOLE_PORT) exec $$bin/bmqbrkr $(CONFIG)

cluster: $(VENV)/.installed
	$(BIN)/bmq cluster up --dir data/cluster --proxies 1

demo: $(VENV)/.installed-test
	$(BIN)/python examples/demo.py

# The browser for the tests of the console's pages: Node's driver in $(VENV)/browser, Chromium of the system.
browser: $(VENV)/.installed-browser

$(VENV)/.installed-browser: tests/browser/package.json $(VENV)/.installed-test
	@missing=""; command -v node >/dev/null && command -v npm >/dev/null || missing="nodejs npm"; \
	command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing="$$missing chromium"; \
	if test -n "$$missing"; then \
	    if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
	        apt-get update -q && apt-get install -q -y --no-install-recommends $$missing; \
	    else echo "The tests in tests/browser need: $$missing. Install these with the package manager of this system."; fi; fi
	mkdir -p $(VENV)/browser
	cp tests/browser/package.json $(VENV)/browser/
	if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --prefix $(VENV)/browser; fi
	if command -v npm >/dev/null && command -v chromium >/dev/null || command -v google-chrome >/dev/null; then touch $@; fi

# The hot modules are compiled while the suite runs. Tests of broker processes on the hot path run once: against compiled
# brokers, if brokers are compiled.
test: $(VENV)/.installed-test $(VENV)/.installed-browser
	$(MAKE) -j2 suite $(call IF_COMPILED,$(FAST)/.installed-1)
	$(call IF_COMPILED,$(MAKE) test-fast)

suite:
	$(PYTEST) -n $(WORKERS) --durations=20 $(call IF_COMPILED,--memory-only $(addprefix --ignore=,$(PROCESSES))) $(TEST)

conformance: $(VENV)/.installed-test $(VENV)/.installed-browser
	$(PYTEST) -q -n $(WORKERS) --conformance --tb=line

sim: $(VENV)/.installed-test
	$(PYTEST) tests/sim -n $(WORKERS) --seeds $(SEEDS)
	PYTHONPATH=tests $(BIN)/python -m sim.campaign --seeds $(SEEDS) $(SIM)
	PYTHONPATH=tests $(BIN)/python -m sim.campaign.endurance --hours $(HOURS)

test-upgrade: $(VENV)/.installed-test
	@test -n "$(FROM)" || { echo "There is no tag v* to upgrade from: name a commit, make test-upgrade FROM=<commit>."; exit 1; }
	$(BIN)/python -m tests.soak upgrade --from $(FROM) $(UPGRADE)

soak: $(VENV)/.installed-test
	$(BIN)/python -m pip install -q -e '.[fuzz]' || echo "atheris cannot be installed: the coverage-guided fuzzer is skipped"
	$(BIN)/python -m tests.soak $(SOAK)
	PYTHONPATH=tests $(BIN)/python -m kit.soak --minutes $(MINUTES)
	$(BIN)/python -m tests.soak

soak-spark: $(VENV)/.installed-test
	$(BIN)/python -m tests.soak spark $(SOAK)

spark-cluster: $(VENV)/.installed-test
	$(BIN)/python -m bench.spark_cluster

bench: $(VENV)/.installed-test fast
	BMQBRKR=$(FAST)/bin/bmqbrkr $(BIN)/python -m bench.run $(BENCH)

bench-console: $(VENV)/.installed-test $(VENV)/.installed-browser
	PYTHONPATH=tests BMQ_BROWSER=$(abspath $(VENV))/browser $(BIN)/python -m bench.console $(CONSOLE)

fast: $(FAST)/.installed-3

# The broker with compiled hot modules: level 1 compiles fast, level 3 with a profile of a load; rebuilt when a source changes.
define FAST_ENVIRONMENT
	test -x $(FAST)/bin/python || $(PYTHON) -m venv $(FAST)
	$(FAST)/bin/python -m pip install -q setuptools wheel mypy
	rm -rf build $(FAST)/wheel $(FAST)/.installed-*
	$(FAST)/bin/python -m pip uninstall -q -y bmqtwist 2>/dev/null
endef
COMPILED_FROM := setup.cfg setup.py $(wildcard bmqtwist/*.py bmqtwist/*/*.py)

$(FAST)/.installed-1: $(COMPILED_FROM)
	@echo "Compiling the hot modules, once: this takes some minutes. COMPILED=no skips it."
	$(FAST_ENVIRONMENT)
	BMQTWIST_COMPILE=1 $(FAST)/bin/python -m pip install -q --no-build-isolation '.[test]'
	touch $@

$(FAST)/.installed-3: $(COMPILED_FROM) .ci/compile bench/train.py
	@echo "Compiling the hot modules twice, with a load in between: this takes 10 minutes and more."
	$(FAST_ENVIRONMENT)
	.ci/compile $(FAST)/bin/python $(FAST)/wheel
	$(FAST)/bin/python -m pip install -q "$$(echo $(FAST)/wheel/*.whl)[test]"
	touch $(FAST)/.installed-1 $@

wheels:
	.ci/wheels $(PYTHONS)

# The scenarios against the compiled broker, except those of the start and of client libraries, which are not compiled. Other
# tests use stand-ins that compiled code does not accept.
SCENARIOS := $(patsubst tests/%,%,$(filter-out %_startup.py,$(wildcard tests/integration/test_checklist_*.py)) $(PROCESSES) \
    tests/integration/test_session_order.py tests/property/test_storage.py tests/property/test_wire.py)

test-fast: $(FAST)/.installed-1
	cd tests && ../$(FAST)/bin/python -m pytest -n $(WORKERS) --durations=20 $(SCENARIOS)

lint: $(VENV)/.installed-lint
	$(BIN)/python -m ruff check --line-length 125 --select E,F,W,I,UP,B bmqtwist tests bench examples docs
	$(BIN)/python -m mypy --strict -p bmqtwist
	$(BIN)/python -m mypy --strict tests/typing
	MYPYPATH=tests $(BIN)/python -m mypy -p kit
	$(BIN)/python -m pip_audit --skip-editable --progress-spinner off  # needs an index with advisories
	PATH="$(CURDIR)/$(BIN):$$PATH" pyright
	PATH="$(CURDIR)/$(BIN):$$PATH" pyright --ignoreexternal --verifytypes bmqtwist.sdk

docs: $(VENV)/.installed
	$(BIN)/python docs/make_api.py
	$(BIN)/python docs/make_pictures.py
	$(BIN)/python docs/make_configuration.py
	$(BIN)/python docs/make_performance.py
	$(BIN)/python docs/make_alarms.py

clean:
	rm -rf build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache
