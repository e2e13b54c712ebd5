"""States that an earlier release made: the present code takes them over and replaces nothing."""

import json
import shutil
from pathlib import Path

import pytest

STATES = Path(__file__).parents[1] / "fixtures" / "state"
SERVICE = "gcp:cloudrunv2/service:Service::vllm"
SERVER = "gcp-tpu:index:QueuedResource::capacity"
# The API through which the provider reads the project joined those that a stack enables; enabling it again is harmless.
NEW_API = "gcp:projects/service:Service::cloudresourcemanager"
# What programs read of a stack, which is no resource of the cloud.
DETAILS = "gemma-serving:index:StackDetails::details"
PROVIDER = "pulumi:providers:gcp::gcp"
"""Its calls count for the stack's project from now on: an update of the provider alone."""
# TPU machines use OS Login since then: its API joined too.
NEW_TPU_APIS = (NEW_API, "gcp:projects/service:Service::oslogin")
# Stacks are watched by default since then: an API, a component, its policies, and a dashboard on TPU.
WATCHING = ("gcp:projects/service:Service::monitoring", "gemma-serving:index:Observability")
WATCHING_OF_RUN, WATCHING_OF_TPU = 1 + 1 + 4, 1 + 1 + 15 + 1
COLLECTOR = "gemma-serving-collector"
ALICE = "user:alice@example.com"
# The hub never had the id that the earlier release's file names; who serves it has copied files of that name into the bucket.
ABSENT_ID = "google/gemma-4-26B-A4B-it-qat-w4a16-ct"
PRESENT_ID = "xbill9/gemma-4-26B-A4B-it-qat-q4_0-w4a16-ct"

NEW_REPOSITORIES = tuple(
    f"{kind}::image-{region}{reader}"
    for kind, reader in (
        ("gcp:artifactregistry/repository:Repository", ""),
        ("gcp:artifactregistry/repositoryIamMember:RepositoryIamMember", "-server"),
    )
    for region in ("europe-west4", "southamerica-west1")
)
REPOSITORIES = "gemma-serving-image-repositories"
ROLLOUT = "gemma-serving-rollout"

# What closes a server since then. A running one restarts with it, once.
CLOSED = {"--allowed-origins=[]", "--allowed-media-domains=none.invalid", "--load-format=safetensors"}
SWITCHES = {"VLLM_MEDIA_URL_ALLOW_REDIRECTS", "VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"}

pytestmark = [pytest.mark.engine, pytest.mark.long]


def opened(arguments):
    """The arguments without what closes the server; all of that has to be there."""
    assert set(arguments) >= CLOSED
    return [argument for argument in arguments if argument not in CLOSED]


def imported(workspace, stack, folder=STATES):
    """Import a stored state with the settings of its time, and return the settings file."""
    shutil.copy2(folder / f"Pulumi.{stack}.yaml", workspace.folder / "project")
    workspace.pulumi("stack", "init", stack)
    workspace.pulumi("stack", "import", "--stack", stack, "--file", folder / f"{stack}.json")
    return workspace.folder / "project" / f"Pulumi.{stack}.yaml"


def preview(workspace, stack, folder=STATES):
    """Import a stored state with the settings of its time, and preview it without asking the cloud."""
    imported(workspace, stack, folder)
    return workspace.pulumi("preview", "--json", "--stack", stack).json


def changes(previewed):
    """The changed resources, without those that watch the stack, which are new."""
    changed = {step["urn"]: step for step in previewed["steps"] if step["op"] != "same"}
    watching = [urn for urn in changed if any(words in urn for words in WATCHING)]
    assert {changed.pop(urn)["op"] for urn in watching} == {"create"}
    return changed


@pytest.mark.parametrize("stack", ["tpu-v6e4", "l4-qat"])
def test_a_stored_state_holds_no_path_of_the_machine_that_made_it(stack):
    text = (STATES / f"{stack}.json").read_text()
    assert not [word for word in ("/root/", "/home/", "/tmp/", "/work/", "sourcePosition") if word in text]


