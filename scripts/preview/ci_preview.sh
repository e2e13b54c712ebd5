#!/bin/sh
# Plan every stack and preview those that are deployed or changed into the folder $1, on the real cloud with credentials, otherwise on the local cloud.
# A pull request is unreviewed code, so the engine decrypts nothing for it (--without-secrets).
# BASE_COMMIT is the commit to compare with. If unset, stacks are not compared, and all are previewed.
# The output also goes to the step summary if GitHub provides one.
set -eu
cd "$(dirname "$0")/../.."
out=$1
summary=${GITHUB_STEP_SUMMARY:-/dev/null}
text=$(mktemp)
trap 'rm -f "$text"' EXIT
code=0
if [ -n "${GOOGLE_APPLICATION_CREDENTIALS:-}${GOOGLE_OAUTH_ACCESS_TOKEN:-}" ] && [ -n "${PULUMI_BACKEND_URL:-}" ]; then
    .venv/bin/gemma preview run --without-secrets ${BASE_COMMIT:+--base="$BASE_COMMIT"} --out="$out" >"$text" || code=$?
else
    # A new project cannot be previewed before its first API is enabled, so the local project is prepared.
    # Stacks are created in a scratch copy, because creation writes the encryption salt to the settings file.
    copy=$(mktemp -d)
    trap 'rm -f "$text"; rm -rf "$copy"' EXIT
    git ls-files -z --cached --others --exclude-standard | tar --create --null --files-from - | tar --extract --directory "$copy"
    ln -sfn "$PWD/.venv" "$copy/.venv"
    mkdir -p "$out"
    target=$(cd "$out" && pwd)
    GIT_DIR=$(git rev-parse --absolute-git-dir)
    export GIT_DIR
    unset PULUMI_BACKEND_URL PULUMI_CONFIG_PASSPHRASE GOOGLE_CLOUD_PROJECT || true
    (cd "$copy" && .venv/bin/python -m localcloud run --scenario prepared -- .venv/bin/gemma preview run --without-secrets \
        ${BASE_COMMIT:+--base="$BASE_COMMIT"} --out="$target") >"$text" || code=$?
fi
cat "$text"
cat "$text" >>"$summary"
exit "$code"
