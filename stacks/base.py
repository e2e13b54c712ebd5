"""Parts of both targets: project, account, image, secrets, bucket and command line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex

import pulumi
import pulumi_gcp as gcp

from gemma_serving.components.model_bucket import ModelBucket, ModelBucketArgs
from gemma_serving.components.runtime_identity import RuntimeIdentity, RuntimeIdentityArgs
from gemma_serving.components.serving_image import ServingImage, ServingImageArgs, UpstreamAccount
from gemma_serving.components.stored_secret import (
    ApiKeySecret,
    ArchiveKeySecret,
    ExistingSecret,
    ExistingSecretArgs,
    HuggingFaceToken,
    Secret,
    StoredSecret,
    StoredSecretArgs,
)
from gemma_serving.contracts.compile_cache import ARCHIVE_KEEP_DAYS
from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.naming import ARCHIVE_KEY
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.settings.secrets import HF_TOKEN, KINDS, SecretKey, SecretKind
from gemma_serving.stacks.google_project.bucket_conflict import require_free_bucket_name
from gemma_serving.stacks.google_project.propagation import NewGrants, require_resource_manager, wait_for_google
from gemma_serving.stacks.server_command import PlannedServer

_ARCHIVE_KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(PlannedServer):
    """Inputs shared by both targets: the planned server, labels and secrets."""

    subject: Subject
    """The deployment with the figures behind the plan."""
    home_region: str
    """Region of the bucket and of the first image repository (`stacks.deployed.home_region`)."""
    ownership: Ownership
    secrets: Mapping[SecretKey, pulumi.Output[str]]
    """Secrets set by value, as secret outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """Resources that the arguments of either target's server name. A stack declares them; the package's components take them as inputs."""

    account: pulumi.Input[str]
    """E-mail address of the server's account."""
    image: pulumi.Input[str]
    """Reference by digest; a stack's is in its home region."""
    image_repositories: Mapping[str, pulumi.Output[str]]
    """HOST/PROJECT/REPOSITORY of each region that has the image."""
    bucket: ModelBucket | pulumi.Input[str] | None
    """Bucket for weights and compiled programs, or its name, or None."""
    secrets: Mapping[str, Secret]
    """Secret by the environment variable of the server that holds its value."""
    archive_key: StoredSecret | None
    """Key that signs archives of compiled programs, or None."""

    @property
    def bucket_name(self) -> pulumi.Output[str] | None:
        """Name of the bucket, or None."""
        bucket = self.bucket.bucket if isinstance(self.bucket, ModelBucket) else self.bucket
        return None if bucket is None else pulumi.Output.from_input(bucket)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation(ServerParts):
    """Resources that the server of either target needs."""

    options: pulumi.ResourceOptions
    """Options for a component: the explicit provider."""
    identity: RuntimeIdentity
    ready: Sequence[pulumi.Resource]
    """Resources that must exist before the server starts."""
    new_grants: NewGrants
    """Grants of this run. They may take minutes to take effect."""


def lay_foundation(context: Context, *, project_roles: Sequence[str], before_change: Callable[[], None]) -> Foundation:
    """Declare the resources that both targets share.

    `project_roles`: roles of the server's account on the project. `before_change` is called once the project can be read, before any change.
    Raises CommandRefusedError for a project that cannot be read.
    """
    settings, names = context.settings, context.names
    project, region = settings.project, context.home_region
    # The provider reads no quota project of a login (hashicorp/terraform-provider-google#20459), and Google rejects most user calls without one.
    provider = gcp.Provider("gcp", project=project, region=region, billing_project=project, user_project_override=True)
    options = pulumi.ResourceOptions(providers={"gcp": provider})
    require_resource_manager(project)
    before_change()
    new_grants = wait_for_google(project=project)
    identity = RuntimeIdentity(
        "server",
        RuntimeIdentityArgs(
            project=project,
            account_id=names.account_id,
            ownership=context.ownership,
            project_roles=project_roles,
        ),
        options,
    )
    readers: Mapping[str, pulumi.Input[str]] = {"server": identity.member}
    image = _image(context, readers, options)
    bucket = _bucket(context, readers, options)
    needed = {kind: kind is not HF_TOKEN or context.needs_hub for kind in KINDS if settings.has_secret(kind.key)}
    # A server that downloads nothing from the hub must not be able to leak a token, so it gets neither the variable nor access to the secret.
    stored = {kind: _secret(kind, context, readers if needed[kind] else {}, options) for kind in needed}
    archive_key = _archive_key(context, readers, options) if settings.archives_programs else None
    granted = [identity, image, *filter(None, (bucket, archive_key)), *stored.values()]
    return Foundation(
        options=options,
        identity=identity,
        account=identity.email,
        image=image.ref,
        image_repositories=image.repositories,
        bucket=bucket,
        secrets={kind.variable: secret for kind, secret in stored.items() if needed[kind]},
        archive_key=archive_key,
        ready=[grant for part in granted for grant in part.grants],
        new_grants=new_grants,
    )


