#!/bin/sh
# Lifecycle of the stack $1 on the cloud of the environment: up, a change in place, no further changes, teardown.
# Writes the requests sent to the file $2.
# Run it in a copy of the project, because creating a stack writes its encryption salt to the settings file.
set -eu
stack=$1
engine() { pulumi "$@" --stack="$stack" --non-interactive; }
pulumi stack init --stack="$stack" --non-interactive
if grep -q "gemma-serving:weights: bucket" "Pulumi.$stack.yaml"; then
    # A checkpoint without weights, because the simulated server knows its size by name.
    mkdir checkpoint
    echo '{}' >checkpoint/config.json
    # The length of the header, and a header without tensors.
    printf '\002\000\000\000\000\000\000\000{}' >checkpoint/model.safetensors
    python -m scripts.stage_model --stack="$stack" --from checkpoint
fi
engine up --yes --skip-preview
engine preview --refresh --expect-no-changes
engine config set --path gemma-serving:vllm.maxModelLen 6144
engine config set --path gemma-serving:labels.team nightly
engine up --yes --skip-preview
engine preview --refresh --expect-no-changes
python -m scripts.teardown --stack="$stack" --yes
curl --silent --show-error --fail --header "Authorization: Bearer $LOCALCLOUD_TOKEN" --output "$2" "$LOCALCLOUD_URL/admin/requests"
