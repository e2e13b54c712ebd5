"""Autopilot's published rules (autopilot.json) over the objects of all stacks and of drawn settings: within them, or GKE04 says where not."""

import dataclasses
import json
import random
import re
from pathlib import Path

import pytest

from gemma_serving.gke import rules
from gemma_serving.gke.objects import objects
from gemma_serving.gke.rules import AUTOPILOT, findings
from gemma_serving.gke.server_inputs import GkeOptions
from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.settings.cloud_run import MountSettings
from gemma_serving.planning.speed.startup import LOAD_RATES
from tests.gke.test_objects import SHIPPED, server_of, settings_of

TABLE = json.loads(Path(rules.__file__).with_name("autopilot.json").read_text(encoding="utf-8"))
UNITS = {"": 2.0**-30, "Mi": 2.0**-10, "Gi": 1.0}
GPU_STACKS = [stack for stack in SHIPPED if settings_of(stack).cloud_run]
DRAWS = 24


def gib(quantity):
    number, unit = re.fullmatch(r"([0-9.]+)([A-Z]?i?)", quantity).groups()
    return float(number) * UNITS[unit]


def sidecar_of(found):
    """Return the requests of the FUSE driver's container as its webhook reads the annotations, or None."""
    annotations = found["Deployment"]["spec"]["template"]["metadata"].get("annotations", {})
    prefix = "gke-gcsfuse/"
    if annotations.get(f"{prefix}volumes") != "true":
        return None
    # Requests without an annotation are the limits (gcs-fuse-csi-driver 5fcdc04, pkg/webhook/config.go, populateResource).
    return {name: annotations[f"{prefix}{name}-limit"] for name in ("cpu", "memory", "ephemeral-storage")}


def breaches(found):
    """Yield each published rule that the Pod of a Deployment breaks."""
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    requests = [container["resources"]["requests"]]
    sidecar = sidecar_of(found)
    if sidecar:
        requests.append(sidecar)
        zero = [
            name
            for name, value in sidecar.items()
            if float(re.match("[0-9.]+", value)[0]) <= AUTOPILOT["SIDECAR_ABOVE"]
        ]
        yield from (f"SIDECAR_ABOVE {name}" for name in zero)
        if "nvidia.com/gpu" in requests[0]:
            yield from ["GPU_SIDECAR_CPU"] if float(sidecar["cpu"]) > AUTOPILOT["GPU_SIDECAR_CPU"] else []
            yield from ["GPU_SIDECAR_GIB"] if gib(sidecar["memory"]) > AUTOPILOT["GPU_SIDECAR_GIB"] else []
    disks = [gib(one.get("ephemeral-storage", "0")) for one in requests]
    yield from ["CONTAINER_DISK_GIB"] if min(disks) < AUTOPILOT["CONTAINER_DISK_GIB"] else []
    yield from ["POD_DISK_GIB"] if sum(disks) > AUTOPILOT["POD_DISK_GIB"] else []
    yield from ["CPU_STEP"] if any(float(one.get("cpu", "0")) % AUTOPILOT["CPU_STEP"] for one in requests) else []
    text = json.dumps(pod)
    yield from [name for name in TABLE["refused"]["fields"] if f'"{name}"' in text]
    added = container.get("securityContext", {}).get("capabilities", {}).get("add", [])
    yield from set(added) - set(TABLE["capabilities"]["names"])


def drawn(number):
    """Return a stack with a mount that a settings file may have."""
    draw = random.Random(number)  # noqa: S311 - the same draws each time
    cache = draw.randrange(1, 40) * 1024 if number % 3 == 0 else None
    mode = "fuse-cached" if cache else draw.choice(["fuse", "fuse-buffered"])
    stack = draw.choice(GPU_STACKS)
    memory = settings_of(stack).cloud_run.memory_mib + (cache or 0)
    mount = MountSettings(mode=mode, cache_size_mib=cache, options=draw.choice([(), ("enable-buffered-read=true",)]))
    return server_of(stack, cloud_run={"mount": mount, "memory_mib": memory, "cpu": draw.choice([4, 6, 8, 20])})


