# gemma-serving. `make setup`, `make demo`, `make test`, `make check`, `make docs`, `make clean`; see README.md.
SHELL := /bin/sh
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1 && { echo $$p; break; }; done)
STAMP := .venv/.requirements-dev.txt

.PHONY: setup demo test check docs format lock clean

setup: $(STAMP)
	@.venv/bin/python -m tools.engine

$(STAMP): requirements.txt requirements-dev.txt
	@test -n "$(PYTHON)" || { echo "setup: no Python 3.11, 3.12 or 3.13 with venv was found; install one, or name it: make setup PYTHON=/path/to/python3"; exit 1; }
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@echo "setup: installing the pinned packages into .venv (about two minutes the first time)"
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@cp requirements-dev.txt $@

demo: setup
	@.venv/bin/python -m scripts.demo

test: setup
	@.venv/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

check: setup
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/pyright
	@PYTHONPATH=provider .venv/bin/lint-imports --no-cache

docs: setup
	@.venv/bin/python -m scripts.docs

format: setup
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

# Resolve requirements*.in anew. uv is needed here only.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate requirements.in -o requirements.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --constraints requirements.txt localcloud/requirements.in -o localcloud/requirements.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate requirements-dev.in -o requirements-dev.txt
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate -c requirements.txt provider/pyproject.toml -o provider/requirements.txt

clean:
	rm -rf .venv .localcloud .work .pytest_cache .ruff_cache .hypothesis build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
