"""Custom role of `tpu.tunnelRole`. No stack creates it: the id of a deleted role stays reserved for weeks."""

from typing import Final, NamedTuple

PERMISSIONS: Final = ("tpu.nodes.get", "tpu.nodes.update", "tpu.operations.get")
"""gcloud reads a node, writes the SSH key into its metadata, and waits (gcloud 528, command_lib/compute/tpus/tpu_vm/ssh.py)."""
SUGGESTED_ID: Final = "gemmaTunnel"
ADMIN: Final = "roles/tpu.admin"
"""Role of members without the setting: the narrowest predefined role with the three permissions."""


class TunnelRole(NamedTuple):
    """A custom role of a project or an organization."""

    parent: str
    """`projects/ID` or `organizations/NUMBER`."""
    id: str

    @property
    def name(self) -> str:
        """Full name, as used in policies."""
        return f"{self.parent}/roles/{self.id}"

    def create_command(self) -> str:
        """Return the command that creates the role, once for all stacks."""
        permissions = f"--permissions={','.join(PERMISSIONS)}"
        return self.command("create", "--title='gemma-serving tunnel'", "--stage=GA", permissions)

    def command(self, verb: str, *options: str) -> str:
        """Return a gcloud command for the role. `undelete` restores it within 7 days after its deletion."""
        kind, _, owner = self.parent.partition("/")
        return " ".join(("gcloud iam roles", verb, self.id, f"--{kind.removesuffix('s')}={owner}", *options))


def tunnel_role(setting: str, project: str) -> TunnelRole:
    """Return the role of a setting: by its id in the stack's project, or by its full name."""
    parent, _, role_id = setting.rpartition("/roles/")
    return TunnelRole(parent or f"projects/{project}", role_id)
