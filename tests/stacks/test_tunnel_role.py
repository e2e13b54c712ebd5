"""`tpu.tunnelRole`: which names it takes, and the commands that are printed for each."""

import shlex
from pathlib import Path

from gemma_serving.contracts.tunnel_role import PERMISSIONS, tunnel_role
from gemma_serving.stacks.loading import from_file

FILE = Path(__file__).parents[2] / "Pulumi.tpu-v6e1.yaml"


def setting(value):
    return from_file(FILE, project="my-project", changes={"tpu.tunnelRole": value}).tpu.tunnel_role


def test_a_role_is_named_by_its_id_or_in_full(subtests):
    for value, name, place in (
        ("gemmaTunnel", "projects/my-project/roles/gemmaTunnel", "--project=my-project"),
        ("projects/p-2-two/roles/a.b_c", "projects/p-2-two/roles/a.b_c", "--project=p-2-two"),
        ("organizations/123/roles/tunnel", "organizations/123/roles/tunnel", "--organization=123"),
    ):
        with subtests.test(value):
            role = tunnel_role(setting(value), "my-project")
            assert role.name == name
            words = shlex.split(role.create_command())
            assert words[:6] == ["gcloud", "iam", "roles", "create", role.id, place]
            assert f"--permissions={','.join(PERMISSIONS)}" in words
            assert shlex.split(role.command("undelete"))[3:] == ["undelete", role.id, place]
