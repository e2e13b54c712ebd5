"""A secret value of the server in Secret Manager, with grants only for its readers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pulumi
import pulumi_gcp as gcp

from contracts.labels import Ownership

_ACCESSOR = "roles/secretmanager.secretAccessor"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSecretArgs:
    """A secret and its readers."""

    kind: Literal["HfTokenSecret", "ApiKeySecret", "ArchiveKeySecret"]
    """Type of the component: a change replaces the secret."""
    project: str
    secret_id: str
    """Id of the secret. A change replaces the secret."""
    value: pulumi.Output[str]
    """The value, marked as a secret, so the state and the preview never contain it in plain text."""
    ownership: Ownership
    readers: Mapping[str, pulumi.Input[str]]
    """IAM members that can read the value, by a short name."""
    labels: Mapping[str, str]
    keeps_value: bool = False
    """Keep the value of the first version, even if `value` changes."""


class StoredSecret(pulumi.ComponentResource):
    """One secret, one version of it, and one grant per reader.

    A new value creates a new version and destroys the old one. Nothing reads "latest", which can change under a running server.
    """

    secret_id: pulumi.Output[str]
    version: pulumi.Output[str]
    version_name: pulumi.Output[str]
    """projects/P/secrets/S/versions/N."""
    grants: list[pulumi.Resource]

    def __init__(self, name: str, args: StoredSecretArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(f"gemma-serving:index:{args.kind}", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        secret = gcp.secretmanager.Secret(
            name,
            gcp.secretmanager.SecretArgs(
                secret_id=args.secret_id,
                project=args.project,
                replication=gcp.secretmanager.SecretReplicationArgs(auto=gcp.secretmanager.SecretReplicationAutoArgs()),
                labels={**args.labels, **args.ownership.labels},
            ),
            opts=child,
        )
        version = gcp.secretmanager.SecretVersion(
            name,
            gcp.secretmanager.SecretVersionArgs(
                secret=secret.id,
                # Marked here too, because the value must be a secret in the state for every caller.
                secret_data=pulumi.Output.secret(args.value),
                deletion_policy="DELETE",
            ),
            opts=pulumi.ResourceOptions.merge(
                child, pulumi.ResourceOptions(ignore_changes=["secretData"] if args.keeps_value else None)
            ),
        )
        self.grants = _grants(name, args.project, secret.secret_id, args.readers, child)
        self.secret_id = secret.secret_id
        self.version = version.version
        self.version_name = version.name
        self.register_outputs({"versionName": self.version_name})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingSecretArgs:
    """An existing version and its readers."""

    version_name: str
    """projects/P/secrets/S/versions/N. P may be another project."""
    readers: Mapping[str, pulumi.Input[str]]
    """IAM members that can read the value, by a short name."""


class ExistingSecret(pulumi.ComponentResource):
    """An existing version. Only the grants on its secret belong to the stack. Its value never passes through Pulumi."""

    secret_id: pulumi.Output[str]
    """projects/P/secrets/S: Cloud Run accepts the short id only for secrets of the service's project."""
    version: pulumi.Output[str]
    version_name: pulumi.Output[str]
    grants: list[pulumi.Resource]

    def __init__(self, name: str, args: ExistingSecretArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gemma-serving:index:ExistingSecret", name, None, opts)
        _, project, _, secret, _, version = args.version_name.split("/")
        self.secret_id = pulumi.Output.from_input(f"projects/{project}/secrets/{secret}")
        self.version = pulumi.Output.from_input(version)
        self.version_name = pulumi.Output.from_input(args.version_name)
        self.grants = _grants(name, project, secret, args.readers, pulumi.ResourceOptions(parent=self))
        self.register_outputs({"versionName": self.version_name})


def _grants(
    name: str,
    project: str,
    secret: pulumi.Input[str],
    readers: Mapping[str, pulumi.Input[str]],
    opts: pulumi.ResourceOptions,
) -> list[pulumi.Resource]:
    return [
        gcp.secretmanager.SecretIamMember(
            f"{name}-{reader}",
            gcp.secretmanager.SecretIamMemberArgs(
                project=project,
                secret_id=secret,
                role=_ACCESSOR,
                member=member,
            ),
            opts=opts,
        )
        for reader, member in readers.items()
    ]