def _image(context: Context, readers: Mapping[str, pulumi.Input[str]], options: pulumi.ResourceOptions) -> ServingImage:
    settings = context.settings
    account = context.settings.docker_hub
    home = context.home_region
    arguments = ServingImageArgs(
        project=settings.project,
        locations=tuple(dict.fromkeys((home, *settings.regions))),
        repository_id=context.names.base,
        upstream=settings.image.repository,
        digest=settings.image.digest,
        ownership=context.ownership,
        labels=settings.labels,
        readers=readers,
        build_context=settings.image.build_context,
        others_pull_upstream=context.needs_hub and settings.tpu is not None,
        upstream_account=account and UpstreamAccount(username=account.username, token_secret=account.token_secret),
    )
    return ServingImage("image", arguments, options)


def _bucket(
    context: Context, readers: Mapping[str, pulumi.Input[str]], options: pulumi.ResourceOptions
) -> ModelBucket | None:
    settings = context.settings
    if not settings.uses_bucket:
        return None
    if settings.bucket.existing is None:
        require_free_bucket_name(project=settings.project, bucket=context.names.bucket, ownership=context.ownership)
    return ModelBucket(
        "models",
        ModelBucketArgs(
            project=settings.project,
            name=context.names.bucket,
            location=context.home_region,
            ownership=context.ownership,
            readers=readers,
            labels=settings.labels,
            existing=settings.bucket.existing,
            # A replacement, or settings without a bucket, empties and deletes it, along with the files that a running revision reads.
            protect=settings.weights == "bucket" and settings.bucket.protect,
            retain=settings.bucket.retain_on_destroy,
            archivers=readers if settings.archives_programs else {},
            # A TPU machine deletes old archives itself; instances of a service come and go.
            archive_days=ARCHIVE_KEEP_DAYS if settings.archives_programs and settings.target == "cloud-run" else None,
        ),
        options,
    )


def _secret(
    kind: SecretKind, context: Context, readers: Mapping[str, pulumi.Input[str]], options: pulumi.ResourceOptions
) -> StoredSecret | ExistingSecret:
    """Return a secret of the stack. For an existing one, only the grants are created."""
    existing = context.settings.secret_version(kind.key)
    if existing is not None:
        return ExistingSecret(kind.name, ExistingSecretArgs(version_name=existing, readers=readers), options)
    arguments = _secret_args(context, kind.name, context.secrets[kind.key], readers)
    return (HuggingFaceToken if kind is HF_TOKEN else ApiKeySecret)(kind.name, arguments, options)


def _archive_key(
    context: Context, readers: Mapping[str, pulumi.Input[str]], options: pulumi.ResourceOptions
) -> ArchiveKeySecret:
    """Return the key of archives."""
    value = pulumi.Output.secret(token_hex(_ARCHIVE_KEY_BYTES))
    return ArchiveKeySecret(ARCHIVE_KEY, _secret_args(context, ARCHIVE_KEY, value, readers), options)


def _secret_args(
    context: Context,
    name: str,
    value: pulumi.Output[str],
    readers: Mapping[str, pulumi.Input[str]],
) -> StoredSecretArgs:
    return StoredSecretArgs(
        project=context.settings.project,
        secret_id=f"{context.names.base}-{name}",
        value=value,
        ownership=context.ownership,
        readers=readers,
        labels=context.settings.labels,
    )
