"""The ComputeClasses of examples/gke: fields that Google's own manifests have, and nodes that the servers can use."""

import copy
from pathlib import Path

import pytest
import yaml

from gemma_serving.gke.objects import objects
from gemma_serving.gke.server_inputs import GkeOptions
from gemma_serving.stacks.gke_program import server_on_gke

ROOT = Path(__file__).parents[2]
CLASSES = {
    one["metadata"]["name"]: one
    for one in yaml.safe_load_all((ROOT / "examples" / "gke" / "compute-classes.yaml").read_text())
}
SERVERS = {"gemma-l4": "Pulumi.l4-12b-qat.yaml", "gemma-v6e-4": "Pulumi.tpu-v6e4.yaml"}
PRIORITY = "spec.priorities[]"
FIELDS = {
    "apiVersion": str,
    "kind": str,
    "metadata.name": str,
    "spec.activeMigration.optimizeRulePriority": bool,
    "spec.nodePoolAutoCreation.enabled": bool,
    "spec.nodePoolConfig.imageStreaming.enabled": bool,
    f"{PRIORITY}.flexStart.enabled": bool,
    f"{PRIORITY}.flexStart.nodeRecycling.leadTimeSeconds": int,
    f"{PRIORITY}.gpu.count": int,
    f"{PRIORITY}.gpu.driverVersion": str,
    f"{PRIORITY}.gpu.type": str,
    f"{PRIORITY}.machineType": str,
    f"{PRIORITY}.maxPodsPerNode": int,
    f"{PRIORITY}.maxRunDurationSeconds": int,
    f"{PRIORITY}.reservations.affinity": str,
    f"{PRIORITY}.spot": bool,
    f"{PRIORITY}.storage.localSSDCount": int,
    f"{PRIORITY}.tpu.count": int,
    f"{PRIORITY}.tpu.topology": str,
    f"{PRIORITY}.tpu.type": str,
}
"""All fields of the 42 ComputeClasses of accelerated-platforms 9320f3b, platforms/gke/base/core/custom_compute_class/templates/manifests."""
LONGEST_FLEX_S = 7 * 86_400
FORMS = ("on demand", "flex-start", "spot")


def fields_of(value, path=""):
    """Yield the path of each value, as in FIELDS, with its type."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from fields_of(one, f"{path}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for one in value:
            yield from fields_of(one, f"{path}[]")
    else:
        yield path, type(value)


def unknown_fields(compute_class):
    return {path for path, kind in fields_of(compute_class) if FIELDS.get(path) is not kind}


def form_of(priority):
    """Return the one form of capacity of a priority."""
    found = {
        "flex-start": "flexStart" in priority,
        "spot": priority.get("spot") is True,
        "on demand": priority.get("spot") is False,
    }
    (form,) = [name for name, is_form in found.items() if is_form]
    return form


def server_of(declare, name):
    options = GkeOptions(compute_class=name)
    server = declare(lambda: server_on_gke(ROOT / SERVERS[name], options, project="my-project"))[1][0]
    return server, {one["kind"]: one for one in objects(server, options)}


@pytest.mark.parametrize("name", CLASSES)
def test_each_field_is_one_of_googles(name):
    assert (CLASSES[name]["apiVersion"], CLASSES[name]["kind"]) == ("cloud.google.com/v1", "ComputeClass")
    assert unknown_fields(CLASSES[name]) == set()


@pytest.mark.parametrize(
    ("key", "value"), [("maxRunDurationSeconds", "604800"), ("bootDiskSizeGb", 100), ("spot", "true")]
)
def test_a_field_of_another_name_or_type_is_named(key, value):
    planted = copy.deepcopy(CLASSES["gemma-l4"])
    planted["spec"]["priorities"][1][key] = value
    assert unknown_fields(planted) == {f"{PRIORITY}.{key}"}


@pytest.mark.parametrize("name", CLASSES)
def test_the_forms_of_capacity_are_in_googles_order_and_flex_nodes_are_replaced_in_time(declare, name):
    priorities = CLASSES[name]["spec"]["priorities"]
    assert tuple(map(form_of, priorities)) == FORMS
    flex = priorities[FORMS.index("flex-start")]
    server, _ = server_of(declare, name)
    lead_s = flex["flexStart"]["nodeRecycling"]["leadTimeSeconds"]
    assert server.replica_start_s < lead_s < flex["maxRunDurationSeconds"] <= LONGEST_FLEX_S


@pytest.mark.parametrize("name", CLASSES)
def test_each_node_has_what_the_server_takes(declare, name):
    server, _ = server_of(declare, name)
    resource, count = server.resource
    labels = server.node_labels
    for priority in CLASSES[name]["spec"]["priorities"]:
        device = priority["tpu" if server.is_tpu else "gpu"]
        assert device["count"] == count, resource
        if server.is_tpu:
            assert device["type"] == labels["cloud.google.com/gke-tpu-accelerator"]
            assert device["topology"] == labels["cloud.google.com/gke-tpu-topology"]
        else:
            assert device["type"] == labels["cloud.google.com/gke-accelerator"]
            assert int(priority["machineType"].rpartition("-")[2]) > server.cpu  # a node keeps a part for itself


@pytest.mark.parametrize("name", CLASSES)
def test_its_pods_may_run_on_each_of_its_nodes(declare, name):
    """GKE adds the taint of the accelerator and the one of spot, also to the nodes of a class.

    It adds no toleration for them (google/skills 1af7775, skills/cloud/gke-compute-classes/SKILL.md).
    """
    server, found = server_of(declare, name)
    pod = found["Deployment"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"cloud.google.com/compute-class": name}
    tolerated = {one["key"] for one in pod["tolerations"]}
    assert {server.resource[0], "cloud.google.com/gke-spot"} <= tolerated
