"""`tpu.tunnelRole`: which names it takes, and the commands that are printed for each."""

import shlex
from pathlib import Path

import pytest

from gemma_serving.contracts.tunnel_role import PERMISSIONS, tunnel_role
from gemma_serving.stacks.loading import SettingsError, from_file

FILE = Path(__file__).parents[2] / "Pulumi.tpu-v6e1.yaml"


def setting(tmp_path, value):
    lines = f"    acceleratorType: v6e-1\n    tunnelRole: {value}\n"
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text(FILE.read_text().replace("    acceleratorType: v6e-1\n", lines))
    return from_file(path, project="my-project").tpu.tunnel_role


def test_a_role_is_named_by_its_id_or_in_full(tmp_path, subtests):
    for value, name, place in (
        ("gemmaTunnel", "projects/my-project/roles/gemmaTunnel", "--project=my-project"),
        ("projects/p-2-two/roles/a.b_c", "projects/p-2-two/roles/a.b_c", "--project=p-2-two"),
        ("organizations/123/roles/tunnel", "organizations/123/roles/tunnel", "--organization=123"),
    ):
        with subtests.test(value):
            role = tunnel_role(setting(tmp_path, value), "my-project")
            assert role.name == name
            words = shlex.split(role.create_command())
            assert words[:6] == ["gcloud", "iam", "roles", "create", role.id, place]
            assert f"--permissions={','.join(PERMISSIONS)}" in words
            assert shlex.split(role.command("undelete"))[3:] == ["undelete", role.id, place]


def test_names_that_google_would_refuse_are_refused(tmp_path, subtests):
    for value in (
        "roles/tpu.admin",
        "ab",
        "gemma-tunnel",
        "projects/12345678/roles/x1y",
        "organizations/acme/roles/tunnel",
        "x" * 65,
    ):
        with (
            subtests.test(value),
            pytest.raises(
                SettingsError,
                match=r"expected a custom role: ID, projects/P/roles/ID .* such as gemmaTunnel",
            ),
        ):
            setting(tmp_path, value)
