"""Custom roles of IAM: their lifecycle, the permission to create them, and where they can be granted."""

from localcloud.running.shims import gcloud_project
from localcloud.running.shims.gcloud_project import Api, Words
from localcloud.tests.conftest import PROJECT, PROJECT_POLICY, gcloud_itself, grant

PARENT = f"/iam/v1/projects/{PROJECT}"
ROLES = f"{PARENT}/roles"
ROLE = f"projects/{PROJECT}/roles/tunnel"
THREE = ["tpu.nodes.get", "tpu.nodes.update", "tpu.operations.get"]
DAY_S = 24 * 3600


def created(client, role_id="tunnel", **fields):
    role = {"title": "Tunnel", "includedPermissions": THREE, **fields}
    return client.ok("POST", ROLES, {"roleId": role_id, "role": role})


def try_grant(client, role, policy=PROJECT_POLICY):
    body = {"policy": {"bindings": [{"role": role, "members": ["user:alice@example.com"]}]}}
    return client.error("POST", f"{policy}:setIamPolicy", body)


def alice_of(client):
    return client.as_caller("alice@example.com", **gcloud_itself())


def held(client, *permissions):
    answer = alice_of(client).ok("POST", f"{PROJECT_POLICY}:testIamPermissions", {"permissions": list(permissions)})
    return answer.get("permissions", [])


def test_a_role_grants_its_permissions_and_no_other_until_it_is_disabled(own_client):
    assert created(own_client)["name"] == ROLE
    grant(own_client, PROJECT_POLICY, ROLE)
    assert held(own_client, *THREE, "tpu.nodes.delete") == THREE
    fewer = own_client.ok(
        "PATCH", f"/iam/v1/{ROLE}", {"includedPermissions": THREE[:1]}, updateMask="includedPermissions"
    )
    assert fewer["includedPermissions"] == held(own_client, *THREE) == THREE[:1]
    assert fewer["title"] == "Tunnel"
    own_client.ok("PATCH", f"/iam/v1/{ROLE}", {"stage": "DISABLED"}, updateMask="stage")
    assert held(own_client, *THREE) == []


def test_a_deleted_role_grants_nothing_keeps_its_id_and_can_be_restored_for_7_days(own_client):
    created(own_client)
    grant(own_client, PROJECT_POLICY, ROLE)
    before = own_client.ok("POST", f"{PROJECT_POLICY}:getIamPolicy", {})["bindings"]
    assert own_client.ok("DELETE", f"/iam/v1/{ROLE}")["deleted"] is True
    assert held(own_client, *THREE) == []
    # The grant stays, and other grants can be added beside it.
    grant(own_client, PROJECT_POLICY, "roles/viewer", member="user:bob@example.com")
    assert before[-1] in own_client.ok("POST", f"{PROJECT_POLICY}:getIamPolicy", {})["bindings"]
    status, said = own_client.error("POST", ROLES, {"roleId": "tunnel", "role": {}})
    taken = "You can't create a role with role_id (tunnel) where there is an existing role with that role_id in a deleted state."
    assert (status, said) == (400, taken)
    assert own_client.ok("GET", f"/iam/v1/{ROLE}")["deleted"] is True
    own_client.ok("POST", f"/iam/v1/{ROLE}:undelete", {})
    assert held(own_client, *THREE) == THREE


def test_after_7_days_a_deleted_role_is_gone_and_after_37_its_id_is_free(own_client):
    created(own_client)
    own_client.ok("DELETE", f"/iam/v1/{ROLE}")
    own_client.ok("POST", "/admin/advance", {"seconds": 8 * DAY_S})
    assert own_client.error("GET", f"/iam/v1/{ROLE}")[0] == 404
    assert own_client.error("POST", f"/iam/v1/{ROLE}:undelete", {})[0] == 404
    assert own_client.error("POST", ROLES, {"roleId": "tunnel", "role": {}})[0] == 400
    own_client.ok("POST", "/admin/advance", {"seconds": 30 * DAY_S})
    assert created(own_client)["name"] == ROLE


