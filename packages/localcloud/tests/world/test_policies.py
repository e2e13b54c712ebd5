"""IAM: strict etags, members that exist, permissions of the callers."""

import base64
from datetime import UTC, datetime

import pytest

from localcloud.tests.conftest import grant
from localcloud.world import conditions, roles
from localcloud.world.policies import etag_of

P = "/projects/local-project"
PROJECT = f"/cloudresourcemanager/v1{P}"


def written(client, policy, **changes):
    """Write the project's policy as read, with changes. Return the status, and the policy or the message."""
    status, answer = client.call("POST", f"{PROJECT}:setIamPolicy", {"policy": {**policy, **changes}})
    return status, answer if status == 200 else answer["error"]["message"]


def test_a_stale_etag_conflicts_and_changes_nothing(own_client):
    first = own_client.ok("POST", f"{PROJECT}:getIamPolicy", {})
    assert first["etag"] == "BwX="
    binding = {"role": "roles/viewer", "members": ["user:a@example.com"]}
    assert written(own_client, first, bindings=[*first["bindings"], binding])[1]["etag"] == "BwY="
    status, message = written(own_client, first)
    assert status == 409
    assert "The request's ETag 'BwX=' did not match the current policy's ETag 'BwY='" in message
    assert binding in own_client.ok("POST", f"{PROJECT}:getIamPolicy", {})["bindings"]


def test_etags_of_all_generations_differ_as_bytes():
    decoded = [base64.b64decode(etag_of(generation)) for generation in range(300)]
    assert len(set(decoded)) == 300


def test_a_service_account_that_does_not_exist_cannot_be_granted_anything(own_client):
    ghost = "ghost@local-project.iam.gserviceaccount.com"
    binding = {"role": "roles/viewer", "members": [f"serviceAccount:{ghost}"]}
    refused = written(own_client, read_policy(own_client), bindings=[binding])
    assert refused == (400, f"Service account {ghost} does not exist.")


@pytest.mark.parametrize(("role", "member"), [("viewer", "user:a@example.com"), ("roles/viewer", "a@example.com")])
def test_malformed_bindings_are_refused(own_client, role, member):
    assert written(own_client, {"bindings": [{"role": role, "members": [member]}]})[0] == 400


def test_a_service_account_reads_the_secret_that_it_was_granted_and_no_other(own_client):
    email = own_client.ok("POST", f"/iam/v1{P}/serviceAccounts", {"accountId": "reader"})["email"]
    for name in ("mine", "other"):
        own_client.ok("POST", f"/secretmanager/v1{P}/secrets", {"replication": {"automatic": {}}}, secretId=name)
        own_client.ok("POST", f"/secretmanager/v1{P}/secrets/{name}:addVersion", {"payload": {"data": "eA=="}})
    secret = f"/secretmanager/v1{P}/secrets/mine"
    grant(own_client, secret, "roles/secretmanager.secretAccessor", member=f"serviceAccount:{email}")
    reader = own_client.as_caller(email)
    assert reader.ok("GET", f"/secretmanager/v1{P}/secrets/mine/versions/latest:access")["payload"]["data"] == "eA=="
    assert reader.error("GET", f"/secretmanager/v1{P}/secrets/other/versions/latest:access")[0] == 403
    assert reader.error("DELETE", f"/secretmanager/v1{P}/secrets/mine")[0] == 403


def test_a_bucket_reader_reads_and_does_not_write(own_client):
    email = own_client.ok("POST", f"/iam/v1{P}/serviceAccounts", {"accountId": "reader"})["email"]
    own_client.ok("POST", "/storage/storage/v1/b", {"name": "weights"}, project="local-project")
    own_client.ok(
        "PUT",
        "/storage/storage/v1/b/weights/iam",
        {"bindings": [{"role": "roles/storage.objectViewer", "members": [f"serviceAccount:{email}"]}]},
    )
    reader = own_client.as_caller(email)
    assert reader.ok("GET", "/storage/storage/v1/b/weights/o")["items"] == []
    assert reader.error("POST", "/upload/storage/v1/b/weights/o", {"x": 1}, uploadType="media", name="x")[0] == 403


