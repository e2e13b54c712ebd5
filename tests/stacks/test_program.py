"""The whole program against mocks: the plan stops it first, and every stack declares what its target needs."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pulumi_gcp as gcp
import pytest

from gemma_serving.cloud.grants import owner_of_grant
from gemma_serving.components.stack_details import StackDetails
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.naming import NamingError
from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.contracts.staged_weights import STAGING_VARIABLE
from gemma_serving.planning.machine.hardware import image_of
from gemma_serving.stacks import tpu
from gemma_serving.stacks.program import run
from tests.stacks.conftest import ROOT

TUNNEL = {"tpu__tunnelMembers": ["user:alice@example.com"]}
WHOLE = {
    "hfTokenSecret": "projects/their-project/secrets/token/versions/7",
    "apiKey": "canary-0123456789",
    "maxAge": "8h",
    "maxUsd": 50,
}
STACKS = sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in shipped_files(ROOT))


@dataclass(frozen=True)
class Declaration:
    """What the program of a stack declared and exported."""

    recorder: Any
    exported: dict


_KNOWN: dict[str, Declaration] = {}
"""Each declaration takes a quarter of a second, and nothing changes it: the tests of this file share them."""


@pytest.fixture
def with_more(declared, monkeypatch, stack):
    """What a stack declares with limits, secrets and members of its tunnel."""
    if stack not in _KNOWN:
        exported = {}
        monkeypatch.setattr("pulumi.export", exported.__setitem__)
        monkeypatch.setattr(StackDetails, "register_outputs", lambda _, details: exported.update(details))
        recorder = declared(stack, **WHOLE, **(TUNNEL if stack.startswith("tpu") else {}))
        _KNOWN[stack] = Declaration(recorder, exported)
    return _KNOWN[stack]


@pytest.fixture
def refusal(configured, declare):
    """Return the message with which the program of a stack ends before it declares anything."""

    def of(error, stack, **changes):
        configured(stack, **changes)

        def program():
            with pytest.raises(error) as raised:
                run()
            return str(raised.value)

        recorder, message = declare(program)
        assert recorder.declared == []
        return message

    return of


@pytest.mark.parametrize("stack", STACKS)
def test_every_grant_on_the_project_says_whose_it_is(with_more):
    recorder = with_more.recorder
    mine = Ownership(project="gemma-serving", stack="x")
    account_id = recorder.one("serviceaccount/account:Account").inputs["accountId"]
    account = f"{account_id}@my-project.iam.gserviceaccount.com"
    for grant in recorder.all("projects/iAMMember"):
        given = (grant.inputs["member"], grant.inputs.get("condition") or {})
        assert owner_of_grant(*given, {account: mine}) == mine, grant.inputs


def servers_text(recorder):
    """The inputs of what serves, without the program that a machine runs."""
    servers = [
        item.inputs for item in recorder.declared if item.type.endswith(("v2/service:Service", ":QueuedResource"))
    ]
    for server in servers:
        server.get("metadata", {}).pop("startup-script", None)
    return json.dumps(servers)


IN_A_BUCKET = {"l4-qat", "l4-qat-002", "l4-12b-qat"}
"""Stacks whose servers download nothing from the hub."""
ARCHIVING = {*STACKS} - {"l4-qat-002"}
"""Stacks whose servers keep compiled programs in the bucket, signed with a key: all TPUs, and the services that scale to zero."""


@pytest.mark.parametrize("stack", STACKS)
def test_secrets_reach_the_server_by_version_and_scripts_by_reference(with_more, stack):
    recorder = with_more.recorder
    grants = {grant.inputs["secretId"] for grant in recorder.all("secretIamMember")}
    own = {"gemma-x-api-key", "gemma-x-archive-key"} if stack in ARCHIVING else {"gemma-x-api-key"}
    assert {secret.inputs["secretId"] for secret in recorder.all("secretmanager/secret:Secret")} == own
    assert grants == (own if stack in IN_A_BUCKET else {"token", *own})
    server = json.dumps(
        [item.inputs for item in recorder.declared if item.type.endswith(("v2/service:Service", ":QueuedResource"))]
    )
    assert "VLLM_API_KEY" in server
    assert ("HF_TOKEN" in server) is ("projects/their-project/secrets/token" in server) is (stack not in IN_A_BUCKET)
    assert "canary" not in server
    assert with_more.exported["apiKeySecret"] is not None


@pytest.mark.parametrize("stack", STACKS)
def test_everything_that_can_have_labels_has_ours_with_the_limits(with_more):
    labelled = (
        "cloudrunv2/service:Service",
        "gcp-tpu:index:QueuedResource",
        "storage/bucket:Bucket",
        "repository:Repository",
        "secretmanager/secret:Secret",
    )
    found = [item for item in with_more.recorder.declared if "labels" in item.inputs or item.type.endswith(labelled)]
    assert len(found) > 1
    ours = {"managed-by": "gemma-serving", "gemma-serving-max-age": "28800", "gemma-serving-max-usd": "50"}
    for item in found:
        assert item.inputs["labels"].items() >= ours.items(), item.name


def test_the_idle_time_of_a_tpu_stack_is_a_label_of_its_machine(declared):
    recorder = declared("tpu-v6e1", tpu__idleAfter="2h")
    (capacity,) = [item for item in recorder.declared if item.type == "gcp-tpu:index:QueuedResource"]
    assert capacity.inputs["labels"]["gemma-serving-idle-after"] == "7200"


def test_the_token_of_the_hub_is_for_servers_that_download_from_it(declared, subtests):
    drafter = {"model": "google/gemma-4-E2B-it-assistant", "num_speculative_tokens": 3}
    in_bucket = {"weights": "bucket", "hfTokenSecret": WHOLE["hfTokenSecret"]}
    for name, changes, is_needed in (
        ("the weights are in the bucket", {}, False),
        ("a name for clients is no download", {"vllm__servedModelName": "org/name"}, False),
        ("a template in the image", {"vllm__extraArgs": ["--chat-template=/vllm/template.jinja"]}, False),
        ("a drafter of the hub", {"vllm__speculativeConfig": drafter, "vllm__maxNumSeqs": 16}, True),
        ("an adapter of the hub", {"vllm__extraArgs": ["--lora-modules=a=org/adapter"]}, True),
        ("weights of the hub", {"weights": "hub"}, True),
    ):
        with subtests.test(name):
            accepted = {"acceptFindings": ["ARG01", "ARG02", "MOD03", "WRK05"]}
            recorder = declared("tpu-v6e1", **{**in_bucket, **accepted, **changes})
            grants = {grant.inputs["secretId"] for grant in recorder.all("secretIamMember")}
            assert ("HF_TOKEN" in servers_text(recorder)) is is_needed
            assert ("token" in grants) is is_needed
            assert bool(recorder.all("routerNat:RouterNat")) is is_needed, "and it needs a way there"


def test_an_adapter_without_a_staged_copy_stops_up_but_not_the_command_that_stages_it(declared, monkeypatch):
    lora = {"adapters": {"sql": "gs://a1/sql"}}
    with pytest.raises(CommandRefusedError, match=r"(?s)blocked by WRK08.*gemma stage_model"):
        declared("l4-12b-qat", vllm__lora=lora)
    monkeypatch.setenv(STAGING_VARIABLE, "x")
    declared("l4-12b-qat", vllm__lora=lora)


def test_a_machine_connects_to_port_443_alone_unless_it_needs_or_is_given_more(declared, subtests):
    for name, changes, ports in (
        ("weights in the bucket", {"weights": "bucket"}, ["443"]),
        ("and docker from a package", {"weights": "bucket", "tpu__api": "compute-engine"}, ["443", "80"]),
        ("weights of the hub", {"weights": "hub"}, None),
        ("the setting", {"weights": "bucket", "tpu__egress": "open"}, None),
    ):
        with subtests.test(name):
            recorder = declared("tpu-v6e1", **changes)
            rules = [rule.inputs for rule in recorder.all("compute/firewall")]
            egress = [rule for rule in rules if rule["direction"] == "EGRESS"]
            assert [rule["allows"][0]["ports"] for rule in egress if "allows" in rule] == ([ports] if ports else [])
            assert sum("denies" in rule for rule in egress) == (1 if ports else 0)


def test_a_container_is_privileged_from_the_start_only_by_the_setting(declared):
    for changes, words in (({}, None), ({"tpu__container": "privileged"}, "privileged")):
        recorder = declared("tpu-v6e1", **changes)
        metadata = recorder.one("gcp-tpu:index:QueuedResource").inputs["metadata"]
        assert json.loads(metadata["gemma-serving-rollout"]).get("container") == words
        assert "container" not in json.loads(metadata["gemma-serving-document"]), "a change would restart the server"


def test_a_given_network_is_used_and_none_is_made(declared):
    network, subnetwork = "projects/host/global/networks/n", "projects/host/regions/us-east5/subnetworks/s"
    given = {"network": network, "subnetwork": subnetwork, "privateGoogleAccess": True}
    recorder = declared("tpu-v6e4", tpu__zones=["us-east5-a"], tpu__existingNetwork=given)
    inputs = recorder.one("gcp-tpu:index:QueuedResource").inputs
    assert (inputs["network"], inputs["subnetwork"]) == (network, subnetwork)
    assert recorder.all("compute/") == []


def test_a_plan_that_blocks_stops_before_anything_is_declared(refusal):
    message = refusal(CommandRefusedError, "tpu-v6e4", vllm__tensorParallelSize=8)
    assert "TPU01" in message
    assert "acceptFindings: [FIT07, WRK10, FIT08, TPU01]" in message


def test_acceptance_is_offered_only_if_it_removes_all_blocks(refusal):
    message = refusal(CommandRefusedError, "l4-12b-qat", model="google/gemma-4-31B-it")
    assert "is blocked by FIT01, " in message
    assert "acceptFindings" not in message
    assert "\nMOD07: " in message


def test_a_stacks_name_that_cannot_be_part_of_names_is_one_sentence(refusal, monkeypatch):
    monkeypatch.setattr("gemma_serving.stacks.program.pulumi.get_stack", lambda: "My_Stack")
    message = refusal(NamingError, "tpu-v6e4")
    assert '"My_Stack" becomes part of resource names' in message
    assert message.endswith("Run `pulumi stack rename my-stack --stack My_Stack`.")


def container_of(recorder):
    (server,) = recorder.all("cloudrunv2/service:Service")
    template = server.inputs["template"]
    (container,) = template["containers"]
    volumes = {one["name"]: one for one in template.get("volumes", [])}
    mounts = {one["name"]: one["mountPath"] for one in container.get("volumeMounts", [])}
    return container, volumes, mounts


def test_a_copy_in_memory_may_take_what_the_server_leaves_and_the_starter_knows_where(declared):
    container, volumes, mounts = container_of(
        declared("l4-12b-qat", cloudRun__mount={"mode": "memory"}, cloudRun__compileCache="off")
    )
    assert volumes["weights"]["emptyDir"] == {"medium": "MEMORY", "sizeLimit": "12288Mi"}
    start = json.loads(container["args"][0])
    path = f"{mounts['weights']}/gemma-4-12B-it-qat-w4a16-ct"
    assert start["weights"]["path"] == container["args"][3] == path
    assert list(start) == ["weights"]
    assert "VLLM_CACHE_ROOT" not in {one["name"] for one in container["envs"]}


def test_graphs_are_kept_beside_any_way_of_the_weights(declared):
    recorder = declared("l4-12b-qat")
    container, volumes, mounts = container_of(recorder)
    assert set(volumes) == {"models", "graphs"}
    start = json.loads(container["args"][0])
    assert list(start) == ["graphs"]
    assert start["graphs"]["path"] == {one["name"]: one.get("value") for one in container["envs"]}["VLLM_CACHE_ROOT"]
    assert start["graphs"]["path"].startswith(f"{mounts['graphs']}/")
    (bucket,) = recorder.all("storage/bucket:Bucket")
    rules = bucket.inputs["lifecycleRules"]
    assert {"age": 30, "matchesPrefixes": ["compile-cache/"]} in [rule["condition"] for rule in rules]


@pytest.mark.parametrize(
    ("stack", "changes"),
    [("l4-12b-qat", {"cloudRun__compileCache": "bucket"}), ("tpu-v6e1", {"tpu__compileCache": "bucket"})],
)
def test_the_key_of_archives_is_drawn_and_kept_and_the_server_gets_its_name(declared, monkeypatch, stack, changes):
    kept, version_of = {}, gcp.secretmanager.SecretVersion

    def version(name, args, opts):
        kept[name] = opts.ignore_changes
        return version_of(name, args, opts)

    monkeypatch.setattr(gcp.secretmanager, "SecretVersion", version)
    values = []
    for _ in range(2):
        resources = declared(stack, **changes).declared
        (drawn,) = [one.inputs["secretData"] for one in resources if "secretVersion" in one.type]
        values.append(drawn if isinstance(drawn, str) else drawn["value"])
        others = json.dumps([one.inputs for one in resources if "secretVersion" not in one.type], default=str)
        assert values[-1] not in others
        assert r"\"key\":\"archive-key_id/versions/1\"" in others
        (reader,) = [one.inputs for one in resources if one.name == "archive-key-server"]
        assert reader["role"] == "roles/secretmanager.secretAccessor"
    assert kept == {"archive-key": ["secretData"]}, "the engine keeps the value of the first run"
    assert values[0] != values[1]
    assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in values)


def repositories_of(recorder):
    """Return what each region pulls the image from, as the machine reads it."""
    metadata = recorder.one("gcp-tpu:index:QueuedResource").inputs["metadata"]
    return json.loads(metadata["gemma-serving-image-repositories"])


def test_machines_elsewhere_pull_from_docker_hub_only_through_cloud_nat_that_the_stack_has_for_the_hub(declared):
    from_hub = declared("tpu-v6e1")
    found = repositories_of(from_hub)
    assert found.pop("us-east5") == "us-east5-docker.pkg.dev/my-project/gemma-x"
    assert {*found.values()} == {"docker.io"}
    assert len(found) == len(from_hub.all("routerNat:RouterNat")) - 1 == 2
    assert len(from_hub.all("artifactregistry/repository:Repository")) == 1
    hub_account = {"username": "me", "tokenSecret": "projects/p/secrets/s/versions/1"}
    for changes in ({"weights": "bucket"}, {"dockerHub": hub_account}):
        recorder = declared("tpu-v6e1", **changes)
        hosts = {region: text.partition("/")[0] for region, text in repositories_of(recorder).items()}
        assert hosts == {region: f"{region}-docker.pkg.dev" for region in hosts}, changes
        assert len(hosts) == len(recorder.all("artifactregistry/repository:Repository")) == 3
        assert sorted(one.inputs["location"] for one in recorder.all("repositoryIamMember")) == sorted(hosts)


def test_an_instance_of_compute_engine_has_its_image_nat_tunnel_and_no_right_over_tpus(declared):
    recorder = declared("tpu-v6e1", **TUNNEL, tpu__api="compute-engine", weights="bucket")
    capacity = recorder.one("gcp-tpu:index:QueuedResource").inputs
    assert capacity["api"] == "compute-engine"
    assert capacity["runtimeVersion"] == image_of("v6e-1", "compute-engine")
    assert recorder.all("routerNat:RouterNat")
    roles = {grant.inputs["role"] for grant in recorder.all("AMMember") if "alice" in grant.inputs["member"]}
    assert roles == {*tpu.tunnel_roles("compute-engine", "os-login"), "roles/iam.serviceAccountUser"}
    assert "roles/tpu.admin" not in roles
    argv = tpu.ssh_tunnel(node="projects/p/zones/z/instances/n", zone="z", project="p", api="compute-engine").argv
    assert argv[:4] == ("gcloud", "compute", "ssh", "n")


@pytest.mark.parametrize("api", ["cloud-tpu", "compute-engine"])
def test_with_keys_in_the_metadata_no_one_logs_in_through_os_login(declared, api):
    recorder = declared("tpu-v6e1", **TUNNEL, tpu__api=api, tpu__ssh="metadata-key")
    metadata = recorder.one("gcp-tpu:index:QueuedResource").inputs["metadata"]
    assert metadata["enable-oslogin"] == "FALSE", "in words: the project's metadata may say TRUE"
    roles = {grant.inputs["role"] for grant in recorder.all("projects/iAMMember") if "alice" in grant.inputs["member"]}
    assert roles == set(tpu.tunnel_roles(api, "metadata-key"))
    assert "roles/compute.osLogin" not in roles


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


def test_importing_components_and_stacks_leaves_the_largest_module_of_google_unloaded():
    """`pulumi_gcp.compute` takes most of a second of a processor, and a Cloud Run stack without a network does not need it."""
    code = (
        "import importlib, pkgutil, sys, components, stacks\n"
        "for room in (components, stacks):\n"
        "    for each in pkgutil.walk_packages(room.__path__, f'{room.__name__}.'):\n"
        "        importlib.import_module(each.name)\n"
        "print(type(sys.modules['pulumi_gcp.compute']).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "_LazyModule\n"
