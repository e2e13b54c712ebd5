#!/bin/sh
# Save the plan of the stack STACK into the file $1, or of its settings as the preview environment of the pull request PULL_REQUEST.
# Nothing is deployed. What is shown also goes into the step's summary, where GitHub gives one.
set -eu
cd "$(dirname "$0")/../.."
case ${PULL_REQUEST:-} in
    *[!0-9]*) echo "plan: PULL_REQUEST is not a number." >&2; exit 2 ;;
esac
if [ "${GITHUB_ACTIONS:-}" = true ] && ! [ -f .github/CODEOWNERS ] && ! [ -f CODEOWNERS ] && ! [ -f docs/CODEOWNERS ]; then
    echo "::warning title=Nobody owns these files::Anyone's approval of a pull request counts. Write .github/CODEOWNERS (docs/ci.md, Protect the main branch)."
fi
set -- --out "$1"
if [ -n "${PULL_REQUEST:-}" ]; then
    set -- "$@" --stack "pr-$PULL_REQUEST" --settings-of "$STACK"
else
    set -- "$@" --stack "$STACK"
fi
exec .venv/bin/python -m scripts.preview save "$@"
