"""Rules that Google's documents state in sentences are enforced, and the refusal repeats the sentence."""

import base64
import tomllib
from importlib.resources import files

import pytest

from localcloud.rest import stated_rules
from localcloud.rest.stated_rules import REQUEST_ID, rules

P = "/projects/local-project"
SERVICES = f"/run/v2{P}/locations/us-east4/services"
NETWORKS = f"/compute/compute/beta{P}/global/networks"
FIREWALLS = f"/compute/compute/beta{P}/global/firewalls"
ROUTERS = f"/compute/compute/beta{P}/regions/us-east4/routers"
SECRETS = f"/secretmanager/v1{P}/secrets"
REPOSITORIES = f"/artifactregistry/v1{P}/locations/us-east4/repositories"
QUEUE = f"/tpu/v2alpha1{P}/locations/us-east5-a/queuedResources"
BUCKETS = "/storage/storage/v1/b"
PROJECT = f"/cloudresourcemanager/v1{P}"
POLICIES = f"/monitoring/v3{P}/alertPolicies"
CHANNELS = f"/monitoring/v3{P}/notificationChannels"
DASHBOARDS = f"/monitoring/v1{P}/dashboards"
ZONE = "projects/local-project/locations/us-east5-a"
MACHINE = {"acceleratorType": "v6e-4", "runtimeVersion": "v2-alpha-tpuv6e"}
DEFAULT = "projects/local-project/global/networks/default"
AUTOMATIC = {"replication": {"automatic": {}}}
VIEWERS = {"role": "roles/viewer", "members": ["user:a@example.com"]}


def service(**container):
    return {"template": {"containers": [{"image": "docker.io/x", **container}]}}


def template(**changes):
    return {"template": {**service()["template"], **changes}}


def firewall(**changes):
    return {"name": "stated", "network": DEFAULT, "allowed": [{"IPProtocol": "tcp"}], **changes}


def nat(**changes):
    one = {"name": "n", "natIpAllocateOption": "AUTO_ONLY", "sourceSubnetworkIpRangesToNat": "LIST_OF_SUBNETWORKS"}
    return {"name": "stated", "network": DEFAULT, "nats": [{**one, **changes}]}


def node(**changes):
    spec = {"parent": ZONE, "nodeId": "n", "node": {**MACHINE, **changes}}
    return {"tpu": {"nodeSpec": [spec]}}


def policy(**changes):
    return {"policy": {"bindings": [VIEWERS], **changes}}


def docker(**changes):
    return {"format": "DOCKER", **changes}


def remote(**changes):
    return docker(mode="REMOTE_REPOSITORY", remoteRepositoryConfig=changes)


def bucket(**changes):
    return {"name": "stated", **changes}


def alert(condition, **changes):
    return {"displayName": "stated", "combiner": "OR", "conditions": [condition], **changes}


def promql(**changes):
    return alert({"displayName": "c", "conditionPrometheusQueryLanguage": {"query": "vector(1)", **changes}})


def dashboard(columns=48, chart=None, **tile):
    """A dashboard with one tile."""
    widget = {
        "widget": {
            "xyChart": {"dataSets": [{"timeSeriesQuery": {"prometheusQuery": "up"}}]} if chart is None else chart
        }
    }
    tiles = [{"width": 24, "height": 16, **widget, **tile}]
    return {"displayName": "stated", "mosaicLayout": {"columns": columns, "tiles": tiles}}


CONDITION = {"title": "t", "expression": "true"}
HTTP = {"path": "/"}
IN_PROJECT = {"project": "local-project"}
HUB_USER = {"usernamePasswordCredentials": {"username": "u", "passwordSecretVersion": "hub"}}

# Where a body is sent: path and query.
ACCOUNT, ALERT, CHANNEL = (f"/iam/v1{P}/serviceAccounts", {}), (POLICIES, {}), (CHANNELS, {})
BUCKET, DASHBOARD, FIREWALL = (BUCKETS, IN_PROJECT), (DASHBOARDS, {}), (FIREWALLS, {})
POLICY, REPOSITORY, ROUTER = (f"{PROJECT}:setIamPolicy", {}), (REPOSITORIES, {"repositoryId": "stated"}), (ROUTERS, {})
QUEUED, SECRET, SERVICE = (
    (QUEUE, {"queuedResourceId": "stated"}),
    (SECRETS, {"secretId": "stated"}),
    (SERVICES, {"serviceId": "stated"}),
)
VERSION = (f"{SECRETS}/stated:addVersion", {})
SUBNETWORK = (f"/compute/compute/beta{P}/regions/us-east4/subnetworks", {})

