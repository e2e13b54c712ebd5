"""The generated resource class: property names, outputs and types as the provider's schema has them."""

import pulumi

from gemma_serving.components.gcp_tpu import DataDiskArgs, QueuedResource, QueuedResourceArgs, ReadyArgs

KEYS = {"node_id": "a", "max_run_duration_s": "b", "nodeId": "c"}


def queued_resource():
    return QueuedResource(
        "capacity",
        QueuedResourceArgs(
            accelerator_type="v6e-4",
            runtime_version="v2-alpha-tpuv6e",
            provisioning_model="spot",
            zones=["us-east5-a"],
            labels=KEYS,
            metadata=pulumi.Output.from_input(KEYS),
            data_disks=[DataDiskArgs(source_disk="weights")],
            ready=ReadyArgs(guest_attribute_namespace="ns", timeout_s=60),
        ),
    )


def test_inputs_have_the_names_of_the_schema_and_keys_of_maps_stay_as_they_are(declare):
    recorder, _ = declare(lambda: queued_resource().zone)
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
