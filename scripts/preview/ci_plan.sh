#!/bin/sh
# Preview stack STACK for an approval. Nothing is deployed.
# The output also goes to the step summary if GitHub provides one.
set -eu
cd "$(dirname "$0")/../.."
if [ "${GITHUB_ACTIONS:-}" = true ] && ! [ -f .github/CODEOWNERS ] && ! [ -f CODEOWNERS ] && ! [ -f docs/CODEOWNERS ]; then
    echo "::warning title=No code owners::Any approval of a pull request counts. Add .github/CODEOWNERS."
fi
text=$(mktemp)
trap 'rm -f "$text"' EXIT
code=0
.venv/bin/gemma preview run --stack="$STACK" >"$text" || code=$?
cat "$text"
cat "$text" >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
exit "$code"
