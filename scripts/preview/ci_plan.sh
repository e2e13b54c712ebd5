#!/bin/sh
# Save the plan of stack STACK to the file $1. With PULL_REQUEST, plan its settings as the preview environment of that pull request.
# Nothing is deployed. The output also goes to the step summary if GitHub provides one.
set -eu
cd "$(dirname "$0")/../.."
case ${PULL_REQUEST:-} in
    *[!0-9]*) echo "plan: PULL_REQUEST is not a number." >&2; exit 2 ;;
esac
if [ "${GITHUB_ACTIONS:-}" = true ] && ! [ -f .github/CODEOWNERS ] && ! [ -f CODEOWNERS ] && ! [ -f docs/CODEOWNERS ]; then
    echo "::warning title=No code owners::Any approval of a pull request counts. Add .github/CODEOWNERS (docs/ci-setup.md, Protect the main branch)."
fi
set -- --out "$1"
if [ -n "${PULL_REQUEST:-}" ]; then
    set -- "$@" --stack "pr-$PULL_REQUEST" --settings-of "$STACK"
else
    set -- "$@" --stack "$STACK"
fi
exec .venv/bin/python -m scripts.preview save "$@"
