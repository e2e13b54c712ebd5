"""The generated resource class: property names, outputs and types as the provider's schema has them."""

import sys
from types import ModuleType

import pulumi
import pytest

from gcp_tpu_provider.python_sdk import python_module

KEYS = {"node_id": "a", "max_run_duration_s": "b", "nodeId": "c"}


@pytest.fixture
def generated(monkeypatch):
    """The module as a program that keeps it imports it."""
    module = ModuleType("gcp_tpu")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(python_module(), "gcp_tpu.py", "exec"), vars(module))  # noqa: S102 - what the provider wrote
    return module


def queued_resource(generated):
    return generated.QueuedResource(
        "capacity",
        generated.QueuedResourceArgs(
            accelerator_type="v6e-4",
            runtime_version="v2-alpha-tpuv6e",
            provisioning_model="spot",
            zones=["us-east5-a"],
            labels=KEYS,
            metadata=pulumi.Output.from_input(KEYS),
            data_disks=[generated.DataDiskArgs(source_disk="weights")],
            ready=generated.ReadyArgs(guest_attribute_namespace="ns", timeout_s=60),
        ),
    )


def test_inputs_have_the_names_of_the_schema_and_keys_of_maps_stay_as_they_are(declare, generated):
    recorder, _ = declare(lambda: queued_resource(generated).zone)
    assert recorder.one("gcp-tpu:index:QueuedResource").inputs == {
        "acceleratorType": "v6e-4",
        "runtimeVersion": "v2-alpha-tpuv6e",
        "provisioningModel": "spot",
        "zones": ["us-east5-a"],
        "labels": KEYS,
        "metadata": KEYS,
        "dataDisks": [{"sourceDisk": "weights"}],
        "ready": {"guestAttributeNamespace": "ns", "timeoutS": 60},
    }
