# Safepost's chores. Bare `make` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup system demo observe dashboards test check lint types fast fidelity pressure fuzz chaos core-coverage backlog clean

help: ## list the chores
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv with everything in it, the safepost command too

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# The other programs that some tests run against, so that none is skipped: real stores, browsers, languages.
DEBIAN := redis-server nginx prometheus chromium fonts-noto-cjk faketime php-cli php-curl ruby golang-go librsvg2-bin

system: ## install those programs (Debian, as root); tests say what they miss without
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(DEBIAN) >/dev/null

demo: setup ## play scenarios S1-S13 through real sockets on the embedded store
	@$(BIN)/safepost demo

observe: setup ## a drill under load with a real Prometheus: which alerts fire, what the dashboards show
	@$(BIN)/python -m deploy.observe

dashboards: setup ## make dashboards/*.json from dashboards/source
	@$(BIN)/python -m dashboards.source

test: setup ## every test
	$(PYTEST) -n auto

check: setup lint types fast ## lint, types and the fast tests, under a minute

lint: setup ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## mypy, strict
	$(BIN)/mypy

# What a change most often breaks, in seconds: the core, the house rules, the configuration, the resolver's clock.
FAST := tests/core tests/tidy tests/config tests/resolve tests/test_owed.py tests/test_decoders.py

fast: setup ## the tests that need no server and no process
	$(PYTEST) -n auto -m 'not slow' $(FAST)

fidelity: setup ## print the fidelity matrix: what is sent and what arrives, byte for byte
	@$(BIN)/python -m tests.wire.fidelity

pressure: setup ## figures under pressure: idle connections, gigabytes, slow senders, nothing left; 90 s
	@$(BIN)/python -m tests.wire.pressure

fuzz: setup ## fuzz both parsers and what is around them, FUZZ_SECONDS=600
	@$(BIN)/python -m tests.wire.fuzzing $(or $(FUZZ_SECONDS),600)

chaos: setup ## real processes killed, frozen, cut off: CHAOS_SECONDS=300 SEED=1 STORE=redis|all ARGS=--careless
	@$(BIN)/python -m tests.chaos --seconds $(or $(CHAOS_SECONDS),300) --seed $(or $(SEED),1) \
		--store $(or $(STORE),sqlite) $(ARGS)

backlog: setup ## ten thousand unknown results, two sidecars: rate, gaps, memory; STORE=sqlite|redis
	@$(BIN)/python -m tests.resolve.backlog 10000 $(or $(STORE),sqlite)

soak: setup ## play the simulated world: SOAK_MINUTES=15, or OPERATIONS=1000000; from SEED=0; prints the replay
	@$(BIN)/python -m tests.sim --seed $(or $(SEED),0) $(if $(OPERATIONS),--operations $(OPERATIONS) \
		--seeds 100000,--minutes $(or $(SOAK_MINUTES),15))

mutants: setup ## break core and store on purpose: how many seeds each breakage takes to be caught
	@$(BIN)/python -m tests.sim --mutants

core-coverage: setup ## branch coverage of core, from core's own tests; fails under 100 %
	$(BIN)/coverage run -m pytest tests/core -p no:xdist
	$(BIN)/coverage report --fail-under=100 --show-missing --skip-covered

clean: ## remove what make made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
