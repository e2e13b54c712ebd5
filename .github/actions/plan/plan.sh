#!/bin/sh
# Plan each server in the files that differ from commit BASE, with ACCELERATOR where a file names none, and write a comment to OUT.
# The text also goes to the step summary if GitHub provides one. Exit code 2: a plan is blocked, or a file cannot be read as one.
set -eu
cd "${GITHUB_WORKSPACE:-.}"
worst=0 text=$(mktemp)
trap 'rm -f "$text"' EXIT

plan() {
    file=$1 folder=$2 code=0
    shift 2
    (cd "$folder" && exec gemma plan "$@") >"$text" 2>&1 </dev/null || code=$?
    # Indented text is code whatever it has, so a file ends no block of the comment.
    printf '\n### `%s`\n\n' "$(printf %s "$file" | tr -cd 'A-Za-z0-9._/ -')"
    sed 's/^/    /' "$text"
    [ "$code" -le "$worst" ] || worst=$code
}

echo '<!-- gemma-serving: plans of a pull request -->' >"$OUT"
git diff --name-only --diff-filter=d "$BASE" HEAD >"$text.files"
while IFS= read -r file; do
    name=${file##*/}
    case $name in
    Pulumi.*.yaml)
        name=${name#Pulumi.}
        plan "$file" "$(dirname "./$file")" "${name%.yaml}" >>"$OUT"
        ;;
    *.yaml | *.yml | *.json | *.sh | *Dockerfile*)
        ! grep -q vllm "$file" || plan "$file" . --from="$file" ${ACCELERATOR:+--accelerator="$ACCELERATOR"} >>"$OUT"
        ;;
    esac
done <"$text.files"
rm "$text.files"
[ "$(wc -l <"$OUT")" -gt 1 ] || echo 'No changed file has a server of vLLM.' >>"$OUT"
cat "$OUT" >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
exit "$worst"
