# gemma-serving; `make` lists the targets.
SHELL := /bin/sh
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1 && { echo $$p; break; }; done)
STAMP := .venv/.requirements.txt
# Each command starts many interpreters. They cache compiled modules regardless of the environment.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-packages long nightly kills mutants audit check docs site pictures format lock clean

# A target with words after ## is listed, with words after #m under "for maintainers".
LISTED = awk -F ':.*$(1) ' '/^[a-z-]+:.*$(1) / { printf "  %-15s%s\n", $$1, $$2 }' Makefile
help:
	@echo 'usage: make TARGET'
	@$(call LISTED,##)
	@echo 'for maintainers:'
	@$(call LISTED,#m)

setup:  ## Install the environment and the Pulumi engine.
	@test -n "$(PYTHON)" || { echo "setup: no Python 3.11, 3.12 or 3.13 with venv found. Install one, or run: make setup PYTHON=/path/to/python3"; exit 1; }
	@PYTHONPATH=packages $(PYTHON) -m dev.tools.engine.concurrent_build $(MAKE) --silent $(STAMP)
	@.venv/bin/python -m dev.tools.link
	@.venv/bin/python -m dev.authors.stored_settings
	@.venv/bin/python -m dev.tools.engine

# uv installs the locked packages in a seventh of pip's time. It ignores pip's settings, so pip is the fallback.
$(STAMP): requirements.txt requirements/dev.txt dev/tools/installer.txt
	@echo "setup: packages (30 s) and Pulumi: on PATH, a download, or a 5-minute build"
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r dev/tools/installer.txt || true
	@echo "setup: installing $$(grep -c '==' requirements/dev.txt) pinned packages into .venv (about 20 seconds the first time)"
	@.venv/bin/uv pip install --quiet --python .venv/bin/python --require-hashes --compile-bytecode -r requirements/dev.txt || { \
		echo "setup: uv failed, trying pip with its own index and proxy settings (about two minutes)"; \
		.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt; }
	@cp requirements/dev.txt $@

demo: setup  ## Run two stacks through their lifecycle on the local cloud.
	@.venv/bin/python -m dev.authors.demo

# Tests wait for processes and servers half of their time, so a few cores run twice as many workers.
WORKERS = $$(.venv/bin/python -c 'import os; n = os.cpu_count() or 2; print(max(n, min(2 * n, 8)))')
PYTEST = .venv/bin/python -m pytest -c pyproject.toml -n $(WORKERS)

# The product's suite, with one full lifecycle of each target. `make test TESTS=tests/planning` runs fewer tests.
# BUDGET is the cost, in fixed loops, above which the suite fails; .ci/run sets it.
BUDGET ?=
test: setup  ## Run the product's tests (5 minutes on two cores).
	@$(PYTEST) $(or $(TESTS),tests $(if $(BUDGET),--budget $(BUDGET)))

# The packages' own suites, independent of the product. `make test-packages TESTS=packages/loadtest` runs one.
test-packages: setup  #m Run the tests of the packages.
	@$(PYTEST) $(or $(TESTS),packages)

# Kills, all stacks, the longest waits that Google documents, thousands of examples of each law. PROFILE=long takes hours.
# Continuous integration runs `make long PART=2/8 PROFILE=part`: one part, hundreds of examples.
PROFILE ?= long
long: setup  ## Run the long tests (hours).
	@LOCALCLOUD_EVALUATOR=build $(PYTEST) --long --timeout 14400 --hypothesis-profile $(PROFILE) $(if $(PART),--part $(PART))

# Every stack with the stand-in of the gcp plugin and with the real one, which the engine downloads. Both must send the same requests.
nightly: setup  #m Compare with the real provider plugin.
	@GEMMA_SERVING_NIGHTLY=1 .venv/bin/python -m pytest -c pyproject.toml tests/nightly

# Kills at random moments to find leaks: `make kills SEED=2 COUNT=1000 HISTORY=kills.jsonl`. Three kills take about a minute.
SEED ?= 1
COUNT ?= 100
kills: setup  #m Kill the engine at random moments and search for leaks.
	@.venv/bin/python -m tests.kills --seed $(SEED) --count $(COUNT) $(if $(HISTORY),--history $(HISTORY))

# Changes of the modules of money and deletion that no test notices: `make mutants ROOM=money`.
# ROOM is a room or a module of tests/mutants/__main__.py, or any module with TESTS=file, the tests that judge it; ALL=1 makes every change.
mutants: setup  #m Change modules of a ROOM, and print what no test notices.
	@.venv/bin/python -m tests.mutants $(ROOM) --seed $(SEED) $(if $(ALL),--all) $(if $(TESTS),--tests $(TESTS))

# Environment of pip-audit, zizmor and shellcheck, apart from the project's.
AUDITORS = { test -x .audit/bin/python || .venv/bin/python -m venv --without-pip .audit; } && \
	.venv/bin/uv pip install --quiet --python .audit/bin/python --require-hashes -r dev/tools/audit.txt

# Published vulnerabilities of the locked packages. A package that the index does not report on fails too. SECURITY.md names the lock files that are
# excluded. Each is bound to an older release (gemma_serving/planning/data/advisories.json covers the images).
AUDITED = requirements.txt requirements/agent.txt requirements/gke.txt requirements/images.txt requirements/dev.txt packages/localcloud/requirements.txt packages/gcp-tpu/requirements.txt packages/loadtest/requirements.txt dev/tools/installer.txt dev/tools/audit.txt dev/tools/site.txt dev/authors/release/backend.txt tests/scripts/connect/clients.txt dev/judges/tpu_compiler/locks/0.32.0.txt
audit: setup  #m Check the locked packages for vulnerabilities.
	@$(AUDITORS)
	@failed=0; for file in $(AUDITED); do \
		echo "audit: $$file"; .audit/bin/pip-audit --strict --progress-spinner off --disable-pip --require-hashes -r $$file || failed=1; done; exit $$failed

# The newest commits that no remote has: a subject of at most 72 characters, with the area in front, and a body. Nothing is checked without git.
COMMITS = git log -20 -z --no-merges --format='%h%x09%s%x09%b' HEAD --not --remotes 2>/dev/null | tr '\n\000' ' \n' | \
	awk -F '\t' 'length($$2) > 72 || $$2 !~ /^[a-z][a-z0-9_.,\/ -]*: / || $$3 ~ /^ *$$/ { print "commit " $$1 ": " $$2 " (CONTRIBUTING.md, Commits)"; bad = 1 } END { exit bad }'

# What `gemma init --ci` writes in place of the repository's own files.
CI_OF_FOLDERS = scripts/init/github/workflows/*.yml scripts/init/github/actions/*/action.yml

# Go builds actionlint from modules with hashes (20 s on two cores, once; later runs use Go's own cache). Its scripts go to the pinned shellcheck.
ACTIONLINT = if command -v go >/dev/null; then \
		(cd dev/tools/actionlint && CGO_ENABLED=0 go build -mod=readonly -trimpath -o ../../../.audit/bin/actionlint github.com/rhysd/actionlint/cmd/actionlint) && \
		.audit/bin/actionlint -config-file=.github/actionlint.yaml -shellcheck=.audit/bin/shellcheck -pyflakes= .github/workflows/*.yml scripts/init/github/workflows/*.yml; \
	elif [ -n "$$CI" ]; then echo "check: go, which builds actionlint, is not on PATH"; exit 1; \
	else echo "check: workflows not checked with actionlint, because go is not on PATH"; fi

check: setup  ## Check format, types, imports, workflows and commit messages.
	@$(COMMITS)
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/pyright
	@.venv/bin/pyright --project dev/judges
	@PYTHONPATH=packages:packages/gcp-tpu .venv/bin/lint-imports --no-cache
	@$(AUDITORS)
	@.audit/bin/zizmor --offline --no-progress --quiet --strict-collection .github $(CI_OF_FOLDERS)
	@.audit/bin/shellcheck --severity=warning --shell=sh .ci/run .github/*/*.sh .github/*/*/*.sh scripts/*/*.sh examples/*.sh
	@$(ACTIONLINT)

docs: setup  ## Generate the reference pages.
	@.venv/bin/python -m dev.authors.docs
	@.venv/bin/python -m dev.judges.pages

# The pages as a site with search, in build/site. Links are strict, pages load nothing from outside, and the search, which Node.js runs,
# answers the questions of tests/tools/questions.toml.
# To read it: .venv/bin/python -m http.server --bind 127.0.0.1 --directory build/site
site: setup  #m Build the pages as a site.
	@test -x .site/bin/python || .venv/bin/python -m venv --without-pip .site
	@.venv/bin/uv pip install --quiet --python .site/bin/python --require-hashes -r dev/tools/site.txt
	@.site/bin/mkdocs build --strict --config-file dev/tools/mkdocs.yml
	@if grep -rlE '<(script|img|link)[^>]* (src|href)="?https?:' --include='*.html' build/site; then echo "site: these pages load files from outside"; exit 1; fi
	@echo "site: $$(find build/site -name '*.html' | wc -l) pages in build/site"
	@.venv/bin/python -m tests.tools.site_search

# Terminal pictures in docs/images, from a wait for capacity on the local cloud. About a minute.
pictures: setup  #m Generate the pictures of terminals.
	@.venv/bin/python -m tests.pictures

format: setup  ## Format the code.
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

# Resolve the .in files again, with the hashes of all files of each package. Only this target needs uv.
lock:  #m Lock the requirements.
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes requirements/plan.in requirements/base.in -o requirements.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes --constraints requirements.txt packages/localcloud/requirements.in -o packages/localcloud/requirements.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes --constraints requirements.txt packages/loadtest/requirements.in -o packages/loadtest/requirements.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes --constraints requirements.txt requirements/agent.in -o requirements/agent.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes --constraints requirements.txt requirements/gke.in -o requirements/gke.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes --constraints requirements.txt requirements/images.in -o requirements/images.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes requirements/dev.in -o requirements/dev.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes -c requirements.txt packages/gcp-tpu/pyproject.toml -o packages/gcp-tpu/requirements.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes dev/tools/installer.in -o dev/tools/installer.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes dev/tools/audit.in -o dev/tools/audit.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes dev/tools/site.in -o dev/tools/site.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes tests/scripts/connect/clients.in -o tests/scripts/connect/clients.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --generate-hashes dev/authors/release/backend.in -o dev/authors/release/backend.txt

clean:  ## Remove everything that the other targets made.
	rm -rf .venv .localcloud .work .oracle .real .site .pytest_cache .ruff_cache .hypothesis build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
