"""The accounts of the workflows that write, with the roles and conditions of .github/setup/accounts.sh."""

from localcloud.tests.conftest import PROJECT_POLICY, grant
from tests.tools.ci_page import account_grants, custom_roles

PROJECT = "local-project"
CREATOR = f"projects/{PROJECT}/roles/gemmaCreator"
OWN, OTHER = "local-project-gemma-x-models", "local-project-states"


def account_with(client, name, *only):
    """Make an account of the workflows with the roles of the page, or some of them; return its calls."""
    number = client.ok("GET", f"/cloudresourcemanager/v1/projects/{PROJECT}")["projectNumber"]
    for role_id, permissions in custom_roles().items():
        role = {"title": role_id, "includedPermissions": permissions}
        client.ok("POST", f"/iam/v1/projects/{PROJECT}/roles", {"roleId": role_id, "role": role})
    email = client.ok("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": name})["email"]
    for role, condition in account_grants(name, PROJECT, number).items():
        if not only or role in only:
            grant(client, PROJECT_POLICY, role, condition, member=f"serviceAccount:{email}")
    return client.as_caller(email)


def test_ci_guard_deletes_an_account_and_cannot_let_anyone_use_one(own_client):
    accounts = f"/iam/v1/projects/{PROJECT}/serviceAccounts"
    guard = account_with(own_client, "ci-guard")
    for name in ("ci-deploy", "gemma-x"):
        own_client.ok("POST", accounts, {"accountId": name})
    deploy, server = (f"{accounts}/{name}@{PROJECT}.iam.gserviceaccount.com" for name in ("ci-deploy", "gemma-x"))
    me = {"role": "roles/iam.serviceAccountTokenCreator", "members": ["allUsers"]}
    assert guard.call("POST", f"{deploy}:setIamPolicy", {"policy": {"bindings": [me]}})[0] == 403
    assert guard.call("GET", server)[0] == 200
    assert guard.call("DELETE", server)[0] == 200


def test_ci_deploy_creates_what_a_stack_needs_and_reads_no_other_bucket_and_secret(own_client):
    deploy = account_with(own_client, "ci-deploy", "roles/storage.admin", "roles/secretmanager.admin", CREATOR)

    buckets = "/storage/storage/v1/b"
    assert deploy.call("POST", buckets, {"name": OWN}, project=PROJECT)[0] == 200
    own_client.ok("POST", buckets, {"name": OTHER}, project=PROJECT)
    for part in ("", "/o", "/iam"):
        assert deploy.call("GET", f"{buckets}/{OWN}{part}")[0] == 200
        assert deploy.call("GET", f"{buckets}/{OTHER}{part}")[0] == 403

    secrets, kind = f"/secretmanager/v1/projects/{PROJECT}/secrets", {"replication": {"automatic": {}}}
    assert deploy.call("POST", secrets, kind, secretId="gemma-x-hf-token")[0] == 200
    own_client.ok("POST", secrets, kind, secretId="payroll")
    for name, status in (("gemma-x-hf-token", 200), ("payroll", 403)):
        assert deploy.call("POST", f"{secrets}/{name}:addVersion", {"payload": {"data": "eA=="}})[0] == status
        assert deploy.call("GET", f"{secrets}/{name}/versions/latest:access")[0] == status
