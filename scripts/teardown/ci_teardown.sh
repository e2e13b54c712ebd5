#!/bin/sh
# Take down the stack STACK, if CONFIRM is the same name, or the preview environment of the pull request PULL_REQUEST. $1 is the receipt.
# A pull request without a preview environment has nothing to take down.
set -eu
cd "$(dirname "$0")/../.."
receipt=$1
mkdir -p "$(dirname "$receipt")"
if [ -n "${STACK:-}" ]; then
    if [ "$STACK" != "${CONFIRM:-}" ]; then
        echo "teardown: the two names differ; nothing was deleted." >&2
        exit 2
    fi
    exec .venv/bin/python -m scripts.teardown --stack "$STACK" --yes --receipt "$receipt"
fi
case ${PULL_REQUEST:-} in
    '' | *[!0-9]*) echo "teardown: neither STACK nor PULL_REQUEST names what to take down." >&2; exit 2 ;;
esac
said=$(mktemp)
trap 'rm -f "$said"' EXIT
code=0
.venv/bin/python -m scripts.teardown --stack "pr-$PULL_REQUEST" --yes --receipt "$receipt" 2>"$said" || code=$?
cat "$said" >&2
if [ "$code" = 2 ] && grep -q "Stack pr-$PULL_REQUEST not found:" "$said"; then
    echo "The pull request has no preview environment."
    exit 0
fi
exit "$code"