def test_roles_that_cannot_be_granted_are_refused_in_googles_words(own_client, subtests):
    created(own_client)
    created(own_client, "gone")
    own_client.ok("DELETE", f"{ROLES}/gone")
    own_client.ok(
        "POST", "/iam/v1/organizations/123/roles", {"roleId": "tunnel", "role": {"includedPermissions": THREE}}
    )
    own_client.ok("POST", "/admin/projects", {"projectId": "other-project"})
    own_client.ok("POST", "/iam/v1/projects/other-project/roles", {"roleId": "tunnel", "role": {}})
    for role in (
        f"projects/{PROJECT}/roles/missing",
        f"projects/{PROJECT}/roles/gone",
        "projects/other-project/roles/tunnel",
        "organizations/123/roles/tunnel",
    ):
        with subtests.test(role):
            assert try_grant(own_client, role) == (400, f"Role ({role}) does not exist in the resource's hierarchy.")
    own_client.ok("PUT", "/admin/scenario", {"iam": {"organization": "123"}}, merge="true")
    grant(own_client, PROJECT_POLICY, "organizations/123/roles/tunnel")
    assert held(own_client, *THREE) == THREE


def test_a_role_of_its_project_can_be_granted_on_a_bucket_of_the_project(own_client):
    created(own_client)
    own_client.ok("POST", "/storage/storage/v1/b", {"name": "b-1"}, project=PROJECT)
    body = {"bindings": [{"role": ROLE, "members": ["user:alice@example.com"]}]}
    own_client.ok("PUT", "/storage/storage/v1/b/b-1/iam", body)
    body["bindings"][0]["role"] = f"projects/{PROJECT}/roles/missing"
    assert own_client.error("PUT", "/storage/storage/v1/b/b-1/iam", body)[0] == 400


def test_a_new_role_can_be_granted_after_a_moment(own_client):
    own_client.ok("PUT", "/admin/scenario", {"iam": {"new_role_lag_s": 600}}, merge="true")
    created(own_client)
    assert try_grant(own_client, ROLE)[0] == 400
    own_client.ok("POST", "/admin/advance", {"seconds": 601})
    grant(own_client, PROJECT_POLICY, ROLE)


def test_malformed_roles_are_refused(own_client, subtests):
    created(own_client)
    for name, body, status in (
        ("short id", {"roleId": "ab", "role": {}}, 400),
        ("id with a dash", {"roleId": "gemma-tunnel", "role": {}}, 400),
        ("no permission", {"roleId": "other", "role": {"includedPermissions": ["tpu.nodes.*"]}}, 400),
        (
            "of an organization",
            {"roleId": "other", "role": {"includedPermissions": ["resourcemanager.projects.list"]}},
            400,
        ),
        ("named twice", {"roleId": "other", "role": {"name": ROLE}}, 400),
        ("taken", {"roleId": "tunnel", "role": {}}, 409),
    ):
        with subtests.test(name):
            assert own_client.error("POST", ROLES, body)[0] == status


def test_an_editor_creates_no_role_and_a_viewer_reads_one(own_client):
    created(own_client)
    for role in ("roles/editor", "roles/viewer"):
        grant(own_client, PROJECT_POLICY, role)
    alice = alice_of(own_client)
    assert alice.error("POST", ROLES, {"roleId": "other", "role": {}})[0] == 403
    assert alice.ok("GET", f"/iam/v1/{ROLE}")["includedPermissions"] == THREE
    grant(own_client, PROJECT_POLICY, "roles/iam.roleAdmin")
    assert alice.ok("POST", ROLES, {"roleId": "other", "role": {}})["name"].endswith("/roles/other")


def test_gclouds_command_creates_a_role(own_client):
    api = Api(
        lambda path, body, token: own_client.ok("POST", path, body),
        lambda path, body: own_client.ok("POST", path, body),
    )
    words = ["tunnel", f"--project={PROJECT}", "--title=Tunnel", f"--permissions={','.join(THREE)}"]
    gcloud_project.create_role(api, Words.of(words))
    assert own_client.ok("GET", f"/iam/v1/{ROLE}")["includedPermissions"] == THREE
