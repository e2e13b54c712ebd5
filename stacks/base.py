"""What both targets have in common: the provider, the APIs, who runs the server, its image, its token and its bucket."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from components.hf_token_secret import HfTokenSecret, HfTokenSecretArgs
from components.model_bucket import ModelBucket, ModelBucketArgs
from components.ownership import Ownership
from components.runtime_identity import RuntimeIdentity, RuntimeIdentityArgs
from components.serving_image import ServingImage, ServingImageArgs
from planning.types import Plan
from stacks.naming import Names
from stacks.settings import Settings

PORT = 8000
COMMAND = ("vllm", "serve")
MODELS_FOLDER = "/mnt/models"

_COMMON_APIS = ("iam", "artifactregistry", "secretmanager", "storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a stack is made from. `token` is the secret output of the Hugging Face token, None where none is set."""

    settings: Settings
    plan: Plan
    names: Names
    ownership: Ownership
    token: pulumi.Output[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """What the server of either target stands on. `ready` is what has to be there before it starts."""

    options: pulumi.ResourceOptions
    """Options for a component: the explicit provider, after the APIs."""
    identity: RuntimeIdentity
    image: ServingImage
    bucket: ModelBucket | None
    token: HfTokenSecret | None
    ready: Sequence[pulumi.Resource]


def lay_foundation(context: Context, *, region: str, apis: Sequence[str], project_roles: Sequence[str]) -> Foundation:
    """Declare the resources that both targets share, in `region`, with one explicit provider for the stack's project."""
    settings, names = context.settings, context.names
    provider = gcp.Provider("gcp", project=settings.project, region=region)
    enabled = _enable(settings.project, (*_COMMON_APIS, *apis), provider)
    options = pulumi.ResourceOptions(providers={"gcp": provider}, depends_on=enabled)
    identity = RuntimeIdentity(
        "server",
        RuntimeIdentityArgs(
            project=settings.project,
            account_id=names.account_id,
            ownership=context.ownership,
            project_roles=project_roles,
        ),
        options,
    )
    readers: Mapping[str, pulumi.Input[str]] = {"server": identity.member}
    image = ServingImage(
        "image",
        ServingImageArgs(
            project=settings.project,
            location=region,
            repository_id=names.base,
            upstream=settings.image.repository,
            digest=settings.image.digest,
            ownership=context.ownership,
            labels=settings.labels,
            readers=readers,
            build_context=settings.image.build_context,
        ),
        options,
    )
    bucket = _bucket(context, region, readers, options)
    token = _token(context, readers, options)
    grants = [*identity.grants, *image.grants, *(bucket.grants if bucket else []), *(token.grants if token else [])]
    return Foundation(options=options, identity=identity, image=image, bucket=bucket, token=token, ready=grants)


def _enable(project: str, apis: Sequence[str], provider: gcp.Provider) -> list[pulumi.Resource]:
    """Enable the APIs that the stack uses; they stay enabled when the stack goes, since others may have come to use them."""
    return [
        gcp.projects.Service(
            api,
            project=project,
            service=f"{api}.googleapis.com",
            disable_on_destroy=False,
            opts=pulumi.ResourceOptions(provider=provider),
        )
        for api in apis
    ]


def _bucket(
    context: Context, region: str, readers: Mapping[str, pulumi.Input[str]], options: pulumi.ResourceOptions
) -> ModelBucket | None:
    settings = context.settings
    if settings.weights != "bucket":
        return None
    return ModelBucket(
        "models",
        ModelBucketArgs(
            project=settings.project,
            name=context.names.bucket,
            location=region,
            ownership=context.ownership,
            readers=readers,
            labels=settings.labels,
            existing=settings.bucket.existing,
            force_destroy=settings.bucket.force_destroy,
        ),
        options,
    )


def _token(
    context: Context, readers: Mapping[str, pulumi.Input[str]], options: pulumi.ResourceOptions
) -> HfTokenSecret | None:
    if context.token is None:
        return None
    return HfTokenSecret(
        "hf-token",
        HfTokenSecretArgs(
            project=context.settings.project,
            secret_id=f"{context.names.base}-hf-token",
            token=context.token,
            ownership=context.ownership,
            readers=readers,
            labels=context.settings.labels,
        ),
        options,
    )
