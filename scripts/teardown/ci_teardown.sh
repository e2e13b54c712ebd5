#!/bin/sh
# Take down the stack STACK, if CONFIRM is the same name. $1 is the receipt.
set -eu
cd "$(dirname "$0")/../.."
if [ -z "${STACK:-}" ] || [ "$STACK" != "${CONFIRM:-}" ]; then
    echo "teardown: STACK and CONFIRM are not the same name; nothing was deleted." >&2
    exit 2
fi
mkdir -p "$(dirname "$1")"
exec .venv/bin/gemma teardown "$STACK" --yes --receipt "$1"
