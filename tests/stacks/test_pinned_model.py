"""The server of a stack is told the commit of its model if it downloads it, and loads no pickles."""

import json

import pytest

COMMITS = {
    "tpu-v6e4": "3e22461f65e89153144f8adb70e3b8c2cc9845a7",
    "rtx6000-31b": "52f3f65bc7a02d555763bc923bd1d9094898219d",
}


@pytest.mark.parametrize(("stack", "weights"), [("tpu-v6e4", "hub"), ("rtx6000-31b", "hub"), ("rtx6000-31b", "bucket")])
def test_the_server_is_told_the_commit_if_it_downloads_the_model(declared, stack, weights):
    recorder = declared(stack, weights=weights)
    (server,) = recorder.all("cloudrunv2/service:Service") + recorder.all("gcp-tpu:index:QueuedResource")
    text = json.dumps(server.inputs)
    for flag in ("--revision", "--tokenizer-revision"):
        assert (f"{flag}={COMMITS[stack]}" in text) == (weights == "hub")
    assert "--load-format=safetensors" in text
