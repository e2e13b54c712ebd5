#!/bin/sh
# Install the wheels of a release in an empty environment, and use them as a user does: dev/authors/release/walk.sh FOLDER
# FOLDER has the artefacts of `python -m dev.authors.release build`. Needs Python 3.11 to 3.13, `pulumi` on PATH, and the package registries.
# Google is simulated by the local cloud of the release. Environment and stack are made in a temporary folder, which is deleted.
# Exit code 0: each step works. Otherwise the output of the step that failed is last.
set -eu
dist=$(cd "$1" && pwd)
agent=$(cd "$(dirname "$0")/../../.." && pwd)/requirements/agent.txt
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# No credentials, project or packages of the caller.
for name in $(env | grep -oE '^(CLOUDSDK|GCLOUD|GOOGLE|HF|HUGGING|PIP_REQUIRE|PULUMI|PYTHON|VIRTUAL_ENV)[A-Z0-9_]*'); do
    [ "$name" = PULUMI_PYTHON_CMD ] || unset "$name"
done
export PATH="$folder/.venv/bin:$PATH" PULUMI_HOME="$folder/home" PULUMI_SKIP_UPDATE_CHECK=true PYTHONNOUSERSITE=1
started=$(date +%s)

seconds() {
    echo "$(($(date +%s) - started)) s"
}

step() {
    echo "$(seconds): $*"
    "$@" >"$folder/output" 2>&1 || {
        code=$?
        tail -n 40 "$folder/output"
        exit "$code"
    }
}

installed() {
    echo "$1: $(du -sm .venv | cut -f1) MB, $(pip list --format=freeze | grep -cvE '^(pip|setuptools)==') packages"
}

# The client of an assistant calls the first tool.
cat >assistant.py <<'PYTHON'
import os

import anyio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client


async def use():
    server = StdioServerParameters(command="gemma", args=["agent"], env=dict(os.environ))
    async with Client(stdio_client(server)) as client:
        first = (await client.list_tools()).tools[0].name
        found = await client.call_tool(first, {"stack": "first"})
        assert found.structured_content["ok"], found
        print("the assistant's tool", first, "answered")


anyio.run(use)
PYTHON

(cd "$dist" && step sha256sum --check --strict --quiet SHA256SUMS)
step python3 -m venv .venv
step pip install "$dist"/gemma_serving-*.whl
step gemma plan l4-12b-qat
installed "gemma-serving alone"
step gemma init first --like tpu-v6e1
step pip install --require-hashes -r requirements.txt
installed "requirements.txt"
step pip install --require-hashes -r wheels/requirements-try.txt
installed "and requirements-try.txt"
step pip install --require-hashes -r "$agent"
step pip check

# A user's folder may have packages with the names of the product's folders.
for name in components scripts stacks; do
    mkdir "$name"
    echo 'raise SystemExit("a module of the user")' >"$name/__init__.py"
done
cat >life.sh <<'LIFE'
set -eux
gemma plan first
gemma up first --yes
gemma smoke first
python assistant.py
gemma teardown first --yes
LIFE
step localcloud run --scenario prepared -- sh life.sh
cp output life.log
for words in "first deployed in" "smoke passed" "the assistant's tool plan answered" "No leaked resources"; do
    step grep "$words" life.log
done
echo "walk: the wheels of $dist work, $(seconds)."
