"""The custom role of `tpu.tunnelRole`: its permissions, its names, and the commands with which a person creates and changes it.

No stack creates it: the id of a deleted role stays taken for weeks, so that a stack could not come back after a teardown.
"""

from dataclasses import dataclass
from typing import Final

PERMISSIONS: Final = ("tpu.nodes.get", "tpu.nodes.update", "tpu.operations.get")
"""What gcloud calls at a node of Cloud TPU before it logs in: it reads the node and its guest attributes, writes the SSH key into its metadata,
and waits for that operation (gcloud 528, command_lib/compute/tpus/tpu_vm/ssh.py)."""
SUGGESTED_ID: Final = "gemmaTunnel"
ADMIN: Final = "roles/tpu.admin"
"""What members get without the setting: the narrowest predefined role that has the three permissions."""


@dataclass(frozen=True)
class TunnelRole:
    """A custom role of a project or an organization."""

    parent: str
    """`projects/ID` or `organizations/NUMBER`."""
    id: str

    @property
    def name(self) -> str:
        """The full name, as policies have it."""
        return f"{self.parent}/roles/{self.id}"

    def create_command(self) -> str:
        """Return the command that creates it, once for all stacks."""
        what = f"--title='gemma-serving tunnel' --stage=GA --permissions={','.join(PERMISSIONS)}"
        return f"gcloud iam roles create {self._place} {what}"

    def add_command(self, permissions: "tuple[str, ...]") -> str:
        """Return the command that adds permissions to it."""
        return f"gcloud iam roles update {self._place} --add-permissions={','.join(permissions)}"

    def enable_command(self) -> str:
        """Return the command that makes a disabled role grant its permissions again."""
        return f"gcloud iam roles update {self._place} --stage=GA"

    def undelete_command(self) -> str:
        """Return the command that restores it in the 7 days after its deletion."""
        return f"gcloud iam roles undelete {self._place}"

    @property
    def _place(self) -> str:
        kind, _, owner = self.parent.partition("/")
        return f"{self.id} --{kind.removesuffix('s')}={owner}"


def tunnel_role(setting: str, project: str) -> TunnelRole:
    """Return the role that a setting names: by its id in the stack's project, or by its full name."""
    parent, _, role_id = setting.rpartition("/roles/")
    return TunnelRole(parent or f"projects/{project}", role_id)
