"""What a person needs to open a tunnel to a TPU machine: each missing permission is refused at the step that needs it."""

import getpass

import pytest

from gemma_serving.contracts import tunnel_role
from gemma_serving.stacks import tpu
from localcloud.running.shims import gcloud
from localcloud.running.shims.gcloud import CommandError
from localcloud.running.shims.gcloud_login import Login
from localcloud.tests.conftest import PROJECT_POLICY, gcloud_itself, grant
from localcloud.tests.services.test_instances import body_of
from tests.polling import until

PROJECT = "projects/local-project"
ZONE = f"{PROJECT}/locations/us-east5-a"
NODE = f"{ZONE}/nodes/n1"
ALICE = "alice@example.com"
ROLES = tpu.tunnel_roles("cloud-tpu", "os-login")
SERVER = "server@local-project.iam.gserviceaccount.com"
SERVER_POLICY = f"/iam/v1/{PROJECT}/serviceAccounts/{SERVER}"


@pytest.fixture
def node(own_client, monkeypatch):
    """A ready node with OS Login, and the stand-in's environment."""
    monkeypatch.setenv("LOCALCLOUD_URL", own_client.base_url)
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", own_client.token)
    monkeypatch.delenv("CLOUDSDK_CORE_ACCOUNT", raising=False)
    own_client.ok("POST", f"/iam/v1/{PROJECT}/serviceAccounts", {"accountId": "server"})
    own_client.ok("PUT", "/admin/scenario", {"tpu": {"durations_s": {"ssh_key": 0}}}, merge="true")
    spec = {
        "parent": ZONE,
        "nodeId": "n1",
        "node": {
            "acceleratorType": "v6e-1",
            "runtimeVersion": "v2-alpha-tpuv6e",
            "serviceAccount": {"email": SERVER},
            "metadata": {"enable-guest-attributes": "TRUE", "enable-oslogin": "TRUE"},
        },
    }
    body = {"tpu": {"nodeSpec": [spec]}, "spot": {}}
    own_client.ok("POST", f"/tpu/v2alpha1/{ZONE}/queuedResources", body, queuedResourceId="q1")
    for _ in range(20):
        if own_client.call("GET", f"/tpu/v2alpha1/{NODE}")[1].get("state") == "READY":
            return own_client
    raise AssertionError("the node did not become ready")


def grant_all(node, roles):
    """Grant roles on the project, with the conditions that they have, and the use of the server's account."""
    conditions = roles if isinstance(roles, dict) else dict.fromkeys(roles, "")
    for role, expression in conditions.items():
        grant(node, PROJECT_POLICY, role, expression)
    grant(node, SERVER_POLICY, tpu.TUNNEL_ACCOUNT_ROLE)


def turn_off_os_login(node):
    metadata = node.ok("GET", f"/tpu/v2alpha1/{NODE}")["metadata"]
    body = {"metadata": {**metadata, "enable-oslogin": "FALSE"}}
    node.ok("PATCH", f"/tpu/v2alpha1/{NODE}", body, updateMask="metadata")


def refused():
    with pytest.raises(CommandError) as found:
        gcloud.log_in(NODE, Login(account=ALICE))
    return str(found.value)


def test_each_missing_grant_is_refused_at_its_own_step(node):
    grant(node, PROJECT_POLICY, "roles/iap.tunnelResourceAccessor")
    assert "Permission 'tpu.nodes.get' denied on resource" in refused()
    grant(node, PROJECT_POLICY, "roles/tpu.viewer")
    assert refused() == "403 Required 'compute.projects.get' permission for 'projects/local-project'"
    grant(node, PROJECT_POLICY, "roles/compute.osLogin")
    assert "Permission 'tpu.nodes.update' denied on resource" in refused()
    grant(node, PROJECT_POLICY, "roles/tpu.admin")
    assert f"Permission 'iam.serviceAccounts.actAs' denied on service account {SERVER}" in refused()
    grant(node, SERVER_POLICY, "roles/iam.serviceAccountUser")
    gcloud.log_in(NODE, Login(account=ALICE))
    metadata = node.ok("GET", f"/tpu/v2alpha1/{NODE}")["metadata"]
    assert metadata["ssh-keys"].startswith(f"\nalice_example_com:ssh-rsa simulated-key-of-{getpass.getuser()}")


def test_the_roles_and_conditions_of_a_stack_are_enough(node):
    grant_all(node, ROLES)
    gcloud.log_in(NODE, Login(account=ALICE))


@pytest.mark.parametrize(
    ("role", "expression", "says"),
    [
        ("roles/iap.tunnelResourceAccessor", "destination.port == 443", "[4033: 'not authorized']"),
        ("roles/iap.tunnelResourceAccessor", "", "[4033: 'not authorized']"),
        ("roles/compute.osLogin", "resource.name.startsWith('projects/')", "compute.projects.get"),
        ("roles/tpu.admin", f"resource.name.startsWith('{ZONE}')", "tpu.nodes.get"),
        ("roles/tpu.admin", "request.time < timestamp('2020-01-01T00:00:00Z')", "tpu.nodes.get"),
    ],
)
def test_a_condition_that_the_service_does_not_fulfil_gives_nothing(node, role, expression, says):
    others = {each: own for each, own in ROLES.items() if each != role}
    grant_all(node, {**others, role: expression} if expression else others)
    assert says in refused()


