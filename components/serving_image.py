"""The server's image by digest: pulled through an Artifact Registry remote repository, used as it is in Artifact Registry, or built on another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

import pulumi
import pulumi_gcp as gcp

from gemma_serving.contracts.installation import install_sentence
from gemma_serving.contracts.labels import Ownership
from gemma_serving.planning.settings.image import in_artifact_registry

_DOCKER_HUB: Final = "docker.io"
_DELETE_FIRST: Final = pulumi.ResourceOptions(delete_before_replace=True)
"""A replacement has the same name and the same grants: deleted afterwards, the old ones refuse it or are deleted with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamAccount:
    """A Docker Hub account. Its token stays in Secret Manager, where only Artifact Registry's service agent reads it."""

    username: str
    token_secret: str
    """projects/P/secrets/S/versions/N."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingImageArgs:
    """An image of Docker Hub or Artifact Registry, used directly or as the base of an image that is built here."""

    project: str
    locations: Sequence[str]
    """Regions in which the server may start, the stack's home region first. Each gets a repository, but a built image is stored in the first
    only, as is one that other regions pull from Docker Hub. Changing the first region replaces its repository."""
    repository_id: str
    upstream: str
    """Repository on Docker Hub, such as vllm/vllm-openai, or LOCATION-docker.pkg.dev/PROJECT/REPOSITORY/IMAGE, which gets no repository here."""
    digest: str
    """Digest of the image, "sha256:..."."""
    ownership: Ownership
    labels: Mapping[str, str]
    readers: Mapping[str, pulumi.Input[str]]
    """IAM members that can pull the image, by a short name."""
    upstream_account: UpstreamAccount | None = None
    """Account used by Artifact Registry to pull from Docker Hub. None: no account."""
    others_pull_upstream: bool = False
    """Machines outside the first region pull from Docker Hub, through the Cloud NAT that they have for the weights. Not with an account:
    its token stays in Secret Manager."""
    build_context: str | None = None
    """Folder with a Dockerfile based on the build argument BASE_IMAGE. None: the upstream image is used directly."""


class ServingImage:
    """Repositories of the stack, and the reference to pull from them.

    A remote repository caches the upstream image close to the server, so a TPU VM without internet access can pull it, and a start does not
    depend on Docker Hub. An empty repository costs nothing.
    """

    ref: pulumi.Output[str]
    """HOST/PROJECT/REPOSITORY/NAME@sha256:... in the first region."""
    repositories: Mapping[str, pulumi.Output[str]]
    """HOST/PROJECT/REPOSITORY, or Docker Hub's host, from which each region pulls the image."""
    grants: list[pulumi.Resource]

    def __init__(self, name: str, args: ServingImageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        building = args.build_context is not None
        if building and find_spec("pulumi_docker") is None:
            what = f'ServingImage "{name}": the package pulumi-docker, which builds images, is not installed.'
            raise pulumi.RunError(f"{what} {install_sentence('images')}")
        self.grants, self.repositories = [], {}
        if in_artifact_registry(args.upstream) and not building:
            host, project, repository, _ = args.upstream.split("/", 3)
            if project == args.project:  # only its owner can grant access to a repository of another project
                location = host.removesuffix("-docker.pkg.dev")
                self.grants += _reader_grants(name, args, location, repository, opts)
            self.ref = pulumi.Output.from_input(f"{args.upstream}@{args.digest}")
            return
        first, *others = args.locations
        account = args.upstream_account
        access = [] if account is None else [_upstream_grant(account, args.project, opts)]
        self._options = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=access))
        repositories = dict[str, pulumi.Output[str]]()
        upstream = args.others_pull_upstream and account is None and not building
        for location in (first,) if building or upstream else args.locations:
            # The first region is not part of its names. The others are, so another order creates no duplicate names.
            suffix = f"-{location}" if location in others else ""
            repositories[location] = self._repository(name, suffix, location, args, opts)
        if upstream:
            repositories |= dict.fromkeys(others, pulumi.Output.from_input(_DOCKER_HUB))
        self.repositories = repositories
        if building:
            self.ref = self._built(
                name, args, repositories[first].apply(lambda repository: f"{repository}/{args.upstream}"), opts
            )
        else:
            self.ref = repositories[first].apply(lambda repository: f"{repository}/{args.upstream}@{args.digest}")

    def _repository(
        self, name: str, suffix: str, location: str, args: ServingImageArgs, opts: pulumi.ResourceOptions | None
    ) -> pulumi.Output[str]:
        """Declare one repository and its readers, and return HOST/PROJECT/REPOSITORY."""
        building = args.build_context is not None
        repository = gcp.artifactregistry.Repository(
            f"{name}{suffix}",
            gcp.artifactregistry.RepositoryArgs(
                project=args.project,
                location=location,
                repository_id=f"{args.repository_id}{suffix}",
                format="DOCKER",
                mode="STANDARD_REPOSITORY" if building else "REMOTE_REPOSITORY",
                remote_repository_config=None if building else _docker_hub(args.upstream_account),
                description=args.ownership.description,
                labels={**args.labels, **args.ownership.labels},
            ),
            opts=pulumi.ResourceOptions.merge(self._options, _DELETE_FIRST),
        )
        self.grants += _reader_grants(f"{name}{suffix}", args, location, repository.name, opts)
        host = f"{location}-docker.pkg.dev/{args.project}"
        return repository.repository_id.apply(lambda repository_id: f"{host}/{repository_id}")

    @staticmethod
    def _built(
        name: str, args: ServingImageArgs, target: pulumi.Output[str], opts: pulumi.ResourceOptions | None
    ) -> pulumi.Output[str]:
        """Declare the image, and return its reference by digest."""
        import pulumi_docker as docker  # noqa: PLC0415 - 0.1 CPU seconds, and few stacks build

        image = docker.Image(
            name,
            image_name=target,
            build=docker.DockerBuildArgs(
                context=args.build_context,
                platform="linux/amd64",
                args={"BASE_IMAGE": f"{args.upstream}@{args.digest}"},
            ),
            # Docker's own credential helper signs in (gcloud auth configure-docker), so neither the program nor the state has a password.
            opts=opts,
        )
        return image.repo_digest


