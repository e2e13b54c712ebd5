# gemma-serving; `make` lists the targets.
SHELL := /bin/sh
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1 && { echo $$p; break; }; done)
STAMP := .venv/.requirements-dev.txt
# Each command here starts many interpreters: they keep what they compile, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-packages long nightly kills oracle audit check docs pictures format lock clean

# A target with words after ## is listed.
help:
	@echo 'usage: make TARGET'
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-16s%s\n", $$1, $$2 }'

setup: $(STAMP)  ## Install the environment and the Pulumi engine.
	@.venv/bin/python -m tools.link
	@.venv/bin/python -m tools.engine

# uv installs the packages of the lock in a seventh of pip's time. It does not read pip's settings, so that pip is tried where it fails.
$(STAMP): requirements.txt requirements-dev.txt tools/installer.txt
	@test -n "$(PYTHON)" || { echo "setup: no Python 3.11, 3.12 or 3.13 with venv was found; install one, or name it: make setup PYTHON=/path/to/python3"; exit 1; }
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@echo "setup: fetching the installer of the packages (uv) into .venv"
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r tools/installer.txt || true
	@echo "setup: installing $$(grep -c '==' requirements-dev.txt) pinned packages into .venv (about 20 seconds the first time)"
	@.venv/bin/uv pip install --quiet --python .venv/bin/python --require-hashes --compile-bytecode -r requirements-dev.txt || { \
		echo "setup: uv did not install them; trying pip, which reads its own settings of index and proxy (about two minutes)"; \
		.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt; }
	@cp requirements-dev.txt $@

demo: setup  ## Run two stacks through their lifecycle on the local cloud.
	@.venv/bin/python -m authors.demo

# Tests of the engine wait two thirds of their time, so that few cores take three times as many processes.
WORKERS = $$(.venv/bin/python -c 'import os; n = os.cpu_count() or 2; print(max(n, min(3 * n, 8)))')
PYTEST = .venv/bin/python -m pytest -c pyproject.toml -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# The product's suite, with one whole life of each target, and the suites of the packages that differ from the main branch (tools/suites.py).
# TESTS=tests/planning runs less, PACKAGES=all or PACKAGES=localcloud chooses the packages.
TESTS ?=
PACKAGES ?=
test: setup  ## Run the tests of the product and of changed packages.
	@paths="$(TESTS)"; test -n "$$paths" || paths=$$(.venv/bin/python -m tools.suites here --packages "$(PACKAGES)") || exit 2; \
		$(PYTEST) $$paths

# The packages' own suites, which import nothing of the product: all, or PACKAGES=localcloud.
test-packages: setup  ## Run the tests of the packages.
	@paths=$$(.venv/bin/python -m tools.suites here --no-product --packages "$(or $(PACKAGES),all)") || exit 2; $(PYTEST) $$paths

# Kills, all stacks, the longest waits that Google documents, thousands of examples of each law. Hours with PROFILE=long.
# `make long PART=2/4 PROFILE=part` is what continuous integration runs: one part, hundreds of examples.
PROFILE ?= long
long: setup  ## Run the long tests (hours).
	@$(PYTEST) --long --timeout 14400 --hypothesis-profile $(PROFILE) $(if $(PART),--part $(PART))

# Every stack with the stand-in of the gcp plugin and with the real one, which the engine downloads: both have to send the same.
nightly: setup  ## Compare with the real provider plugin.
	@.venv/bin/python -m authors.nightly

# Kills at random moments, each of whose losses would be a leak: `make kills SEED=2 COUNT=1000 HISTORY=kills.jsonl`. About a minute for three kills.
SEED ?= 1
COUNT ?= 100
kills: setup  ## Kill the engine at random moments and look for leaks.
	@.venv/bin/python -m tests.kills --seed $(SEED) --count $(COUNT) $(if $(HISTORY),--history $(HISTORY))

# Our benchmark and smoke checks against a real vLLM and its own benchmark on this processor. Installs 6 GB into .oracle the first time.
# `make oracle POINT=c4` measures one point only, `make oracle PART=exposure` asks only what the server gives a caller without the key.
ROUNDS ?= 6
oracle: setup  ## Compare the load tester with a real vLLM.
	@.venv/bin/python -m authors.oracle --rounds $(ROUNDS) $(if $(POINT),--point $(POINT)) $(if $(PART),--part $(PART))

# Published vulnerabilities of the locked packages. A package that the index does not answer for fails too. The oracle's are left out: its
# vLLM is of the releases that it measures, and listens on 127.0.0.1 (planning/rules/security/advisories.py has those of the images).
AUDITED = requirements.txt requirements-agent.txt requirements-dev.txt packages/localcloud/requirements.txt packages/gcp-tpu/requirements.txt packages/loadtest/requirements.txt tools/installer.txt tools/audit.txt
audit: setup  ## Check the locked packages for vulnerabilities.
	@test -x .audit/bin/python || .venv/bin/python -m venv --without-pip .audit
	@.venv/bin/uv pip install --quiet --python .audit/bin/python --require-hashes -r tools/audit.txt
	@failed=0; for file in $(AUDITED); do \
		echo "audit: $$file"; .audit/bin/pip-audit --strict --progress-spinner off --disable-pip --require-hashes -r $$file || failed=1; done; exit $$failed

check: setup  ## Check format, types and imports.
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/pyright
	@PYTHONPATH=packages:packages/gcp-tpu .venv/bin/lint-imports --no-cache

docs: setup  ## Generate the reference pages.
	@.venv/bin/python -m authors.docs

# The pictures of terminals in docs/images, from a wait for capacity on the local cloud. About a minute.
pictures: setup  ## Generate the pictures of terminals.
	@.venv/bin/python -m tests.pictures

format: setup  ## Format the code.
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

# Resolve requirements*.in anew, with the hashes of all files of each package. uv is needed here only.
lock:  ## Lock the requirements.
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes requirements.in -o requirements.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes --constraints requirements.txt packages/localcloud/requirements.in -o packages/localcloud/requirements.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes --constraints requirements.txt packages/loadtest/requirements.in -o packages/loadtest/requirements.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes --constraints requirements.txt requirements-agent.in -o requirements-agent.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes requirements-dev.in -o requirements-dev.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes -c requirements.txt packages/gcp-tpu/pyproject.toml -o packages/gcp-tpu/requirements.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes --override authors/oracle/overrides.txt authors/oracle/requirements.in -o authors/oracle/requirements.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes tools/installer.in -o tools/installer.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes tools/audit.in -o tools/audit.txt

clean:  ## Remove everything that the other targets made.
	rm -rf .venv .localcloud .work .oracle .pytest_cache .ruff_cache .hypothesis build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