def test_public_members_are_refused_where_access_prevention_is_enforced(own_client):
    own_client.ok(
        "POST",
        "/storage/storage/v1/b",
        {"name": "closed", "iamConfiguration": {"publicAccessPrevention": "enforced"}},
        project="local-project",
    )
    policy = {"bindings": [{"role": "roles/storage.objectViewer", "members": ["allUsers"]}]}
    assert own_client.error("PUT", "/storage/storage/v1/b/closed/iam", policy)[0] == 412


def test_roles_grant_by_pattern():
    assert roles.grants("roles/editor", "storage.objects.get")
    assert not roles.grants("roles/editor", "secretmanager.versions.access")
    assert roles.grants("roles/run.invoker", "run.routes.invoke")
    assert not roles.grants("roles/run.invoker", "run.services.get")
    assert not roles.grants("roles/unknown", "run.services.get")
    assert roles.permission_of("run.projects.locations.services.setIamPolicy") == "run.services.setIamPolicy"


def conditional(role="roles/viewer", **condition):
    return {
        "role": role,
        "members": ["user:a@example.com"],
        "condition": {"title": "t", "expression": "true", **condition},
    }


def read_policy(client, version=3):
    return client.ok("POST", f"{PROJECT}:getIamPolicy", {"options": {"requestedPolicyVersion": version}})


@pytest.mark.parametrize(
    ("binding", "says"),
    [
        (conditional(), "Conditions can't be set on primitive roles."),
        (conditional("roles/tpu.viewer", title=""), "needs a title"),
        (conditional("roles/tpu.viewer", title="t" * 101), "too long"),
        (conditional("roles/tpu.viewer", description="d" * 257), "too long"),
        (
            conditional("roles/tpu.viewer", expression="request.time <"),
            "compilation failed: <input>:1:15: Syntax error",
        ),
        (
            conditional("roles/tpu.viewer", expression="a.b == 'c' d.e"),
            "compilation failed: <input>:1:12: Syntax error",
        ),
        (conditional("roles/tpu.viewer", expression="timestamp('soon') < a.b"), "not a timestamp: soon"),
        (conditional("roles/tpu.viewer", expression="shell('ls') == a.b"), "undefined function shell"),
        (conditional("roles/tpu.viewer", expression=" || ".join(["true"] * 14)), "more than 12 logical operators"),
        (conditional("roles/tpu.viewer") | {"members": ["allUsers"]}, "allUsers"),
    ],
)
def test_conditions_that_google_refuses_are_refused(own_client, binding, says):
    status, message = written(own_client, read_policy(own_client), version=3, bindings=[binding])
    assert (status, says in message) == (400, True), message


def test_a_policy_with_conditions_needs_version_3_in_both_directions(own_client):
    policy = {**read_policy(own_client), "bindings": [conditional("roles/tpu.viewer")]}
    status, message = written(own_client, policy, version=1)
    assert (status, "must specify version `3`" in message) == (400, True)
    assert written(own_client, policy, version=3)[0] == 200
    status, message = own_client.error("POST", f"{PROJECT}:getIamPolicy", {})
    assert (status, "Requested policy version (0) cannot be less than" in message) == (400, True)
    kept = read_policy(own_client)
    assert kept["bindings"] == policy["bindings"]
    status, message = written(own_client, kept, version=1, bindings=[])
    assert (status, "Specified policy version (1) cannot be less than" in message) == (400, True)


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("true", True),
        ("destination.port == 22", True),
        ("request.time < timestamp('2100-01-01T00:00:00Z')", True),
        ("request.time > timestamp('2100-01-01T00:00:00Z')", False),
        ("destination.ip == 22", False),
        ("resource.name == 'x'", False),
        ("!(resource.name == 'x')", False),
        ("resource.type == 'x' || destination.port == 22", False),
        ("destination.ip in ['10.0.0.1', '10.0.0.2'] && destination.ip.contains('0.0')", True),
        ("1 / 0 == 1", False),
        ("resource.name2 == 'x' || true", False),
        (
            " api . getAttribute ( 'iam.googleapis.com/modifiedGrantsByRole' , [ ] )\n  . hasOnly ( [ 'roles/a' ] ) ",
            True,
        ),
    ],
)
def test_a_condition_with_an_attribute_that_the_service_lacks_is_false(expression, holds):
    attributes = {"destination.port": 22, "destination.ip": "10.0.0.2", "request.time": datetime.now(UTC)}
    assert conditions.holds({"title": "t", "expression": expression}, attributes) is holds


