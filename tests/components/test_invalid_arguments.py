"""Secrets in the arguments of a component, and arguments that only resemble an invalid one."""

import dataclasses
import re

import pulumi
import pytest

from gemma_serving.components.checks import InvalidArgumentError, program_ownership
from gemma_serving.components.cloud_run_gpu_service import CloudRunGpuService
from gemma_serving.components.model_bucket import ModelBucket, ModelBucketArgs
from gemma_serving.components.stored_secret import StoredSecretArgs
from gemma_serving.components.tpu_queued_resource import TpuQueuedResource
from gemma_serving.contracts.labels import Ownership
from gemma_serving.planning.settings.cloud_run import MountSettings, ProbeSettings
from tests.components.test_cloud_run_gpu_service import ARGS as SERVICE
from tests.components.test_tpu_queued_resource import ARGS as CAPACITY

IN_CLEAR = [
    {"arguments": ["m", "--api-key=canary-1234"]},
    {"arguments": ["m", "--api_key", "canary-1234"]},
    {"arguments": ["m", "--hf-token=canary-1234"]},
    {"arguments": ["m", "--api-k=canary-1234"]},
    {"arguments": ["m", '--hf-overrides={"a": "hf_Canary1234"}']},
    {"arguments": ["hf_Canary1234"]},
    {"environment": {"HF_TOKEN": "canary-1234"}},
    {"environment": {"VLLM_API_KEY": "canary-1234"}},
    {"environment": {"ANY": "hf_Canary1234"}},
    {"environment": {"a name": "canary-1234"}},
    {"secrets": {"HF_TOKEN": "canary-1234"}},
    {"secrets": {"HF_TOKEN": "hf_Canary1234"}},
]
"""Parts of a server with a secret in plain text."""


def changed(args, changes):
    blocks = {
        name: dataclasses.replace(getattr(args, name), **value)
        if dataclasses.is_dataclass(getattr(args, name)) and isinstance(value, dict)
        else value
        for name, value in changes.items()
    }
    return dataclasses.replace(args, **blocks)


@pytest.mark.parametrize("given", IN_CLEAR, ids=str)
def test_a_secret_in_plain_text_is_refused_and_not_shown(declare, given):
    wanted = (
        "server.secrets"
        if "secrets" in given
        else "server.environment['a name']"
        if "a name" in str(given)
        else "looks like a secret"
    )
    for component, args in ((CloudRunGpuService, SERVICE), (TpuQueuedResource, CAPACITY)):

        def program(component=component, args=args):
            with pytest.raises(InvalidArgumentError) as raised:
                component("x", changed(args, {"server": given}))
            return str(raised.value)

        recorder, said = declare(program)
        assert wanted in said
        assert "anary" not in said
        assert recorder.declared == []


def test_arguments_and_variables_that_only_resemble_a_secret_are_accepted(declare):
    words = ["google/gemma-4-E2B-it", "--tokenizer=org/m", "--max-num-batched-tokens=4096", "--hf-overrides={}"]
    server = {
        "arguments": words,
        "environment": {"VLLM_TPU_TOKEN_PADDING": "512", "HF_TOKEN_PATH": "/x", "HF_TOKEN": ""},
    }
    recorder, _ = declare(lambda: CloudRunGpuService("x", changed(SERVICE, {"server": server})).uri)
    assert recorder.one("cloudrunv2/service:Service").inputs["template"]["containers"][0]["args"] == words


@pytest.mark.parametrize("given", ["their-models", pulumi.Output.from_input("their-models")], ids=["text", "output"])
def test_an_existing_bucket_is_mounted_by_its_name(declare, given):
    run = {"service": {"mount": MountSettings()}, "bucket": given}
    recorder, _ = declare(lambda: CloudRunGpuService("x", changed(SERVICE, run)).uri)
    (volume,) = recorder.one("cloudrunv2/service:Service").inputs["template"]["volumes"]
    assert (volume["gcs"]["bucket"], volume["gcs"]["readOnly"]) == ("their-models", True)
    assert recorder.all("storage") == []


def test_a_limit_that_google_has_raised_can_be_accepted(declare):
    probe = ProbeSettings(initial_delay_s=0, period_s=10, failure_threshold=400, timeout_s=5)
    wrong = {"service": {"startup_probe": probe}, "accepts_limits": True}
    recorder, _ = declare(lambda: CloudRunGpuService("x", changed(SERVICE, wrong)).uri)
    container = recorder.one("cloudrunv2/service:Service").inputs["template"]["containers"][0]
    assert container["startupProbe"]["failureThreshold"] == 400


def test_the_owner_is_the_running_program(declare):
    _, owner = declare(program_ownership)
    assert (owner.project, owner.stack) == ("gemma-serving", "x")


def test_a_program_whose_name_is_no_label_is_told_what_to_pass(declare, monkeypatch):
    monkeypatch.setattr(pulumi, "get_stack", lambda: "Dev")
    said = r'`ownership` .*; "Dev" cannot be the value of a label: .* Pass `ownership=Ownership\('
    args = {"project": "my-project", "name": "my-models", "location": "us-east4"}
    with pytest.raises(InvalidArgumentError, match=said):
        declare(lambda: ModelBucket("models", ModelBucketArgs(**args)))
    declare(lambda: ModelBucket("models", ModelBucketArgs(**args, ownership=Ownership(project="mine", stack="dev"))))


def test_a_secrets_value_is_no_part_of_its_representation(ownership):
    args = StoredSecretArgs(project="p", secret_id="s", value="hf_canary", ownership=ownership)
    assert not re.search("hf_canary", repr(args))
