#!/bin/sh
# Deploy the stack STACK into the report folder $1, or its settings as the preview environment of the pull request PULL_REQUEST.
# BENCH is true or false. PLAN names the file of the plan that was approved: nothing else is deployed. Exit code 0 means that this commit is what runs.
set -eu
cd "$(dirname "$0")/../.."
case ${PULL_REQUEST:-} in
    *[!0-9]*) echo "deploy: PULL_REQUEST is not a number." >&2; exit 2 ;;
esac
set -- --out "$1" --configure-docker
if [ -n "${PULL_REQUEST:-}" ]; then
    set -- "$@" --stack "pr-$PULL_REQUEST" --settings-of "$STACK"
else
    set -- "$@" --stack "$STACK"
fi
if [ "${BENCH:-true}" != true ]; then
    set -- "$@" --no-bench
fi
if [ -n "${PLAN:-}" ]; then
    set -- "$@" --plan "$PLAN"
fi
exec .venv/bin/python -m scripts.deploy "$@"