def judged(server):
    found, options = {one["kind"]: one for one in objects(server, GkeOptions())}, GkeOptions()
    broken, said = set(breaches(found)), next((one for one in findings(server, options) if one.id == "GKE04"), None)
    rows = [row for row in TABLE["limits"] if row["name"] in broken]
    # A limit is never printed without when it was stated, and why it may not hold.
    assert all(row["doubt"] in said.message and "stated" in row["doubt"] for row in rows)
    return broken, said is not None


@pytest.mark.parametrize(
    ("stack", "weights"),
    [(stack, "bucket") for stack in SHIPPED] + [(stack, "hub") for stack in SHIPPED if stack not in GPU_STACKS],
)
def test_a_pod_of_a_stack_is_within_the_published_rules_or_says_where_it_is_not(stack, weights):
    broken, is_said = judged(server_of(stack, weights=weights))
    assert broken <= {"POD_DISK_GIB"}
    assert is_said is bool(broken)
    assert is_said is (weights == "hub")


@pytest.mark.parametrize("number", range(DRAWS))
def test_a_pod_of_drawn_settings_is_within_the_published_rules_or_says_where_it_is_not(number):
    broken, is_said = judged(drawn(number))
    assert broken <= {"GPU_SIDECAR_GIB", "GPU_SIDECAR_CPU"}
    assert is_said is bool(broken)


def test_the_draws_have_pods_on_both_sides():
    assert {bool(judged(drawn(number))[0]) for number in range(DRAWS)} == {True, False}


def test_a_pod_without_its_own_numbers_breaks_the_rules():
    found = {one["kind"]: one for one in objects(server_of("l4-qat"), GkeOptions())}
    template = found["Deployment"]["spec"]["template"]
    template["metadata"]["annotations"] = {"gke-gcsfuse/volumes": "true"} | {
        f"gke-gcsfuse/{name}-limit": "0" for name in ("cpu", "memory", "ephemeral-storage")
    }
    (container,) = template["spec"]["containers"]
    del container["resources"]["requests"]["ephemeral-storage"]
    container["resources"]["requests"]["cpu"] = "4.1"
    container["securityContext"] = {"privileged": True, "capabilities": {"add": ["SYS_RESOURCE", "CHOWN"]}}
    zero = {f"SIDECAR_ABOVE {name}" for name in ("cpu", "memory", "ephemeral-storage")}
    assert set(breaches(found)) == zero | {"CONTAINER_DISK_GIB", "CPU_STEP", "privileged", "SYS_RESOURCE"}


def test_the_container_and_the_driver_share_what_the_instance_had():
    """On Cloud Run gcsfuse runs on the instance's CPU, and its file cache is part of the instance's memory."""
    run = settings_of("l4-qat").cloud_run
    cached = dataclasses.replace(run.mount, mode="fuse-cached", cache_size_mib=8192)
    plain = server_of("l4-qat", cloud_run={"mount": dataclasses.replace(run.mount, mode="fuse")})
    server = server_of("l4-qat", cloud_run={"mount": cached})
    assert server.memory_mib + 8192 == plain.memory_mib == run.memory_mib
    assert server.cpu + server.sidecar.cpu == plain.cpu + plain.sidecar.cpu == run.cpu
    assert server.sidecar.memory_gib == plain.sidecar.memory_gib + 8


@pytest.mark.parametrize(("mode", "vcpu"), [("fuse", 1), ("fuse-buffered", 2), ("fuse-cached", 3)])
def test_the_driver_has_the_cpu_of_the_planned_rate(mode, vcpu):
    cache = 8192 if mode == "fuse-cached" else None
    mount = server_of("l4-qat", cloud_run={"mount": MountSettings(mode=mode, cache_size_mib=cache)}).mount
    seconds_per_gb = 4.2 if cache else 1.9
    assert mount.sidecar.cpu == vcpu >= constant(LOAD_RATES[mode]) / 1e9 * seconds_per_gb > vcpu - 1


def test_each_row_has_its_source():
    assert all(row["what"] and row["source"] for row in (*TABLE["limits"], TABLE["capabilities"]))
    assert set(AUTOPILOT) == {row["name"] for row in TABLE["limits"]}