def test_a_custom_role_needs_its_three_permissions_and_no_more(node):
    """The role of `tpu.tunnelRole`: a member has it in place of roles/tpu.admin."""
    role = f"{PROJECT}/roles/gemmaTunnel"
    path, needed = f"/iam/v1/{role}", list(tunnel_role.PERMISSIONS)
    node.ok("POST", f"/iam/v1/{PROJECT}/roles", {"roleId": "gemmaTunnel", "role": {"includedPermissions": needed}})
    grant_all(node, tpu.tunnel_roles("cloud-tpu", "os-login", role))
    for lacking in needed:
        rest = [permission for permission in needed if permission != lacking]
        node.ok("PATCH", path, {"includedPermissions": rest}, updateMask="includedPermissions")
        assert f"Permission '{lacking}' denied" in refused()
    node.ok("PATCH", path, {"includedPermissions": needed}, updateMask="includedPermissions")
    without_key = {"metadata": {"enable-guest-attributes": "TRUE", "enable-oslogin": "TRUE"}}
    node.ok("PATCH", f"/tpu/v2alpha1/{NODE}", without_key, updateMask="metadata")
    gcloud.log_in(NODE, Login(account=ALICE))
    token = node.ok("POST", "/admin/tokens", {"email": ALICE})["accessToken"]
    alice = type(node)(node.base_url, token=token, headers=gcloud_itself())
    assert alice.error("DELETE", f"/tpu/v2alpha1/{NODE}")[0] == 403
    node.ok("DELETE", path)
    assert "Permission 'tpu.nodes.get' denied" in refused()


def test_without_os_login_a_key_in_the_metadata_is_enough_and_with_it_is_not(node):
    """S2-8: project-wide and machine-wide keys count only without OS Login."""
    grant_all(node, ("roles/iap.tunnelResourceAccessor", "roles/tpu.admin", "roles/compute.viewer"))
    assert refused() == "403 Permission denied (publickey)."
    turn_off_os_login(node)
    gcloud.log_in(NODE, Login(account=ALICE))


def test_people_outside_the_organization_need_a_role_on_it_or_keys_in_the_metadata(node):
    grant_all(node, (*ROLES, "roles/compute.viewer"))
    node.ok("PUT", "/admin/scenario", {"iam": {"organization_domain": "corp.example"}}, merge="true")
    assert refused() == "403 Permission denied (publickey)."
    node.ok("PUT", "/admin/scenario", {"iam": {"external_logins": [ALICE]}}, merge="true")
    gcloud.log_in(NODE, Login(account=ALICE))
    node.ok("PUT", "/admin/scenario", {"iam": {"external_logins": []}}, merge="true")
    turn_off_os_login(node)
    gcloud.log_in(NODE, Login(account=ALICE))


def test_the_roles_of_keys_in_the_metadata_are_enough_and_open_nothing_with_os_login(node):
    grant_all(node, tpu.tunnel_roles("cloud-tpu", "metadata-key"))
    assert refused() == "403 Permission denied (publickey)."
    turn_off_os_login(node)
    gcloud.log_in(NODE, Login(account=ALICE))


def test_nobody_reads_the_login_profile_of_another(node):
    token = node.ok("POST", "/admin/tokens", {"email": "bob@example.com"})["accessToken"]
    bob = type(node)(node.base_url, token=token, headers=gcloud_itself())
    assert bob.error("GET", f"/oslogin/v1/users/{ALICE}/loginProfile")[0] == 403
    assert bob.ok("GET", "/oslogin/v1/users/bob@example.com/loginProfile") == {"name": "bob@example.com"}


def test_a_tunnel_to_an_instance_without_os_login_writes_the_key_into_its_metadata(node):
    zone = f"/compute/compute/v1/{PROJECT}/zones/us-east5-a/instances"
    metadata = {"items": [{"key": "enable-oslogin", "value": "FALSE"}]}
    node.ok("POST", zone, body_of("serve", account=SERVER, metadata=metadata))
    until(lambda: node.ok("GET", f"{zone}/serve")["status"] == "RUNNING", "the instance runs")
    instance = f"{PROJECT}/zones/us-east5-a/instances/serve"
    for role in ("roles/iap.tunnelResourceAccessor", "roles/compute.viewer"):
        grant(node, PROJECT_POLICY, role)
    with pytest.raises(CommandError, match=r"compute\.instances\.setMetadata"):
        gcloud.log_in(instance, Login(account=ALICE))
    grant_all(node, tpu.tunnel_roles("compute-engine", "metadata-key"))
    gcloud.log_in(instance, Login(account=ALICE))
    items = {item["key"]: item["value"] for item in node.ok("GET", f"{zone}/serve")["metadata"]["items"]}
    assert items["ssh-keys"].startswith(f"{getpass.getuser()}:ssh-rsa simulated-key-of-")
    assert items["enable-oslogin"] == "FALSE"