def _reader_grants(
    name: str, args: ServingImageArgs, location: str, repository: pulumi.Input[str], opts: pulumi.ResourceOptions | None
) -> list[gcp.artifactregistry.RepositoryIamMember]:
    """Allow the readers to pull from a repository of the project."""
    return [
        gcp.artifactregistry.RepositoryIamMember(
            f"{name}-{reader}",
            gcp.artifactregistry.RepositoryIamMemberArgs(
                project=args.project,
                location=location,
                repository=repository,
                role="roles/artifactregistry.reader",
                member=member,
            ),
            opts=pulumi.ResourceOptions.merge(opts, _DELETE_FIRST),
        )
        for reader, member in args.readers.items()
    ]


def _upstream_grant(account: UpstreamAccount, project: str, opts: pulumi.ResourceOptions | None) -> pulumi.Resource:
    """Allow Artifact Registry's service agent to read the token. The grant stays after a teardown: other stacks may use the account."""
    service = "artifactregistry.googleapis.com"
    # The agent exists from the first use of the API, which may be this one.
    agent = gcp.projects.ServiceIdentity(
        "artifact-registry",
        gcp.projects.ServiceIdentityArgs(
            project=project,
            service=service,
        ),
        opts=opts,
    )
    return gcp.secretmanager.SecretIamMember(
        "docker-hub-token",
        gcp.secretmanager.SecretIamMemberArgs(
            secret_id=account.token_secret.partition("/versions/")[0],
            role="roles/secretmanager.secretAccessor",
            member=agent.email.apply(lambda email: f"serviceAccount:{email}"),
        ),
        opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(retain_on_delete=True)),
    )


def _docker_hub(account: UpstreamAccount | None) -> gcp.artifactregistry.RepositoryRemoteRepositoryConfigArgs:
    return gcp.artifactregistry.RepositoryRemoteRepositoryConfigArgs(
        description="Docker Hub",
        docker_repository=gcp.artifactregistry.RepositoryRemoteRepositoryConfigDockerRepositoryArgs(
            public_repository="DOCKER_HUB"
        ),
        upstream_credentials=None
        if account is None
        else gcp.artifactregistry.RepositoryRemoteRepositoryConfigUpstreamCredentialsArgs(
            username_password_credentials=gcp.artifactregistry.RepositoryRemoteRepositoryConfigUpstreamCredentialsUsernamePasswordCredentialsArgs(
                username=account.username, password_secret_version=account.token_secret
            )
        ),
    )
