"""The deletions that a teardown prints can be run with the local cloud's gcloud, one for each kind of resource."""

import shlex
import subprocess

import pytest

from gemma_serving.cloud.kinds import KINDS
from localcloud.running.shims import OPERATOR_TOKEN, gcloud, install
from localcloud.tests.running.running_server import environment
from localcloud.tests.services.test_instances import body_of

PROJECT = "local-project"
P = f"projects/{PROJECT}"
COMPUTE = f"/compute/compute/v1/{P}"
REGION, ZONE = "us-east4", "us-east5-a"
ACCOUNT = f"listed@{PROJECT}.iam.gserviceaccount.com"
NETWORK = f"{P}/global/networks/listed"
NODE = {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e"}
QUEUED = {"tpu": {"nodeSpec": [{"parent": f"{P}/locations/{ZONE}", "nodeId": "listed", "node": NODE}]}, "spot": {}}
RULE = {"name": "listed", "network": NETWORK, "allowed": [{"IPProtocol": "tcp"}], "sourceRanges": ["10.0.0.0/8"]}
TPU = f"/tpu/v2alpha1/{P}/locations/{ZONE}"
RUN = f"/run/v2/{P}/locations/{REGION}/services"
REPOSITORIES = f"/artifactregistry/v1/{P}/locations/{REGION}/repositories"
OBJECTS = "/upload/storage/v1/b/listed/o"

V3 = f"/monitoring/v3/{P}"
CONDITION = {"displayName": "c", "conditionPrometheusQueryLanguage": {"query": "vector(1)", "duration": "0s"}}

A_NETWORK = (f"{COMPUTE}/global/networks", {"name": "listed", "autoCreateSubnetworks": False}, {})
A_REQUEST = (f"{TPU}/queuedResources", QUEUED, {"queuedResourceId": "listed"})
AN_ACCOUNT = (f"/iam/v1/{P}/serviceAccounts", {"accountId": "listed"}, {})
MADE = {
    "TPU instance": [AN_ACCOUNT, (f"{COMPUTE}/zones/{ZONE}/instances", body_of("listed", account=ACCOUNT), {})],
    "Cloud Run service": [(RUN, {"template": {"containers": [{"image": "docker.io/x"}]}}, {"serviceId": "listed"})],
    "TPU queued resource": [A_REQUEST],
    "TPU node": [A_REQUEST],
    "router": [A_NETWORK, (f"{COMPUTE}/regions/{REGION}/routers", {"name": "listed", "network": NETWORK}, {})],
    "firewall rule": [A_NETWORK, (f"{COMPUTE}/global/firewalls", RULE, {})],
    "subnetwork": [
        A_NETWORK,
        (
            f"{COMPUTE}/regions/{REGION}/subnetworks",
            {"name": "listed", "network": NETWORK, "ipCidrRange": "10.9.0.0/24"},
            {},
        ),
    ],
    "network": [A_NETWORK],
    "secret": [(f"/secretmanager/v1/{P}/secrets", {"replication": {"automatic": {}}}, {"secretId": "listed"})],
    "service account": [AN_ACCOUNT],
    "image repository": [(REPOSITORIES, {"format": "DOCKER"}, {"repositoryId": "listed"})],
    "alert policy": [(f"{V3}/alertPolicies", {"displayName": "x", "combiner": "OR", "conditions": [CONDITION]}, {})],
    "notification channel": [
        (f"{V3}/notificationChannels", {"type": "email", "labels": {"email_address": "a@example.com"}}, {})
    ],
    "dashboard": [(f"/monitoring/v1/{P}/dashboards", {"displayName": "x", "mosaicLayout": {"columns": 48}}, {})],
    "bucket": [
        ("/storage/storage/v1/b", {"name": "listed"}, {"project": PROJECT}),
        (OBJECTS, {"x": 1}, {"uploadType": "media", "name": "weights/a"}),
        (OBJECTS, {"x": 1}, {"uploadType": "media", "name": "b"}),
    ],
}
"""Requests that make a resource of each kind, the last one itself (but for a node and a bucket)."""
READ = {"TPU node": f"{TPU}/nodes/listed", "bucket": "/storage/storage/v1/b/listed"}


def make(client, kind):
    """Make a resource of a kind. Return its id, its place and the path to read it."""
    for path, body, query in MADE[kind]:
        answered = client.ok("POST", path, body, **query)
    while (
        kind in {"TPU queued resource", "TPU node"} and client.call("GET", READ["TPU node"])[1].get("state") != "READY"
    ):
        pass
    # Google names what Cloud Monitoring has.
    named = str(answered.get("name") or "").rpartition("/")[2] if "/monitoring/" in MADE[kind][-1][0] else "listed"
    name = ACCOUNT if kind == "service account" else named
    collection = MADE[kind][-1][0]
    place = ZONE if ZONE in collection else REGION
    return name, place, READ.get(kind, f"{collection}/{name}")


@pytest.fixture
def ready(own_client, monkeypatch):
    monkeypatch.setenv("LOCALCLOUD_URL", own_client.base_url)
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", own_client.token)
    monkeypatch.delenv("CLOUDSDK_CORE_ACCOUNT", raising=False)
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    return own_client


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_the_printed_command_deletes_a_resource_of_its_kind(ready, kind):
    name, place, path = make(ready, kind.kind)
    assert ready.call("GET", path)[0] == 200
    printed = shlex.split(kind.delete_command(name, project=PROJECT, location=place))
    assert gcloud.main(printed[1:]) == 0
    assert ready.call("GET", path)[0] == 404


def test_the_installed_command_is_the_owners_whoever_the_shell_belongs_to(own_cloud, tmp_path):
    token = own_cloud.cloud.tokens.issue_access_token(own_cloud.cloud.operator)
    command = install(tmp_path / "bin", environment={OPERATOR_TOKEN: token}) / "gcloud"
    shell = {"LOCALCLOUD_URL": own_cloud.base_url, "GOOGLE_OAUTH_ACCESS_TOKEN": "somebody-else"}
    said = subprocess.run(
        [command, "config", "get", "account"], env=environment(**shell), capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stdout.strip()) == (0, own_cloud.cloud.owner), said.stderr


def test_a_refusal_is_googles_sentence_and_code_1(ready, capsys):
    make(ready, "subnetwork")
    assert gcloud.main(["compute", "networks", "delete", "listed", f"--project={PROJECT}"]) == 1
    assert "is already being used by" in capsys.readouterr().err
    words = ["secrets", "delete", "nothing", f"--project={PROJECT}", "--account=alice@example.com"]
    assert gcloud.main(words) == 1
    assert "Permission 'secretmanager.secrets.delete' denied" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    ["secrets delete --project=p", "run services delete x --project=p", "secrets delete x --project=p --etag=1"],
)
def test_a_command_that_lacks_something_is_refused(ready, capsys, words):
    assert gcloud.main(words.split()) == 1
    assert "of the stand-in needs one name" in capsys.readouterr().err