def test_the_grants_of_a_deleted_account_stay_marked_and_grant_nothing(own_client):
    account = own_client.ok("POST", f"/iam/v1{P}/serviceAccounts", {"accountId": "shortlived"})
    member = f"serviceAccount:{account['email']}"
    binding = {"role": "roles/logging.logWriter", "members": [member, "user:a@example.com"]}
    assert written(own_client, read_policy(own_client), bindings=[binding])[0] == 200
    own_client.ok("DELETE", f"/iam/v1{P}/serviceAccounts/{account['email']}")
    deleted = f"deleted:{member}?uid={account['uniqueId']}"
    kept = read_policy(own_client)
    assert kept["bindings"] == [{**binding, "members": [deleted, "user:a@example.com"]}]
    again = own_client.ok("POST", f"/iam/v1{P}/serviceAccounts", {"accountId": "shortlived"})
    assert (again["email"], again["uniqueId"] != account["uniqueId"]) == (account["email"], True)
    _, kept = written(own_client, kept)
    assert kept["bindings"] == [{**binding, "members": [deleted, "user:a@example.com"]}]
    refused = written(own_client, kept, bindings=[{**binding, "members": [deleted, member]}])
    assert refused == (400, f"Inconsistent representation of deleted member: '{deleted}' and '{member}'.")
    assert written(own_client, kept, bindings=[{**binding, "members": [member]}])[0] == 200


def test_a_condition_on_the_names_of_objects_opens_one_folder_of_a_bucket(own_client):
    email = own_client.ok("POST", f"/iam/v1{P}/serviceAccounts", {"accountId": "archiver"})["email"]
    own_client.ok("POST", "/storage/storage/v1/b", {"name": "archives"}, project="local-project")
    folder = "projects/_/buckets/archives/objects/compile-cache/"
    binding = {
        "role": "roles/storage.objectUser",
        "members": [f"serviceAccount:{email}"],
        "condition": {"title": "folder", "expression": f'resource.name.startsWith("{folder}")'},
    }
    own_client.ok("PUT", "/storage/storage/v1/b/archives/iam", {"version": 3, "bindings": [binding]})
    archiver = own_client.as_caller(email)
    upload = "/storage/upload/storage/v1/b/archives/o"
    assert archiver.call("POST", upload, {}, uploadType="media", name="compile-cache/v6e-4/a.tar")[0] == 200
    assert archiver.call("POST", upload, {}, uploadType="media", name="gemma/model.safetensors")[0] == 403
    assert archiver.call("GET", "/storage/storage/v1/b/archives/o/compile-cache%2Fv6e-4%2Fa.tar")[0] == 200
    own_client.call("POST", upload, {}, uploadType="media", name="gemma/model.safetensors")
    assert archiver.call("DELETE", "/storage/storage/v1/b/archives/o/gemma%2Fmodel.safetensors")[0] == 403
    assert archiver.call("DELETE", "/storage/storage/v1/b/archives/o/compile-cache%2Fv6e-4%2Fa.tar")[0] == 204
    # A listing is a call on the bucket, whose name the condition does not match.
    assert archiver.call("GET", "/storage/storage/v1/b/archives/o")[0] == 403


