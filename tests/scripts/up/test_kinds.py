"""Ownership of a resource: owned by its labels, not owned under the same name, or missing. Bodies follow Google's documents."""

import hashlib

import pytest

from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.labels import Ownership
from gemma_serving.engine.exported_state import UNKNOWN
from gemma_serving.scripts.up.lookup import KINDS, LookupSession, lookup
from localcloud.tests.google_bodies import google_answer, google_request

OWNER = Ownership(project="gemma-serving", stack="dev")
URN = "urn:pulumi:dev::gemma-serving::t::n"
THEIRS = {"managed-by": "somebody", "gemma-serving-project": "gemma-serving", "gemma-serving-stack": "dev"}
GLOBAL = {"project": "p", "name": "gemma-dev"}
REGIONAL = {**GLOBAL, "region": "us-east5"}
PLACE, LOCATION = {"project": "p", "location": "l"}, "projects/p/locations/l"
REPOSITORY = f"{LOCATION}/repositories/gemma-dev"
ACCOUNT = "projects/p/serviceAccounts/gemma-dev@p.iam.gserviceaccount.com"


class Api:
    """Answers reads from a table; everything else does not exist."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def get(self, api, path):
        return {"name": path.rpartition("/")[2], **self._answer("GET", api, path)}

    def post(self, api, path, body):
        google_request("POST", f"{api}/{path}", body)
        return self._answer("POST", api, path)

    def pages(self, api, path):
        yield self._answer("GET", api, path)

    def _answer(self, verb, api, path):
        self.asked.append(path)
        answer = self.answers.get((api, path.partition("?")[0]))
        if answer is None:
            raise GoogleListError(404, "not found", "")
        if isinstance(answer, Exception):
            raise answer
        return google_answer(verb, f"{api}/{path}", answer)


def find(type_, inputs, answers):
    return lookup(LookupSession(api=Api(answers), owner=OWNER), type_, URN, inputs)


BASES = {"storage": "storage/v1/b/", "run": "v2/", "compute": "compute/v1/"}
LABELLED = [
    ("gcp:secretmanager/secret:Secret", {"project": "p", "secretId": "s"}, "secretmanager", "projects/p/secrets/s"),
    ("gcp:storage/bucket:Bucket", {"project": "p", "name": "b"}, "storage", "b"),
    (
        "gcp:artifactregistry/repository:Repository",
        {**PLACE, "repositoryId": "gemma-dev"},
        "artifactregistry",
        REPOSITORY,
    ),
    ("gcp:cloudrunv2/service:Service", {**PLACE, "name": "gemma-dev"}, "run", f"{LOCATION}/services/gemma-dev"),
]
DESCRIBED = [
    ("gcp:serviceaccount/account:Account", {"project": "p", "accountId": "gemma-dev"}, "iam", ACCOUNT),
    ("gcp:compute/network:Network", GLOBAL, "compute", "projects/p/global/networks/gemma-dev"),
    ("gcp:compute/firewall:Firewall", GLOBAL, "compute", "projects/p/global/firewalls/gemma-dev"),
    ("gcp:compute/subnetwork:Subnetwork", REGIONAL, "compute", "projects/p/regions/us-east5/subnetworks/gemma-dev"),
    ("gcp:compute/router:Router", REGIONAL, "compute", "projects/p/regions/us-east5/routers/gemma-dev"),
]


def at(api, name):
    """Return what an answer of the API about a resource is asked by."""
    return api, f"{BASES.get(api, 'v1/')}{name}"


@pytest.mark.parametrize(("type_", "inputs", "api", "expected"), LABELLED)
def test_labels_tell_ours_from_what_has_our_name(type_, inputs, api, expected):
    place = at(api, expected)
    ours = find(type_, inputs, {place: {"labels": {**OWNER.labels, "goog-pulumi-provisioned": "true"}}})
    assert (ours.owner, ours.id) == ("owned", expected)
    assert ours.outputs["pulumiLabels"]["goog-pulumi-provisioned"] == "true"
    for labels in (THEIRS, {}, {**OWNER.labels, "gemma-serving-stack": "other"}):
        assert find(type_, inputs, {place: {"labels": labels}}).owner == "not_owned"
    assert find(type_, inputs, {}).owner == "missing"


def test_a_bucket_of_another_project_is_foreign():
    refused = GoogleListError(403, "x does not have storage.buckets.get access", "forbidden")
    found = find("gcp:storage/bucket:Bucket", {"project": "p", "name": "b"}, {("storage", "storage/v1/b/b"): refused})
    assert (found.owner, found.name) == ("not_owned", "gs://b")


@pytest.mark.parametrize("reason", ["SERVICE_DISABLED", "accessNotConfigured"])
def test_an_api_that_is_off_is_no_absence(reason):
    refused = GoogleListError(403, "it is disabled", reason)
    for type_, inputs, api, name in (*LABELLED, *DESCRIBED):
        with pytest.raises(ScriptError, match=rf"the API {api}\.googleapis\.com is off .* `gemma doctor dev` names"):
            find(type_, inputs, {at(api, name): refused})
    for of_a in (("tpu", "v2alpha1/projects/p/locations"), in_zone("a")):
        with pytest.raises(ScriptError, match=r"the API tpu\.googleapis\.com is off"):
            find(QUEUED, WANTED, {**ZONES, of_a: refused})


def test_no_zone_is_searched_by_a_list_of_locations_that_is_empty():
    with pytest.raises(ScriptError, match="the list is empty"):
        find(QUEUED, WANTED, {("tpu", "v2alpha1/projects/p/locations"): {}})


def test_a_nat_belongs_to_its_router():
    key = ("compute", "compute/v1/projects/p/regions/us-east5/routers/gemma-dev")
    given = {**REGIONAL, "router": "gemma-dev"}
    router = {"description": OWNER.description, "nats": [{"name": "gemma-dev"}]}
    found = find("gcp:compute/routerNat:RouterNat", given, {key: router})
    assert (found.owner, found.id) == ("owned", "p/us-east5/gemma-dev/gemma-dev")
    assert find("gcp:compute/routerNat:RouterNat", given, {key: {**router, "nats": []}}).owner == "missing"
    assert find("gcp:compute/routerNat:RouterNat", given, {key: {**router, "description": ""}}).owner == "not_owned"


def test_the_newest_enabled_version_of_our_secret_is_ours():
    secret, base = "projects/p/secrets/s", "v1/projects/p/secrets/s"
    versions = {
        "versions": [
            {"name": "projects/1/secrets/s/versions/12", "state": "DESTROYED"},
            {"name": "projects/1/secrets/s/versions/11", "state": "DISABLED"},
            {"name": "projects/1/secrets/s/versions/10", "state": "ENABLED"},
            {"name": "projects/1/secrets/s/versions/9", "state": "ENABLED"},
        ]
    }
    answers = {("secretmanager", base): {"labels": dict(OWNER.labels)}, ("secretmanager", f"{base}/versions"): versions}
    found = find("gcp:secretmanager/secretVersion:SecretVersion", {"secret": secret}, answers)
    assert (found.owner, found.id) == ("owned", "projects/1/secrets/s/versions/10")
    answers["secretmanager", base] = {"labels": THEIRS}
    assert find("gcp:secretmanager/secretVersion:SecretVersion", {"secret": secret}, answers).owner == "not_owned"


def queued(urn):
    digest = hashlib.sha256(urn.encode()).hexdigest()[:40]
    node = {"labels": {**OWNER.labels, "gemma-serving-urn": digest}}
    return {"tpu": {"nodeSpec": [{"nodeId": "n", "node": node}]}, "state": {"state": "WAITING_FOR_RESOURCES"}}


def in_zone(zone):
    return ("tpu", f"v2alpha1/projects/p/locations/{zone}/queuedResources/gemma-dev")


ZONES = {("tpu", "v2alpha1/projects/p/locations"): {"locations": [{"locationId": zone} for zone in ("a", "b", "c")]}}
WANTED = {"project": "p", "queuedResourceId": "gemma-dev", "zones": ["a"]}
QUEUED = "gcp-tpu:index:QueuedResource"


def test_a_queued_resource_is_found_in_a_zone_that_the_settings_no_longer_name():
    denied = GoogleListError(403, "Permission denied on 'locations/b' (or it may not exist).", "")
    found = find(QUEUED, WANTED, {**ZONES, in_zone("b"): denied, in_zone("c"): queued(URN)})
    assert (found.owner, found.id) == ("owned", "projects/p/queuedResources/gemma-dev")
    assert found.outputs["zone"] == "c"


def test_a_queued_resource_of_another_program_counts_only_where_it_is_in_the_way():
    assert find(QUEUED, WANTED, {**ZONES, in_zone("a"): queued("another")}).owner == "not_owned"
    assert find(QUEUED, WANTED, {**ZONES, in_zone("c"): queued("another")}).owner == "missing"


def test_nothing_is_looked_up_by_a_value_that_nobody_knows():
    for type_, kind in KINDS.items():
        given = dict.fromkeys(kind.needs, "x") | {kind.needs[-1]: UNKNOWN}
        assert find(type_, given, {}) is None
    assert find("gcp:unknown/type:Type", {}, {}) is None


TITLED = {
    "gcp:monitoring/alertPolicy:AlertPolicy": (
        "v3/projects/p/alertPolicies",
        "userLabels",
        {"displayName": "gemma-dev: Idle"},
    ),
    "gcp:monitoring/notificationChannel:NotificationChannel": (
        "v3/projects/p/notificationChannels",
        "userLabels",
        {"displayName": "gemma-dev email"},
    ),
    "gcp:monitoring/dashboard:Dashboard": (
        "v1/projects/p/dashboards",
        "labels",
        {"dashboardJson": '{"displayName": "gemma-dev"}'},
    ),
}


@pytest.mark.parametrize("type_", TITLED)
def test_what_google_names_is_found_by_its_title_and_the_stacks_labels(type_):
    path, labels, inputs = TITLED[type_]
    title = inputs.get("displayName") or "gemma-dev"
    collection = path.rpartition("/")[2]

    def listed(*items):
        return {("monitoring", path): {collection: list(items)}}

    def item(number, **changes):
        named = f"{path.partition('/')[2]}/{number}"
        return {"name": named, "displayName": title, labels: dict(OWNER.labels), **changes}

    given = {"project": "p", **inputs}
    found = find(type_, given, listed(item(1, **{labels: THEIRS}), item(2, displayName="other"), item(3)))
    assert (found.owner, found.id) == ("owned", f"{path.partition('/')[2]}/3")
    assert find(type_, given, listed(item(1, **{labels: THEIRS}))).owner == "missing"
