"""The Hugging Face token in Secret Manager, with grants for its readers only."""

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from contracts.labels import Ownership


@dataclass(frozen=True, slots=True, kw_only=True)
class HfTokenSecretArgs:
    """A secret and its readers."""

    project: str
    secret_id: str
    """Id of the secret. A change replaces the secret."""
    token: pulumi.Output[str]
    """The token's value. It is marked as a secret, so that the state and the preview never hold it in clear."""
    ownership: Ownership
    readers: Mapping[str, pulumi.Input[str]]
    """IAM members that may read the token, by a short name."""
    labels: Mapping[str, str]


class HfTokenSecret(pulumi.ComponentResource):
    """One secret, one version of it, and one grant per reader.

    A new token makes a new version and destroys the old one. `version_name` changes with it, so that whatever refers to the
    version is rolled out again. Nothing reads "latest", which would change under a running server.
    """

    secret_id: pulumi.Output[str]
    version: pulumi.Output[str]
    """The version's number."""
    version_name: pulumi.Output[str]
    """projects/P/secrets/S/versions/N."""
    grants: list[pulumi.Resource]

    def __init__(self, name: str, args: HfTokenSecretArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gemma-serving:index:HfTokenSecret", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        secret = gcp.secretmanager.Secret(
            name,
            secret_id=args.secret_id,
            project=args.project,
            replication=gcp.secretmanager.SecretReplicationArgs(auto=gcp.secretmanager.SecretReplicationAutoArgs()),
            labels={**args.labels, **args.ownership.labels},
            opts=child,
        )
        version = gcp.secretmanager.SecretVersion(
            name,
            secret=secret.id,
            # Marked here too: the value must be a secret in the state whatever the caller passes.
            secret_data=pulumi.Output.secret(args.token),
            deletion_policy="DELETE",
            opts=child,
        )
        self.grants = [
            gcp.secretmanager.SecretIamMember(
                f"{name}-{reader}",
                project=args.project,
                secret_id=secret.secret_id,
                role="roles/secretmanager.secretAccessor",
                member=member,
                opts=child,
            )
            for reader, member in args.readers.items()
        ]
        self.secret_id = secret.secret_id
        self.version = version.version
        self.version_name = version.name
        self.register_outputs({"versionName": self.version_name})