def limited(*roles):
    return f"api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', []).hasOnly([{', '.join(map(repr, roles))}])"


LOGGER = "roles/logging.logWriter"


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        (limited(*(f"roles/r{number}" for number in range(11))), "hasOnly has 11 values, maximum 10"),
        ("api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', ['roles/owner']).hasOnly([])", "the default []"),
        ("api.getAttribute('another', []).hasOnly([])", "must read iam.googleapis.com/modifiedGrantsByRole"),
        ("api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', [])", "and call hasOnly with a list of texts"),
        (limited(LOGGER).replace("'roles/logging.logWriter'", "resource.name"), "call hasOnly with a list of texts"),
        ("request.time < timestamp('2099-01-01T00:00:00')", "not a timestamp"),
    ],
)
def test_a_limit_on_roles_that_google_refuses_is_refused(own_client, expression, says):
    binding = conditional("roles/resourcemanager.projectIamAdmin", expression=expression)
    status, message = written(own_client, read_policy(own_client), version=3, bindings=[binding])
    assert (status, says in message) == (400, True), message


class LimitedAdmin:
    """An account that may grant one role on the project."""

    def __init__(self, client):
        self.email = client.ok("POST", f"/iam/v1{P}/serviceAccounts", {"accountId": "limited"})["email"]
        member = f"serviceAccount:{self.email}"
        grant(client, PROJECT, "roles/resourcemanager.projectIamAdmin", limited(LOGGER), member)
        self.own = read_policy(client)["bindings"][-1]
        grant(client, PROJECT, "roles/viewer")
        self.client = client.as_caller(self.email)

    def sets(self, change):
        """Return the status of a request that changes the bindings."""
        found = read_policy(self.client)
        return written(self.client, found, version=3, bindings=change(found["bindings"]))[0]


def test_a_limited_administrator_grants_and_revokes_the_roles_of_the_list_only(own_client):
    admin = LimitedAdmin(own_client)
    me = f"serviceAccount:{admin.email}"
    logger = {"role": LOGGER, "members": ["user:a@example.com"]}
    owner = {"role": "roles/owner", "members": [me]}
    free = {"role": "roles/resourcemanager.projectIamAdmin", "members": [me]}
    refused = {
        "owner": lambda bindings: [*bindings, owner],
        "the same role without the condition": lambda bindings: [*bindings, free],
        "both": lambda bindings: [*bindings, logger, owner],
        "a role of somebody else": lambda bindings: [each for each in bindings if each["role"] != "roles/viewer"],
        "its own condition": lambda bindings: [
            {**each, "condition": None} if each == admin.own else each for each in bindings
        ],
    }
    assert {name: admin.sets(change) for name, change in refused.items()} == dict.fromkeys(refused, 403)
    assert admin.sets(lambda bindings: [*bindings, logger]) == 200
    assert admin.sets(lambda bindings: [each for each in bindings if each["role"] != LOGGER]) == 200
    assert read_policy(admin.client)["bindings"] == read_policy(own_client)["bindings"]


def test_a_service_that_tells_no_roles_refuses_a_limited_administrator(own_client):
    """A role for secrets with such a condition sets no policy of a secret, not even one with roles of its list."""
    email = own_client.ok("POST", f"/iam/v1{P}/serviceAccounts", {"accountId": "limited"})["email"]
    own_client.ok("POST", f"/secretmanager/v1{P}/secrets", {"replication": {"automatic": {}}}, secretId="s")
    accessor = "roles/secretmanager.secretAccessor"
    grant(own_client, PROJECT, "roles/secretmanager.admin", limited(accessor), f"serviceAccount:{email}")
    caller = own_client.as_caller(email)
    assert caller.call("GET", f"/secretmanager/v1{P}/secrets/s")[0] == 200
    policy = {"policy": {"bindings": [{"role": accessor, "members": ["user:a@example.com"]}]}}
    assert caller.call("POST", f"/secretmanager/v1{P}/secrets/s:setIamPolicy", policy)[0] == 403
