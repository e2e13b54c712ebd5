"""Service accounts: kept fields and rejected changes."""

from localcloud.tests.conftest import PROJECT

ACCOUNTS = f"/iam/v1/projects/{PROJECT}/serviceAccounts"


def test_a_change_of_the_name_keeps_the_description_and_a_stale_etag_is_refused(own_client):
    made = own_client.ok("POST", ACCOUNTS, {"accountId": "server-1", "serviceAccount": {"description": "a=b"}})
    path = f"{ACCOUNTS}/{made['email']}"
    named = {"serviceAccount": {"displayName": "other", "etag": made["etag"]}, "updateMask": "displayName"}
    changed = own_client.ok("PATCH", path, named)
    assert (changed["displayName"], changed["description"]) == ("other", "a=b")
    status, _ = own_client.error("PATCH", path, named)
    assert status == 409
    longer = {"serviceAccount": {"description": "x" * 257}, "updateMask": "description"}
    assert own_client.error("PATCH", path, longer)[0] == 400
    assert own_client.ok("GET", path)["description"] == "a=b"
