"""Invalid arguments of a component: one sentence with the argument, the value, what is allowed and what to do, and no resource."""

import dataclasses
import re

import pulumi
import pytest

from gemma_serving.components.checks import InvalidArgumentError, program_ownership
from gemma_serving.components.cloud_run_gpu_service import CloudRunGpuService
from gemma_serving.components.model_bucket import ModelBucket, ModelBucketArgs
from gemma_serving.components.private_network import PrivateNetwork
from gemma_serving.components.stored_secret import ExistingSecret, HuggingFaceToken, StoredSecretArgs
from gemma_serving.components.tpu_queued_resource import TpuQueuedResource
from gemma_serving.contracts.labels import Ownership
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.settings.cloud_run import MountSettings, ProbeSettings
from tests.components.test_argument_laws import COMPONENTS
from tests.components.test_cloud_run_gpu_service import ARGS as SERVICE
from tests.components.test_tpu_queued_resource import ARGS as CAPACITY

PROBE = ProbeSettings(initial_delay_s=0, period_s=10, failure_threshold=180, timeout_s=5)


def probe(**changes):
    return {"service": {"startup_probe": dataclasses.replace(PROBE, **changes)}}


OF_A_SERVICE = [
    (probe(failure_threshold=181), "1810 s; the maximum with a GPU is 1800 s. Set `service.startup_probe.failure_threshold` to 180 or less"),
    (probe(initial_delay_s=241), "`service.startup_probe.initial_delay_s` is 241 s; allowed: 0 to 240 s. Set"),
    (probe(period_s=241, failure_threshold=1), "`service.startup_probe.period_s` is 241 s; allowed: 1 to 240 s. Set"),
    (probe(timeout_s=11), "`service.startup_probe.timeout_s` is 11 s; it must not exceed the period (10 s). Set"),
    (probe(failure_threshold=0), "`service.startup_probe.failure_threshold` is 0; expected a whole number above 0"),
    ({"service": {"cpu": 6, "memory_mib": 12 * 1024}}, "`service.memory_mib` is 12 GiB, but Cloud Run allows 16 to 32 GiB with nvidia-l4. Set"),
    ({"service": {"cpu": 20}}, "`service.cpu` is 20, but Cloud Run allows 4, 6, 8 vCPU with nvidia-l4. Choose one of them"),
    ({"service": {"cpu": 4}}, "`service.memory_mib` is 32 GiB, but Cloud Run allows at most 16 GiB with `service.cpu` 4"),
    ({"service": {"gpu": "nvidia-t4"}}, '`service.gpu` is "nvidia-t4"; expected \'nvidia-l4\' or \'nvidia-rtx-pro-6000\''),
    ({"service": {"gpu": ""}}, "`service.gpu` is '', but it is required. Set it"),
    ({"service": {"min_instances": 3}}, "`service`: minInstances 3 exceeds maxInstances 2; lower the first or raise the second"),
    ({"service": {"concurrency": 1001}}, "`service.concurrency` is 1001"),
    ({"service": {"mount": MountSettings(uid=0)}, "server": {"uid": 2000}}, "`service.mount.uid` is 0, but the image runs as 2000 (`server.uid`)"),
    ({"service": {"direct_vpc": True}}, "`direct_vpc` and `service.direct_vpc` require each other. Set both or neither"),
    ({"mount_path": "models"}, '`mount_path` is "models"; expected an absolute path below / such as /mnt/models'),
    ({"server": {"uid": -1}}, "`server.uid` is -1; expected a whole number of 0 or more."),
    ({"server": {"image": "docker.io/vllm/vllm-openai:latest"}}, '`server.image` is "docker.io/vllm/vllm-openai:latest"; expected a reference by digest.'),
    ({"server": {"arguments": ("m", "--port", "9000")}}, "`server`: `port` is 8000, but the flag --port is 9000. Set both"),
    ({"service_name": "Gemma_Serving"}, '`service_name` is "Gemma_Serving"; expected up to 49 lower-case letters, digits and hyphens'),
    ({"service_name": "x" * 50}, "expected up to 49 lower-case letters"),
    ({"service_account": "serviceAccount:a@b.c"}, '`service_account` is "serviceAccount:a@b.c"; expected an e-mail address such as'),
    ({"bucket": "My_Models"}, '`bucket` is "My_Models"; expected a bucket name such as my-models'),
    ({"bucket": 3}, "`bucket` is 3; expected ModelBucket or str."),
    ({"mount_path": "/dev/shm"}, '`mount_path` is "/dev/shm"; expected an absolute path below /'),
    ({"labels": {"managed-by": "me"}}, '`labels` is invalid; "managed-by" is set by this project'),
    ({"labels": {"Team": "ml"}}, "`labels['Team']` is invalid; expected 1 to 63 characters of a-z"),
    ({"server": {"arguments": "google/gemma-4-E2B-it"}}, '`server.arguments` is "google/gemma-4-E2B-it"; expected a list'),
    ({"server": {"environment": {"PORT": "80"}}}, "`server.environment['PORT']` is invalid; expected a variable that Cloud Run does not set"),
    ({"service": {"request_timeout_s": 7200}}, "`service.request_timeout_s` is 7200; Cloud Run allows at most 1h. Lower it"),
    ({"service": {"min_instances": None}}, "`service.min_instances` is None; expected a whole number of 0 or more"),
]  # fmt: skip
OF_CAPACITY = [
    ({"tpu": {"accelerator_type": "v7x-4"}}, '`tpu.accelerator_type` is "v7x-4"; '),
    ({"tpu": {"accelerator_type": "v9-4"}}, '`tpu.accelerator_type` is "v9-4"; expected one of v5e-1, v5e-4, v5e-8, v6e-1, v6e-4, v6e-8'),
    ({"tpu": {"zones": ()}}, "`tpu.zones` is (), but it is required. Set it"),
    ({"tpu": {"zones": ("us-east5-a", "us-east5-a")}}, "`tpu.zones`"),
    ({"tpu": {"max_run_duration_s": None}}, "Google deletes the nodes when it expires. Set `tpu.max_run_duration_s` to 14400, for example"),
    ({"tpu": {"max_run_duration_s": 8 * 86_400}}, "but the maximum is 7 d. Set `tpu.max_run_duration_s` to 604800"),
    ({"tpu": {"provisioning": "spot"}}, '`tpu.provisioning` is "spot"; expected a list'),
    ({"tpu": {"provisioning": ("spot", "spot:5m")}}, "provisioning has duplicates; list each form once"),
    ({"tpu": {"max_usd_per_hour": 3.0}}, "the cheapest form costs $5.40 for v6e-4, so no capacity would be requested. Raise it, or remove it"),
    ({"tpu": {"provisioning": ("reservation",)}}, "provisioning reservation and the key reservation require each other; set both or neither"),
    ({"tpu": {"renew_before_s": 20_000}}, "renewBefore must be shorter than maxRunDuration"),
    ({"server": {"image": "vllm/vllm-tpu"}}, "expected a reference by digest. Replace"),
    ({"network": "a network"}, '`network` is "a network"; expected a name or self link'),
    ({"tags": "own"}, '`tags` is "own"; expected a list'),
    ({"drain_s": -1}, "`drain_s` is -1; expected a number of 0 or more"),
    ({"weights": "gs://my-models/m"}, '`weights` is "gs://my-models/m"; expected BucketWeights.'),
]  # fmt: skip
OF_OTHERS = [
    (ModelBucket, {"name": "My_Models"}, '`name` is "My_Models"; expected a bucket name such as my-models'),
    (ModelBucket, {"existing": "gs://my-models"}, '`existing` is "gs://my-models"; expected a bucket name'),
    (ModelBucket, {"location": "us east4"}, '`location` is "us east4"; expected a region such as us-east4'),
    (ModelBucket, {"readers": {"all": "allUsers"}}, "`readers['all']` is invalid; expected a member such as"),
    (ModelBucket, {"archive_days": 0}, "`archive_days` is 0; expected a whole number above 0"),
    (ModelBucket, {"project": "My project"}, '`project` is "My project"; expected a project id'),
    (HuggingFaceToken, {"secret_id": "my token"}, '`secret_id` is "my token"; expected 1 to 255 letters'),
    (HuggingFaceToken, {"value": None}, "`value` is None, but it is required. Set it."),
    (HuggingFaceToken, {"value": b"canary"}, "`value` is a bytes; expected text."),
    (
        ExistingSecret,
        {"version_name": "hf-token"},
        '`version_name` is "hf-token"; expected a version in Secret Manager by its number',
    ),
    (PrivateNetwork, {"name": "x" * 54}, "expected up to 53 lower-case letters"),
    (PrivateNetwork, {"regions": []}, "`regions` is [], but it is required. Set it."),
    (PrivateNetwork, {"regions": ["us-east5", "us-east5"]}, "regions has duplicates; list each region once"),
    (PrivateNetwork, {"egress_ports": []}, "`egress_ports` is []; expected 1 item or more"),
    (PrivateNetwork, {"egress_ports": [443]}, "`egress_ports` is 443; expected text"),
]
"""An empty list of ports would allow all of them, and a duplicate region is a duplicate name in Pulumi."""
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


@pytest.mark.parametrize(
    ("component", "args", "changes", "sentence"),
    [
        *((CloudRunGpuService, SERVICE, *row) for row in OF_A_SERVICE),
        *((TpuQueuedResource, CAPACITY, *row) for row in OF_CAPACITY),
        *((component, COMPONENTS[component], *row) for component, *row in OF_OTHERS),
    ],
)
def test_an_invalid_argument_is_one_sentence_and_declares_nothing(declare, component, args, changes, sentence):
    declared = []

    def program():
        with pytest.raises(PlanningError) as raised:
            component("x", changed(args, changes))
        declared.append(str(raised.value))

    recorder, _ = declare(program)
    assert sentence in declared[0]
    assert declared[0].startswith(f'{component.__name__} "x": ')
    assert declared[0].endswith(".")
    assert recorder.declared == []


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
    wrong = {**probe(failure_threshold=400), "accepts_limits": True}
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