def test_a_cloud_run_stack_of_an_earlier_release_loses_the_volume_that_cloud_run_refuses(workspace):
    """Earlier releases mounted a volume at /dev/shm, a disallowed path of Cloud Run. It goes in place; all else stays."""
    path = imported(workspace, "l4-qat")
    text = path.read_text()
    refused = workspace.pulumi("preview", "--stack", "l4-qat", expect=None)
    assert refused.code != 0
    assert f"MOD04: {ABSENT_ID} does not exist on the Hugging Face Hub" in refused.text
    assert f"model: {PRESENT_ID}" in refused.text
    path.write_text(text.replace("config:\n", "config:\n  gemma-serving:acceptFindings: [MOD04]\n"))
    previewed = workspace.pulumi("preview", "--json", "--stack", "l4-qat").json
    assert previewed["changeSummary"] == {"same": 15, "update": 2, "create": 2 + WATCHING_OF_RUN}
    found = changes(previewed)
    ((service, step),) = ((urn, step) for urn, step in found.items() if not urn.endswith((NEW_API, DETAILS, PROVIDER)))
    assert service.endswith(SERVICE)
    old, new = (step[state]["inputs"]["template"] for state in ("oldState", "newState"))
    assert old["volumes"].pop(0)["name"] == "shm"
    assert old["containers"][0]["volumeMounts"].pop(0)["mountPath"] == "/dev/shm"
    container = new["containers"][0]
    container["args"] = opened(container["args"])
    switches = [variable for variable in container["envs"] if variable["name"] in SWITCHES]
    assert {variable["value"] for variable in switches} == {"0"}
    assert len(switches) == len(SWITCHES)
    container["envs"] = [variable for variable in container["envs"] if variable not in switches]
    assert old == new
    old, new = (step[state]["inputs"] for state in ("oldState", "newState"))
    assert {**old, "template": None} == {**new, "template": None}
    # With the id that exists: one new revision, from another folder of the same bucket. Nothing is replaced.
    path.write_text(text.replace(ABSENT_ID, PRESENT_ID))
    moved = workspace.pulumi("preview", "--json", "--stack", "l4-qat").json
    assert moved["changeSummary"] == {"same": 15, "update": 2, "create": 2 + WATCHING_OF_RUN}
    step = next(step for urn, step in changes(moved).items() if urn.endswith(SERVICE))
    assert step["op"] == "update"
    assert PRESENT_ID.partition("/")[2] in str(step["newState"]["inputs"]["template"]["containers"][0]["args"])


def test_a_tpu_stack_of_an_earlier_release_gets_a_new_script_and_os_login_at_most(workspace):
    """Earlier releases let every SSH key of the project's metadata log in as root. OS Login comes in place: the node's metadata is patched."""
    previewed = preview(workspace, "tpu-v6e4")
    # Earlier releases had one repository, in the first region. Now each region has one, so that a machine pulls from nearby.
    assert sum(previewed["changeSummary"].values()) == 34 + 3 + len(NEW_REPOSITORIES) + WATCHING_OF_TPU
    assert previewed["changeSummary"]["create"] == 3 + len(NEW_REPOSITORIES) + WATCHING_OF_TPU
    assert set(previewed["changeSummary"]) <= {"same", "update", "create"}
    for urn, step in changes(previewed).items():
        if urn.endswith((*NEW_TPU_APIS, *NEW_REPOSITORIES, DETAILS)):
            assert step["op"] == "create"
            continue
        if urn.endswith(PROVIDER):
            assert step["op"] == "update"
            continue
        assert (urn.endswith(SERVER), step["op"]) == (True, "update")
        assert set(step["detailedDiff"]) == {
            'metadata["startup-script"]',
            'metadata["enable-oslogin"]',
            'metadata["gemma-serving-document"]',
            f'metadata["{REPOSITORIES}"]',
            f'metadata["{ROLLOUT}"]',
            f'metadata["{COLLECTOR}"]',
            "ready.deadlineMetadataKey",
        }
        old, new = step["oldState"]["inputs"], step["newState"]["inputs"]
        assert new["metadata"].pop("enable-oslogin") == "TRUE"
        for inputs in (old, new):
            del inputs["metadata"]["startup-script"]
        was, document = (json.loads(inputs["metadata"].pop("gemma-serving-document")) for inputs in (old, new))
        document["args"] = opened(document["args"])
        assert "--host=127.0.0.1" in document["args"]
        was["args"] = [word.replace("--host=0.0.0.0", "--host=127.0.0.1") for word in was["args"]]
        assert {document["env"].pop(name) for name in SWITCHES} == {"0"}
        assert document == was
        # Not in the document, which a machine with an older agent could not read then.
        assert "europe-west4-docker.pkg.dev" in new["metadata"].pop(REPOSITORIES)
        # The limits of a change, beside the document for the same reason.
        assert "readyTimeoutS" in new["metadata"].pop(ROLLOUT)
        # The collector, beside the document too: it does not restart the server.
        assert "otelcol-google" in new["metadata"].pop(COLLECTOR)
        # Where the provider tells the machine when Google deletes it.
        assert new["ready"].pop("deadlineMetadataKey") == "gemma-serving-ends-at"
        # Later releases send the validity of the request. It counts for later requests only: no change is shown.
        assert new.pop("validUntilDurationS") == 3600
        assert "validUntilDurationS" not in old
        # Words for people: a change of them is none.
        assert new.pop("nextSteps")
        assert new.pop("agentAbilities")
        # The provider's default: states of earlier releases, which name no API, are of the Cloud TPU API. No change is shown.
        assert new.pop("api") == "cloud-tpu"
        assert old == new


