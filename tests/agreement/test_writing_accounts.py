"""The accounts of the workflows that write, with the roles and conditions of .github/setup/accounts.sh."""

from localcloud.tests.conftest import PROJECT_POLICY, grant
from tests.tools.ci_page import account_grants, custom_roles

PROJECT = "local-project"
CREATOR = f"projects/{PROJECT}/roles/gemmaCreator"
OWN, OTHER = "local-project-gemma-x-models", "local-project-states"


def test_ci_deploy_creates_what_a_stack_needs_and_reads_no_other_bucket_and_secret(own_client):
    number = own_client.ok("GET", f"/cloudresourcemanager/v1/projects/{PROJECT}")["projectNumber"]
    for role_id, permissions in custom_roles().items():
        role = {"title": role_id, "includedPermissions": permissions}
        own_client.ok("POST", f"/iam/v1/projects/{PROJECT}/roles", {"roleId": role_id, "role": role})
    email = own_client.ok("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "ci-deploy"})["email"]
    held = account_grants("ci-deploy", PROJECT, number)
    for role in ("roles/storage.admin", "roles/secretmanager.admin", CREATOR):
        grant(own_client, PROJECT_POLICY, role, held[role], member=f"serviceAccount:{email}")
    deploy = own_client.as_caller(email)

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
