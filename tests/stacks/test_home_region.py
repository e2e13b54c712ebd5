"""A deployed stack keeps its region: a service or weights in it are never replaced, and a machine's document names the same image."""

import json
import re

import pytest

from gemma_serving.contracts.compile_cache import ARCHIVE_METADATA_KEY
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.resource_types import CAPACITY_TYPE, SERVICE_TYPE
from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.stacks.deployed.home_region import home_region
from gemma_serving.stacks.deployed.kept_start import NEW_NETWORK, annotations_of, start_lines, with_deployed_start
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.program import run
from tests.stacks.conftest import ROOT

BUCKET, REPOSITORY = "gcp:storage/bucket:Bucket", "gcp:artifactregistry/repository:Repository"


def deployed(**places):
    """Resources of a state: the type, the name and the outputs of each."""
    kinds = {
        "service": (SERVICE_TYPE, "vllm"),
        "bucket": (BUCKET, "models"),
        "image": (REPOSITORY, "image"),
        "machine": (CAPACITY_TYPE, "capacity"),
    }
    return {
        f"urn:pulumi:x::gemma-serving::{kinds[kind][0]}::{kinds[kind][1]}": {
            "type": kinds[kind][0],
            "outputs": {"project": "my-project", "location": place},
        }
        for kind, place in places.items()
    }


def settings(stack, **changes):
    return from_file(settings_file(stack, ROOT), project="my-project", changes=changes)


TPU = {"tpu.zones": ["europe-west4-a", "us-east5-a"]}
STAGED = {**TPU, "weights": "bucket"}


@pytest.mark.parametrize(
    ("stack", "changes", "found", "home"),
    [
        ("l4-qat", {}, {}, "us-east4"),
        ("l4-qat", {}, {"service": "us-east4", "bucket": "US-EAST4"}, "us-east4"),
        ("l4-qat", {"cloudRun.region": "europe-west4"}, {"image": "us-east4"}, "europe-west4"),
        ("tpu-v6e1", TPU, {}, "europe-west4"),
        ("tpu-v6e1", TPU, {"image": "us-east5"}, "europe-west4"),
        ("tpu-v6e1", TPU, {"image": "us-east5", "machine": None}, "us-east5"),
        ("tpu-v6e1", {"tpu.zones": ["europe-west4-a"]}, {"image": "us-east5", "machine": None}, "us-east5"),
        ("tpu-v6e1", STAGED, {"bucket": "US-EAST5", "image": "us-east5"}, "us-east5"),
        ("tpu-v6e1", TPU, {"bucket": "US-EAST5"}, "us-east5"),
        ("tpu-v6e1", {"tpu.zones": ["europe-west4-a"]}, {"bucket": "US-EAST5"}, "us-east5"),
        ("tpu-v6e1", {**TPU, "tpu.compileCache": "machine"}, {"bucket": "US-EAST5"}, "europe-west4"),
    ],
)
def test_the_home_region_stays_while_a_move_costs_weights_or_a_restart(stack, changes, found, home):
    assert home_region(settings(stack, **changes), "x", deployed(**found)) == home


@pytest.mark.parametrize(
    ("stack", "changes", "found", "parts"),
    [
        (
            "l4-qat",
            {"cloudRun.region": "europe-west4"},
            {"service": "us-east4", "bucket": "US-EAST4"},
            ['gemma-serving:cloudRun.region = "europe-west4"', "in us-east4", "service and its bucket", "set cloudRun.region: us-east4."],
        ),
        ("l4-qat", {"cloudRun.region": "europe-west4"}, {"bucket": "US-EAST4"}, ["replace its bucket with the weights."]),
        ("l4-qat", {"gcp:project": "another"}, {"service": "us-east4"}, ['project "another"', "in project my-project"]),
        ("tpu-v6e1", STAGED, {"bucket": "US-EAST1"}, ["tpu.zones = [europe-west4-a, us-east5-a]", "add a zone in us-east1."]),
    ],
)  # fmt: skip
def test_a_moved_service_or_bucket_is_refused_with_both_ways(stack, changes, found, parts):
    with pytest.raises(CommandRefusedError) as refused:
        home_region(settings(stack, **changes), "x", deployed(**found))
    text = str(refused.value)
    assert [part for part in parts if part not in text] == []
    assert "run `gemma stage_model NEW`, `gemma up NEW`, " in text
    assert text.endswith("then run `gemma teardown x`.")
    assert "Nothing was changed." in text


def test_a_zone_of_another_region_first_keeps_image_and_repository_of_a_running_machine(declared, monkeypatch):
    state = {}
    monkeypatch.setattr("gemma_serving.stacks.program.deployed_resources", lambda _stack: state)

    def placed(zones):
        recorder = declared("tpu-v6e1", weights="bucket", tpu__zones=zones)
        metadata = recorder.one("gcp-tpu:index:QueuedResource").inputs["metadata"]
        document = json.loads(metadata["gemma-serving-document"])
        repositories = json.loads(metadata.get("gemma-serving-image-repositories", "{}"))
        made = {one.inputs["repositoryId"]: one.inputs["location"] for one in recorder.all("repository:Repository")}
        return document, repositories, made, recorder.one("storage/bucket:Bucket").inputs["location"]

    document, _, made, location = placed(["us-east5-a"])
    state |= deployed(image="us-east5", machine=None, bucket=location)
    for zones in (["europe-west4-a", "us-east5-a"], ["us-east5-a", "europe-west4-a"]):
        same, repositories, more, place = placed(zones)
        assert (same, place) == (document, "US-EAST5")
        # A machine in the other region pulls from that region.
        assert repositories["europe-west4"].startswith("europe-west4-docker.pkg.dev/")
        assert more == {**made, "gemma-x-europe-west4": "europe-west4"}