OVERLAPPING = {"name": "s", "network": DEFAULT, "ipCidrRange": "10.128.0.0/9"}
MOUNTED = service(volumeMounts=[{"name": "v", "mountPath": "/a:b"}])
MOUNTED["template"]["volumes"] = [{"name": "v", "emptyDir": {}}]
FLEX_START = {**node(), "provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "600s"}}
BACKWARDS = {"validInterval": {"startTime": "2099-01-02T00:00:00Z", "endTime": "2099-01-01T00:00:00Z"}}

CASES = [
    (
        "upstream-password",
        REPOSITORY,
        remote(upstreamCredentials=HUB_USER),
        "UsernamePasswordCredentials.passwordSecretVersion",
    ),
    ("policy-absent", POLICY, {"updateMask": "bindings"}, "SetIamPolicyRequest.policy"),
    ("binding-empty", POLICY, policy(bindings=[{"role": "roles/viewer"}]), "Policy.bindings"),
    ("condition-version", POLICY, policy(bindings=[{**VIEWERS, "condition": CONDITION}], version=1), "Policy.version"),
    ("firewall-protocol", FIREWALL, firewall(allowed=[{"ports": ["80"]}]), "Firewall.allowed"),
    ("firewall-port", FIREWALL, firewall(allowed=[{"IPProtocol": "tcp", "ports": ["http"]}]), "Firewall.allowed"),
    ("firewall-unknown-protocol", FIREWALL, firewall(allowed=[{"IPProtocol": "tcq"}]), "Firewall.allowed"),
    ("firewall-priority", FIREWALL, firewall(priority=65536), "Firewall.priority"),
    ("nat-name", ROUTER, nat(name="N"), "RouterNat.name"),
    ("container-port", SERVICE, service(ports=[{"containerPort": 65536}]), "ContainerPort.containerPort"),
    ("variable-length", SERVICE, service(env=[{"name": "x" * 32769, "value": "x"}]), "EnvVar.name"),
    ("http-port", SERVICE, service(startupProbe={"httpGet": {**HTTP, "port": 65536}}), "HTTPGetAction.port"),
    ("tcp-port", SERVICE, service(startupProbe={"tcpSocket": {"port": 65536}}), "TCPSocketAction.port"),
    (
        "interface-empty",
        SERVICE,
        template(vpcAccess={"networkInterfaces": [{"tags": ["t"]}]}),
        "NetworkInterface.network",
    ),
    ("node-selector", SERVICE, template(nodeSelector={}), "NodeSelector.accelerator"),
    (
        "variable-secret",
        SERVICE,
        service(env=[{"name": "T", "valueSource": {"secretKeyRef": {"version": "1"}}}]),
        "SecretKeySelector.secret",
    ),
    ("payload-absent", VERSION, {}, "AddSecretVersionRequest.payload"),
    ("dashboard-name", DASHBOARD, {"mosaicLayout": {"columns": 48}}, "Dashboard.displayName"),
    ("dashboard-columns", DASHBOARD, dashboard(columns=49), "MosaicLayout.columns"),
    ("dashboard-tile-outside", DASHBOARD, dashboard(xPos=25), "MosaicLayout.tiles"),
    ("dashboard-tile-left", DASHBOARD, dashboard(xPos=-1), "MosaicLayout.tiles"),
    ("dashboard-tile-width", DASHBOARD, dashboard(width=0), "Tile.width"),
    ("dashboard-tile-height", DASHBOARD, dashboard(height=0), "Tile.height"),
    ("dashboard-tile-above", DASHBOARD, dashboard(yPos=-1), "Tile.yPos"),
    ("dashboard-chart", DASHBOARD, dashboard(chart={}), "XyChart.dataSets"),
    ("dashboard-query", DASHBOARD, dashboard(chart={"dataSets": [{"plotType": "LINE"}]}), "DataSet.timeSeriesQuery"),
    ("alert-content", ALERT, {**promql(), "documentation": {"content": "x" * 8193}}, "Documentation.content"),
    ("alert-content-bytes", ALERT, {**promql(), "documentation": {"content": "é" * 5121}}, "Documentation.content"),
    ("alert-subject", ALERT, {**promql(), "documentation": {"subject": "x" * 10241}}, "Documentation.subject"),
    ("alert-mime-type", ALERT, {**promql(), "documentation": {"mimeType": "text/plain"}}, "Documentation.mimeType"),
    ("alert-log-filter", ALERT, alert({"displayName": "c", "conditionMatchedLog": {}}), "LogMatch.filter"),
    ("alert-query", ALERT, promql(query=""), "PrometheusQueryLanguageCondition.query"),
    ("alert-rule", ALERT, promql(alertRule="queue-waiting"), "PrometheusQueryLanguageCondition.alertRule"),
    ("alert-rule-length", ALERT, promql(alertRule="x" * 2049), "PrometheusQueryLanguageCondition.alertRule"),
    ("alert-group-length", ALERT, promql(ruleGroup="x" * 2049), "PrometheusQueryLanguageCondition.ruleGroup"),
    ("alert-label", ALERT, promql(labels={"se-verity": "page"}), "PrometheusQueryLanguageCondition.labels"),
]
"""Id, where the body is sent, the body, and the place of the rule. Each body breaks one rule."""


ELSEWHERE = [
    ("repository-id", (REPOSITORIES, {}), docker(), "Required parameter: repository_id"),
    ("repository-label", REPOSITORY, docker(labels={"1x": "y"}), "Invalid label key '1x'"),
    ("account-id", ACCOUNT, {}, "Required parameter: accountId"),
    ("account-id-short", ACCOUNT, {"accountId": "short"}, "Invalid accountId 'short'"),
    ("service-id-hyphen", (SERVICES, {"serviceId": "x-"}), service(), "Invalid serviceId 'x-'"),
    ("service-id-length", (SERVICES, {"serviceId": "x" * 50}), service(), "Invalid serviceId 'xxx"),
    ("service-template", SERVICE, {"ingress": "INGRESS_TRAFFIC_ALL"}, "service.template: it must be given"),
    ("variable-name", SERVICE, service(env=[{"value": "x"}]), "env[0].name: '' is empty"),
    ("mount-path", SERVICE, service(volumeMounts=[{"name": "v"}]), "no volume is named 'v'"),
    ("mount-colon", SERVICE, MOUNTED, "'/a:b' must be an absolute path without ':'"),
    ("volume-name", SERVICE, template(volumes=[{"emptyDir": {}}]), "volumes[0].name: ''"),
    ("secret-id", (SECRETS, {}), AUTOMATIC, "Required parameter: secretId"),
    ("secret-label", SECRET, {**AUTOMATIC, "labels": {"X": "1"}}, "Invalid label key 'X'"),
    ("secret-labels", SECRET, {**AUTOMATIC, "labels": {f"a{i}": "" for i in range(65)}}, "at most 64 are allowed"),
    ("firewall-range", FIREWALL, firewall(sourceRanges=["x"]), "Must be a CIDR address range"),
    (
        "firewall-egress",
        FIREWALL,
        firewall(direction="EGRESS", sourceTags=["t"]),
        "an EGRESS rule takes destinationRanges",
    ),
    ("firewall-tag", FIREWALL, firewall(targetTags=["A"]), "'resource.targetTags[0]': 'A'. Must be a match of regex"),
    ("alert-auto-close", ALERT, {**promql(), "alertStrategy": {"autoClose": "600s"}}, "at least 30 minutes"),
    ("alert-condition", ALERT, alert({"displayName": "c"}), "conditions[0] must hold a condition"),
    (
        "channel-address",
        CHANNEL,
        {"type": "email", "labels": {"email_address": "example.com"}},
        "Email address is not valid",
    ),
    ("repository-upstream", REPOSITORY, remote(description="d"), "upstream repository must be given"),
    (
        "bucket-prevention",
        BUCKET,
        bucket(iamConfiguration={"publicAccessPrevention": "on"}),
        "'on' is not inherited or enforced",
    ),
    (
        "bucket-soft-delete",
        BUCKET,
        bucket(softDeletePolicy={"retentionDurationSeconds": "3600"}),
        "3600 is neither 0 nor from 604800",
    ),
    (
        "bucket-action",
        BUCKET,
        bucket(lifecycle={"rule": [{"action": {"type": "Archive"}, "condition": {"age": 1}}]}),
        "'Archive' is not a supported lifecycle action",
    ),
    (
        "bucket-condition",
        BUCKET,
        bucket(lifecycle={"rule": [{"action": {"type": "Delete"}}]}),
        "a lifecycle rule needs a condition",
    ),
    ("subnetwork-overlap", SUBNETWORK, OVERLAPPING, "conflicts with existing"),
    ("nat-tier", ROUTER, nat(autoNetworkTier="GOLD"), "(TYPE_ENUM)"),
    ("node-absent", QUEUED, {"tpu": {"nodeSpec": [{"parent": ZONE, "nodeId": "n"}]}}, "node' must be given"),
    ("node-id", QUEUED, {"tpu": {"nodeSpec": [{"parent": ZONE, "node": MACHINE}]}}, "Invalid node id ''"),
    (
        "nodes-and-id",
        QUEUED,
        {"tpu": {"nodeSpec": [{"parent": ZONE, "nodeId": "n", "multiNodeParams": {"nodeCount": 2}, "node": MACHINE}]}},
        "node_id and multi_node_params cannot both be given",
    ),
    (
        "nodes-count",
        QUEUED,
        {"tpu": {"nodeSpec": [{"parent": ZONE, "multiNodeParams": {"nodeIdPrefix": "n"}, "node": MACHINE}]}},
        "node_count must be from 1",
    ),
    ("validity-interval", QUEUED, {**FLEX_START, "queueingPolicy": BACKWARDS}, "valid-until time must lie after"),
    ("node-parent", QUEUED, {"tpu": {"nodeSpec": [{"nodeId": "n"}]}}, "must be the queued resource's own"),
]
"""Id, where the body is sent, the body, and the error message: stated rules that `localcloud.services` enforces."""


def of_place(place):
    """The sentences of a rule, given as `Schema.field` without the prefix of Cloud Run's schemas."""
    schema, _, field = place.partition(".")
    return [
        rule.sentence
        for key, of_schema in rules().items()
        for rule in of_schema
        if key.partition(" ")[2].removeprefix("GoogleCloudRunV2").removeprefix("GoogleIamV1") == schema
        and rule.field == field
    ]


@pytest.mark.parametrize(("sent", "body", "place"), [pytest.param(*case, id=name) for name, *case in CASES])
def test_a_body_is_refused_with_googles_sentence(client, sent, body, place):
    path, query = sent
    status, message = client.error("POST", path, body, **query)
    assert status == 400
    assert message.startswith("Invalid value at ")
    assert [sentence for sentence in of_place(place) if sentence in message] != []


@pytest.mark.parametrize(("sent", "body", "says"), [pytest.param(*case, id=name) for name, *case in ELSEWHERE])
def test_the_services_refuse_what_else_is_stated(client, sent, body, says):
    path, query = sent
    status, message = client.error("POST", path, body, **query)
    assert status in {400, 404}
    assert says in message


def test_a_patch_needs_an_update_mask(client):
    client.ok("POST", SECRETS, AUTOMATIC, secretId="stated-mask")
    email = "local-operator@local-project.iam.gserviceaccount.com"
    for path, body in (
        (f"{SECRETS}/stated-mask", {"labels": {}}),
        (f"/iam/v1{P}/serviceAccounts/{email}", {"serviceAccount": {"displayName": "x"}}),
    ):
        assert "The update mask is required" in client.error("PATCH", path, body)[1]


def test_a_payload_has_at_most_64_kib(client):
    client.ok("POST", SECRETS, AUTOMATIC, secretId="stated-payload")
    most = base64.b64encode(bytes(65_536)).decode()
    client.ok("POST", f"{SECRETS}/stated-payload:addVersion", {"payload": {"data": most}})
    more = base64.b64encode(bytes(65_537)).decode()
    message = client.error("POST", f"{SECRETS}/stated-payload:addVersion", {"payload": {"data": more}})[1]
    assert "at most 65536 are allowed" in message


def test_an_account_of_the_same_name_is_refused(client):
    client.ok("POST", f"/iam/v1{P}/serviceAccounts", {"accountId": "stated-twice"})
    assert client.error("POST", f"/iam/v1{P}/serviceAccounts", {"accountId": "stated-twice"})[0] == 409


def test_a_live_object_can_be_a_condition(client):
    client.ok("POST", BUCKETS, {"name": "stated-live"}, **IN_PROJECT)
    upload = {"uploadType": "media", "name": "x", "ifGenerationNotMatch": 0}
    assert client.error("POST", "/upload/storage/v1/b/stated-live/o", {"x": 1}, **upload)[0] == 412
    del upload["ifGenerationNotMatch"]
    client.ok("POST", "/upload/storage/v1/b/stated-live/o", {"x": 1}, **upload)
    client.ok("POST", "/upload/storage/v1/b/stated-live/o", {"x": 2}, **upload, ifGenerationNotMatch=0)


def test_the_replication_of_a_secret_stays(client):
    client.ok("POST", SECRETS, AUTOMATIC, secretId="stated-replication")
    change = {"replication": {"userManaged": {"replicas": [{"location": "us-east4"}]}}}
    message = client.error("PATCH", f"{SECRETS}/stated-replication", change, updateMask="replication")[1]
    assert "field 'replication' cannot be updated" in message


def test_an_upload_without_a_name_is_refused(client):
    client.ok("POST", BUCKETS, {"name": "stated-name"}, **IN_PROJECT)
    assert client.error("POST", "/upload/storage/v1/b/stated-name/o", {}, uploadType="media") == (400, "Required")


def test_a_list_of_services_names_a_region(client):
    assert client.error("GET", f"/run/v2{P}/locations/mars/services")[0] == 403


def test_a_repository_of_the_same_name_is_refused(client):
    client.ok("POST", REPOSITORIES, docker(), repositoryId="stated-twice")
    assert client.error("POST", REPOSITORIES, docker(), repositoryId="stated-twice")[0] == 409


def test_every_stated_rule_has_a_case():
    covered = {sentence for *_, place in CASES for sentence in of_place(place)}
    assert {rule.sentence for of_schema in rules().values() for rule in of_schema} - covered == set()


@pytest.mark.parametrize("given", ["abc", "00000000-0000-0000-0000-000000000000"])
def test_a_request_id_that_is_no_uuid_is_refused(client, given):
    body = {"name": "stated", "autoCreateSubnetworks": False}
    assert REQUEST_ID in client.error("POST", NETWORKS, body, requestId=given)[1]


@pytest.mark.parametrize(
    ("path", "query", "body"),
    [
        (SERVICES, {"serviceId": "stated-zero"}, service(startupProbe={"tcpSocket": {"port": 0}})),
        (SERVICES, {"serviceId": "stated-port"}, service(ports=[{"containerPort": 65535}])),
        (
            f"{PROJECT}:setIamPolicy",
            {},
            policy(bindings=[{**VIEWERS, "role": "roles/tpu.viewer", "condition": CONDITION}], version=3),
        ),
        (DASHBOARDS, {}, dashboard(xPos=24)),
        (POLICIES, {}, {**promql(alertRule="x" * 2048), "documentation": {"content": "é" * 5120}}),
    ],
)
def test_what_the_sentences_allow_is_taken(own_client, path, query, body):
    own_client.ok("POST", path, body, **query)


def test_the_table_names_every_function_and_a_row_without_a_rule_is_refused():
    table = tomllib.loads((files("localcloud.rest") / "data" / "stated_rules.toml").read_text())["rule"]
    assert {row["check"] for row in table if "check" in row} == set(stated_rules._CHECKS)
    with pytest.raises(ValueError, match="has no check"):
        stated_rules._test({"of": ["x"], "field": "y", "sentence": "z"})
