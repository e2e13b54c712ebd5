#!/bin/sh
# Take down the stack STACK, if CONFIRM is the same name. $1 is the receipt.
set -eu
cd "$(dirname "$0")/../.."
case ${STACK:-} in
    "" | [!a-z]* | *[!a-z0-9-]*)
        echo "teardown: STACK is not a stack's name (lower-case letters, digits and hyphens, starting with a letter); nothing was deleted." >&2
        exit 2
        ;;
esac
if [ "$STACK" != "${CONFIRM:-}" ]; then
    echo "teardown: STACK and CONFIRM are not the same name; nothing was deleted." >&2
    exit 2
fi
mkdir -p "$(dirname "$1")"
exec .venv/bin/gemma teardown --stack="$STACK" --yes --receipt="$1"