def with_tunnel_member(state):
    """A stored state with the one grant that earlier releases made for a member of the tunnel."""
    resources = state["deployment"]["resources"]
    logs = next(each for each in resources if each["urn"].endswith("::server-logging.logWriter"))
    urn = f"{logs['urn'].partition('::gemma-serving:index')[0]}::gcp:projects/iAMMember:IAMMember::tunnel-{ALICE}"
    role = "roles/iap.tunnelResourceAccessor"
    given = {"member": ALICE, "project": "local-project", "role": role}
    root = next(each["urn"] for each in resources if each["type"] == "pulumi:pulumi:Stack")
    grant = {**logs, "urn": urn, "id": f"local-project/{role}/{ALICE}", "parent": root}
    grant.update(inputs={"__defaults": [], **given}, outputs={"etag": "BwAAAAAC", **given})
    grant.update(dependencies=[], propertyDependencies={name: [] for name in given})
    return {**state, "deployment": {**state["deployment"], "resources": [*resources, grant]}}


def test_the_grant_of_a_tunnel_member_is_made_anew_before_the_old_one_goes(workspace, tmp_path):
    """A condition cannot be added in place. New names make the engine create the new grants first, so that access is never lost."""
    workspace.pulumi("stack", "rm", "--yes", "--force", "tpu-v6e4", expect=None)
    path = tmp_path / "tpu-v6e4.json"
    path.write_text(json.dumps(with_tunnel_member(json.loads((STATES / "tpu-v6e4.json").read_text()))))
    settings, wait = tmp_path / "Pulumi.tpu-v6e4.yaml", "    waitPerZone: 30m\n"
    original = (STATES / settings.name).read_text()
    settings.write_text(original.replace(wait, f"{wait}    tunnelMembers: ['{ALICE}']\n"))
    previewed = preview(workspace, "tpu-v6e4", folder=tmp_path)
    steps = [(urn.rpartition("::")[2], step["op"]) for urn, step in changes(previewed).items() if "AMMember" in urn]
    # The engine creates the four in any order, and deletes the old one when they are there.
    assert sorted(steps[:-1]) == [
        (f"tunnel-admin-{ALICE}", "create"),
        (f"tunnel-osLogin-{ALICE}", "create"),
        (f"tunnel-serviceAccountUser-{ALICE}", "create"),
        (f"tunnel-tunnelResourceAccessor-{ALICE}", "create"),
    ]
    assert steps[-1] == (f"tunnel-{ALICE}", "delete")
