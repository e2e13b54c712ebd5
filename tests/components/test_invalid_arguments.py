"""Invalid arguments of a component: one sentence with the argument, the value, what is allowed and what to do, and no resource."""

import dataclasses
import re

import pulumi
import pytest

from gemma_serving.components.cloud_run_gpu_service import CloudRunGpuService
from gemma_serving.components.defaults import program_ownership
from gemma_serving.components.stored_secret import StoredSecretArgs
from gemma_serving.components.tpu_queued_resource import TpuQueuedResource
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.settings.cloud_run import MountSettings, ProbeSettings
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
    ({"server": {"uid": -1}}, "`server.uid` is -1; expected 0 or more. Set"),
    ({"server": {"image": "docker.io/vllm/vllm-openai:latest"}}, '`server.image` is "docker.io/vllm/vllm-openai:latest"; expected a reference by digest.'),
    ({"server": {"arguments": ("m", "--port", "9000")}}, "`server.port` is 8000, but the flag --port is 9000. Set both"),
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
]  # fmt: skip


def changed(args, changes):
    blocks = {
        name: dataclasses.replace(getattr(args, name), **value) if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    return dataclasses.replace(args, **blocks)


@pytest.mark.parametrize(
    ("component", "args", "changes", "sentence"),
    [
        *((CloudRunGpuService, SERVICE, *row) for row in OF_A_SERVICE),
        *((TpuQueuedResource, CAPACITY, *row) for row in OF_CAPACITY),
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
    said = r'The Pulumi stack is "Dev", which cannot be the value of a label: .* Pass `ownership=Ownership\('
    with pytest.raises(PlanningError, match=said):
        declare(program_ownership)


def test_a_secrets_value_is_no_part_of_its_representation(ownership):
    args = StoredSecretArgs(project="p", secret_id="s", value="hf_canary", ownership=ownership)
    assert not re.search("hf_canary", repr(args))