def test_a_region_change_stops_the_program_before_anything_is_declared(configured, declare, monkeypatch):
    monkeypatch.setattr("gemma_serving.stacks.program.deployed_resources", lambda _stack: deployed(service="us-east4"))
    configured("l4-qat", cloudRun__region="europe-west4")

    def program():
        with pytest.raises(CommandRefusedError, match="is deployed in us-east4"):
            run()

    recorder, _ = declare(program)
    assert recorder.declared == []


def test_a_tpu_stack_of_another_project_is_refused_before_its_node_would_be_replaced():
    with pytest.raises(
        CommandRefusedError, match=r'^project "other-one": stack x is deployed in project my-project.*its TPU VM'
    ):
        home_region(from_file(settings_file("tpu-v6e1", ROOT), project="other-one"), "x", deployed(machine=None))
    assert home_region(settings("tpu-v6e1"), "x", deployed(machine=None))


def service_with(**template):
    urn = f"urn:pulumi:x::gemma-serving::{SERVICE_TYPE}::vllm"
    return {urn: {"type": SERVICE_TYPE, "outputs": {"template": {"containers": [], "vpcAccess": None, **template}}}}


FAST = {"vpcAccess": {"egress": "ALL_TRAFFIC"}, "volumes": [{"name": "graphs"}]}


@pytest.mark.parametrize(
    ("changes", "template", "start"),
    [
        ({}, {}, (False, "off")),
        ({}, FAST, (True, "bucket")),
        ({"cloudRun.minInstances": 1}, FAST, (True, "bucket")),
        ({"cloudRun.directVpc": True}, {}, (True, "off")),
        ({"cloudRun.directVpc": False, "cloudRun.compileCache": "off"}, FAST, (False, "off")),
    ],
)
def test_a_deployed_service_keeps_its_start_unless_the_file_sets_another(changes, template, start):
    """A default that has changed since the service was deployed adds no network and restarts nothing."""
    by_file, resources = settings("l4-qat", **changes), service_with(**template)
    kept = with_deployed_start(by_file, resources)
    assert (kept.service.direct_vpc, kept.service.compile_cache) == start
    lines = list(start_lines(by_file, kept, resources, "x"))
    named = [
        re.search(r"config set --path gemma-serving:cloudRun\.(\w+) (\S+) --stack x`", line).groups() for line in lines
    ]
    assert len(named) == (by_file.service.direct_vpc != start[0]) + (by_file.service.compile_cache != start[1])
    asked = {f"cloudRun.{key}": {"true": True, "false": False}.get(value, value) for key, value in named}
    moved = with_deployed_start(settings("l4-qat", **changes, **asked), resources).service
    assert (moved.direct_vpc, moved.compile_cache) == (by_file.service.direct_vpc, by_file.service.compile_cache)


def machine_with(*keys):
    urn = f"urn:pulumi:x::gemma-serving::{CAPACITY_TYPE}::capacity"
    return {urn: {"type": CAPACITY_TYPE, "outputs": {"metadata": dict.fromkeys(("startup-script", *keys), "x")}}}


@pytest.mark.parametrize("kept", [None, "machine", "bucket"])
@pytest.mark.parametrize("written", [None, "machine", "bucket", "off"])
@pytest.mark.parametrize("existing", [None, "their-models"])
def test_a_deployed_tpu_vm_keeps_where_its_programs_are_unless_the_file_sets_it(kept, written, existing):
    """The state of a machine has the archive's metadata. A default that has changed since then adds no bucket, key or grant."""
    changes = {"tpu.compileCache": written} if written else {}
    by_file = settings("tpu-v6e1", **changes, **({"bucket.existing": existing} if existing else {}))
    keys = {"bucket": [ARCHIVE_METADATA_KEY]}.get(kept, [])
    resources = {} if kept is None else machine_with(*keys)
    found = with_deployed_start(by_file, resources)
    default = by_file.capacity.compile_cache
    value = found.capacity.compile_cache
    assert value == (written or kept or default)
    lines = list(start_lines(by_file, found, resources, "x"))
    command = f"`pulumi config set --path gemma-serving:tpu.compileCache {default} --stack x`"
    said = f"The TPU VM keeps tpu.compileCache: {value}, which the file does not set; the default is now {default}: {command}."
    assert lines == ([said] if value != default else [])


def test_only_a_service_that_failed_gets_another_revision_without_a_change():
    (urn,) = service_with()
    kept, name = {"annotations": {"team": "ml"}}, "projects/p/locations/r/services/s/revisions/s-00002-abc"
    after = {"gemma-serving/after-failure-of": "s-00002-abc"}
    for state, ready, added in (("SUCCEEDED", "", {}), ("FAILED", "", after), ("FAILED", name, {})):
        condition = {"terminalConditions": [{"state": f"CONDITION_{state}"}]}
        outputs = {"latestCreatedRevision": name, "latestReadyRevision": ready, **condition}
        found = {urn: {"type": SERVICE_TYPE, "outputs": {"template": kept, **outputs}}}
        assert annotations_of(found) == {"team": "ml", **added}
    assert annotations_of({}) == {}


def test_a_new_service_starts_as_fast_as_it_can():
    by_file = settings("l4-qat")
    for resources in ({}, deployed(bucket="US-EAST4")):
        new = with_deployed_start(by_file, resources)
        assert (new.service.direct_vpc, new.service.compile_cache) == (True, "bucket")
        assert list(start_lines(by_file, new, resources, "x")) == [NEW_NETWORK]
