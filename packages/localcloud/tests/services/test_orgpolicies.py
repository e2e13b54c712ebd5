"""Organization policies reject forbidden requests, even from the project's owner, with Google's messages."""

import pytest

from localcloud.tests.conftest import PROJECT

RESOURCE_MANAGER = f"/cloudresourcemanager/v1/projects/{PROJECT}"
LOCATIONS = "constraints/gcp.resourceLocations"
MEMBERS = "constraints/iam.allowedPolicyMemberDomains"
ACCOUNTS = "constraints/iam.disableServiceAccountCreation"


def put(client, constraint, **rule):
    return client.ok("POST", f"{RESOURCE_MANAGER}:setOrgPolicy", {"policy": {"constraint": constraint, **rule}})


def effective(client, constraint):
    return client.ok("POST", f"{RESOURCE_MANAGER}:getEffectiveOrgPolicy", {"constraint": constraint})


def test_a_policy_that_nobody_set_allows_everything(own_client):
    assert effective(own_client, LOCATIONS) == {"constraint": LOCATIONS, "listPolicy": {"allValues": "ALLOW"}}
    assert effective(own_client, ACCOUNTS) == {"constraint": ACCOUNTS, "booleanPolicy": {}}


def test_a_policy_is_set_and_replaced(own_client):
    assert put(own_client, LOCATIONS, listPolicy={"allowedValues": ["us-east4"]})["etag"]
    assert effective(own_client, LOCATIONS) == {"constraint": LOCATIONS, "listPolicy": {"allowedValues": ["us-east4"]}}
    put(own_client, LOCATIONS, listPolicy={"allValues": "ALLOW"})
    assert effective(own_client, LOCATIONS)["listPolicy"] == {"allValues": "ALLOW"}


def test_values_and_all_values_exclude_each_other(own_client):
    rule = {"allValues": "DENY", "allowedValues": ["us-east4"]}
    body = {"policy": {"constraint": LOCATIONS, "listPolicy": rule}}
    assert own_client.call("POST", f"{RESOURCE_MANAGER}:setOrgPolicy", body)[0] == 400


def test_no_service_account_where_they_may_not_be_created(own_client):
    put(own_client, ACCOUNTS, booleanPolicy={"enforced": True})
    found = own_client.error("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "server-1"})
    assert found == (400, "Service account creation is not allowed on this project.")


def test_no_grant_to_everybody_where_members_are_restricted(own_client):
    put(own_client, MEMBERS, listPolicy={"allowedValues": ["C01234567"]})
    policy = {"bindings": [{"role": "roles/run.invoker", "members": ["allUsers"]}]}
    status, message = own_client.error("POST", f"{RESOURCE_MANAGER}:setIamPolicy", {"policy": policy})
    assert (status, message) == (
        400,
        "One or more users named in the policy do not belong to a permitted customer, perhaps due to an organization policy.",
    )
    policy["bindings"][0]["members"] = ["user:a@example.com"]
    own_client.ok("POST", f"{RESOURCE_MANAGER}:setIamPolicy", {"policy": policy})


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        ({"allowedValues": ["in:us-locations"]}, True),
        ({"allowedValues": ["in:us-east4-locations"]}, True),
        ({"allowedValues": ["is:us-east4"]}, True),
        ({"allowedValues": ["us-east1"]}, False),
        ({"allowedValues": ["in:us-locations"], "deniedValues": ["us-east4"]}, False),
        ({"allValues": "DENY"}, False),
        ({"allValues": "ALLOW"}, True),
    ],
)
def test_nothing_is_created_where_locations_are_restricted(own_client, rule, allowed):
    put(own_client, LOCATIONS, listPolicy=rule)
    path = f"/artifactregistry/v1/projects/{PROJECT}/locations/us-east4/repositories"
    status, answer = own_client.call("POST", path, {"format": "DOCKER"}, repositoryId="images")
    bucket, _ = own_client.call(
        "POST", "/storage/storage/v1/b", {"name": "located-1", "location": "US-EAST4"}, project=PROJECT
    )
    if allowed:
        assert (status, bucket) == (200, 200)
    else:
        assert (status, bucket) == (400, 412)
        assert answer["error"]["message"].startswith(
            "Constraint constraints/gcp.resourceLocations violated for [orgpolicy:"
        )
        assert "in [us-east4]" in answer["error"]["message"]


def test_testing_permissions_needs_none(own_client):
    outsider = own_client.as_caller("nobody@other.iam.gserviceaccount.com")
    path = f"{RESOURCE_MANAGER}:testIamPermissions"
    assert outsider.ok("POST", path, {"permissions": ["run.services.create"]}) == {"permissions": []}
    status, message = outsider.error("POST", path, {"permissions": ["run.*"]})
    assert (status, "wildcards" in message) == (400, True)


def test_a_bucket_that_does_not_exist_is_not_found_for_everybody(own_client):
    outsider = own_client.as_caller("nobody@other.iam.gserviceaccount.com")
    assert outsider.error("GET", "/storage/storage/v1/b/nobody-has-this/o")[0] == 404


NODE_PARENT = f"projects/{PROJECT}/locations/us-east5-a"


def _queued(client, **node):
    spec = {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e", **node}
    body = {"tpu": {"nodeSpec": [{"parent": NODE_PARENT, "nodeId": "n1", "node": spec}]}, "spot": {}}
    return client.call("POST", f"/tpu/v2alpha1/{NODE_PARENT}/queuedResources", body, queuedResourceId="q1")


def test_policies_of_machines_refuse_in_the_words_of_public_logs(own_client):
    """Compute Engine answers 412; that Cloud TPU answers its own 400 with the same message is assumed, the strict case for a wait."""
    for constraint, rule, node in (
        ("requireOsLogin", {"booleanPolicy": {"enforced": True}}, {"metadata": {"enable-oslogin": "false"}}),
        ("vmExternalIpAccess", {"listPolicy": {"allValues": "DENY"}}, {"networkConfig": {"enableExternalIps": True}}),
    ):
        name = f"constraints/compute.{constraint}"
        put(own_client, name, **rule)
        status, answer = _queued(own_client, **node)
        assert (status, answer["error"]["message"].startswith(f"Constraint {name} violated for project ")) == (
            400,
            True,
        )
        put(own_client, name, **{kind: {"allValues": "ALLOW"} if kind == "listPolicy" else {} for kind in rule})
    put(own_client, "constraints/compute.requireOsLogin", booleanPolicy={"enforced": True})
    assert _queued(own_client, metadata={"enable-oslogin": "TRUE"})[0] == 200
    body = {"items": [{"key": "enable-oslogin", "value": "FALSE"}]}
    path = f"/compute/compute/v1/projects/{PROJECT}/zones/us-east5-a/instances/x/setMetadata"
    status, message = own_client.error("POST", path, body)
    assert (status, "Constraint constraints/compute.requireOsLogin violated" in message) == (412, True)


def test_under_the_policy_no_one_reads_what_a_machine_publishes(own_client):
    assert _queued(own_client, metadata={"enable-guest-attributes": "TRUE"})[0] == 200
    put(own_client, "constraints/compute.disableGuestAttributesAccess", booleanPolicy={"enforced": True})
    path = f"/tpu/v2alpha1/{NODE_PARENT}/nodes/n1:getGuestAttributes"
    status, message = own_client.error("POST", path, {})
    assert status == 400
    assert message.startswith("Constraint constraints/compute.disableGuestAttributesAccess violated for project ")
