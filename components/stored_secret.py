"""Secret values of a server in Secret Manager: a Hugging Face token, an API key, a signing key. Only their readers can read them."""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Final, TypeAlias

import pulumi
import pulumi_gcp as gcp

from gemma_serving.components.checks import (
    Input,
    InvalidArgumentError,
    Labels,
    Owner,
    arguments,
    program_ownership,
    require_valid,
)
from gemma_serving.planning.settings import text
from gemma_serving.planning.settings.fields import Block
from gemma_serving.planning.settings.reading import problem_with

_ACCESSOR: Final = "roles/secretmanager.secretAccessor"


@arguments
class StoredSecretArgs(Block):
    """A secret and its readers."""

    project: Input[text.ProjectId] | None = None
    """Id of the Google Cloud project. A change replaces the secret. Default: the provider's, such as `gcp:project`."""
    secret_id: Input[text.SecretId]
    """Id of the secret in the project, up to 255 letters, digits, hyphens and underscores. A change replaces the secret."""
    value: Input[str] = field(repr=False)
    """The value, such as `pulumi.Config().require_secret("hfToken")`. A change creates another version and restarts the servers that use it."""
    readers: Mapping[str, Input[text.Grantee]] = field(default_factory=dict[str, pulumi.Input[str]])
    """IAM members that can read the value, by a short name, such as `{"server": "serviceAccount:..."}`. Each gets one grant."""
    ownership: Owner = field(default_factory=program_ownership)
    """Owner in the labels of the secret. Default: the project and stack of the running program."""
    labels: Labels = field(default_factory=dict[str, pulumi.Input[str]])
    """Additional labels of the secret. A change updates it in place."""


class StoredSecret(pulumi.ComponentResource):
    """One secret, one version of it, and one grant per reader. Use one of its kinds.

    A new value creates a new version, and older ones stay. Nothing reads "latest", which can change under a running server.
    """

    _kind: ClassVar[str]
    """Last part of the component's Pulumi type, and so part of its URN: another one replaces the secret."""
    _keeps_value: ClassVar[bool] = False
    """Keep the value of the first version, even if `value` changes."""

    secret_id: pulumi.Output[str]
    """Id of the secret in its project."""
    version: pulumi.Output[str]
    """Number of the version."""
    version_name: pulumi.Output[str]
    """projects/P/secrets/S/versions/N."""
    grants: list[pulumi.Resource]
    """One grant per reader. A server must not start before them."""

    def __init__(self, name: str, args: StoredSecretArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        require_valid(f'{type(self).__name__} "{name}"', args, StoredSecretArgs)
        super().__init__(f"gemma-serving:index:{self._kind}", name, None, opts)
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
                # The previous revision of a service reads the previous version (`stacks.hooks.old_secrets`). All end with the secret.
                deletion_policy="ABANDON",
            ),
            opts=pulumi.ResourceOptions.merge(
                child, pulumi.ResourceOptions(ignore_changes=["secretData"] if self._keeps_value else None)
            ),
        )
        self.grants = _grants(name, args.project, secret.secret_id, args.readers, child)
        self.secret_id = secret.secret_id
        self.version = version.version
        self.version_name = version.name
        self.register_outputs({"versionName": self.version_name})


class HuggingFaceToken(StoredSecret):
    """A Hugging Face token, for checkpoints that require one.

    Pass it to a server as `secrets={"HF_TOKEN": token}`. The server reads the value at its start; no argument or log contains it.
    """

    _kind = "HuggingFaceToken"

    def __init__(self, name: str, args: StoredSecretArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        """Declare the token. A state that has it as HfTokenSecret, its former type, keeps its resources."""
        former = pulumi.ResourceOptions(aliases=[pulumi.Alias(type_="gemma-serving:index:HfTokenSecret")])
        super().__init__(name, args, pulumi.ResourceOptions.merge(opts, former))


class ApiKeySecret(StoredSecret):
    """An API key that the server requires of its callers (docs/secrets.md), in the variable VLLM_API_KEY."""

    _kind = "ApiKeySecret"


class ArchiveKeySecret(StoredSecret):
    """The key that signs archives of compiled programs. Each run draws one, but the first stays (decision 36)."""

    _kind = "ArchiveKeySecret"
    _keeps_value = True


@arguments
class ExistingSecretArgs(Block):
    """An existing version and its readers."""

    version_name: text.SecretVersion
    """projects/P/secrets/S/versions/N. P may be another project. A change restarts the servers that use it."""
    readers: Mapping[str, Input[text.Grantee]] = field(default_factory=dict[str, pulumi.Input[str]])
    """IAM members that can read the value, by a short name."""


class ExistingSecret(pulumi.ComponentResource):
    """An existing version. Only the grants on its secret belong to the stack. Its value never passes through Pulumi."""

    secret_id: pulumi.Output[str]
    """projects/P/secrets/S: Cloud Run accepts the short id only for secrets of the service's project."""
    version: pulumi.Output[str]
    version_name: pulumi.Output[str]
    grants: list[pulumi.Resource]

    def __init__(self, name: str, args: ExistingSecretArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        require_valid(f'ExistingSecret "{name}"', args, ExistingSecretArgs)
        super().__init__("gemma-serving:index:ExistingSecret", name, None, opts)
        _, project, _, secret, _, version = args.version_name.split("/")
        self.secret_id = pulumi.Output.from_input(f"projects/{project}/secrets/{secret}")
        self.version = pulumi.Output.from_input(version)
        self.version_name = pulumi.Output.from_input(args.version_name)
        self.grants = _grants(name, project, secret, args.readers, pulumi.ResourceOptions(parent=self))
        self.register_outputs({"versionName": self.version_name})


class SecretReference:
    """An existing version by its name, which may be an output. Whoever grants the server access declares the grant."""

    def __init__(self, version_name: pulumi.Input[text.SecretVersion], project: str) -> None:
        """Read the parts of the name. `project` is the server's, for whose secrets Cloud Run takes the short id."""
        name = pulumi.Output.from_input(version_name).apply(_of_version)
        self.secret_id = name.apply(
            lambda known: known.rpartition("/versions/")[0].removeprefix(f"projects/{project}/secrets/")
        )
        self.version = name.apply(lambda known: known.rpartition("/")[2])
        self.version_name = name


def _of_version(name: str) -> str:
    """Return the name of a version. Raises InvalidArgumentError without the name, which may be the secret itself."""
    problem = problem_with(text.SecretVersion, name)
    if problem is None:
        return name
    error = InvalidArgumentError(
        f"A value of `secrets` is not a version: {problem}. Store the secret in Secret Manager, then pass its version."
    )
    pulumi.log.error(str(error))
    if pulumi.runtime.is_dry_run():  # the logged error ends a preview, without a traceback of the SDK
        return ""
    raise error


Secret: TypeAlias = StoredSecret | ExistingSecret | SecretReference
"""A secret of a server."""


def _grants(
    name: str,
    project: pulumi.Input[str] | None,
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
