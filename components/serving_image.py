"""The server's image by digest: pulled through an Artifact Registry remote repository, or built on the upstream image."""

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_docker as docker
import pulumi_gcp as gcp

from components.errors import ComponentError
from contracts.labels import Ownership


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingImageArgs:
    """An image of Docker Hub, used as it is or as the base of an image that is built here."""

    project: str
    location: str
    """Region of the repository, best the server's: each start pulls several GiB. A change replaces the repository."""
    repository_id: str
    upstream: str
    """Repository on Docker Hub, such as vllm/vllm-openai."""
    digest: str
    """Digest of the image, "sha256:..."; a tag is refused, because a restart could then pull another image."""
    ownership: Ownership
    labels: Mapping[str, str]
    readers: Mapping[str, pulumi.Input[str]]
    """IAM members that may pull the image, by a short name."""
    build_context: str | None = None
    """Folder with a Dockerfile that starts from the build argument BASE_IMAGE; None uses the upstream image as it is."""


class ServingImage(pulumi.ComponentResource):
    """A repository of the stack, and the reference to pull from it.

    A remote repository caches the upstream image close to the server. So a machine without internet access can pull it, and a
    start does not depend on Docker Hub.
    """

    ref: pulumi.Output[str]
    """HOST/PROJECT/REPOSITORY/NAME@sha256:..."""
    grants: list[pulumi.Resource]

    def __init__(self, name: str, args: ServingImageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        if not args.digest.startswith("sha256:"):
            raise ComponentError(
                f'The image {args.upstream} has digest "{args.digest}"; pin it by "sha256:..." '
                "so that a restart cannot change it."
            )
        super().__init__("gemma-serving:index:ServingImage", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        building = args.build_context is not None
        repository = gcp.artifactregistry.Repository(
            name,
            project=args.project,
            location=args.location,
            repository_id=args.repository_id,
            format="DOCKER",
            mode="STANDARD_REPOSITORY" if building else "REMOTE_REPOSITORY",
            remote_repository_config=None if building else _docker_hub(),
            description=args.ownership.description,
            labels={**args.labels, **args.ownership.labels},
            opts=child,
        )
        host = f"{args.location}-docker.pkg.dev/{args.project}"
        if args.build_context is not None:
            image = self._built(
                name, args, repository.repository_id.apply(lambda repo: f"{host}/{repo}/{args.upstream}"), child
            )
            self.ref = image.repo_digest
        else:
            self.ref = repository.repository_id.apply(lambda repo: f"{host}/{repo}/{args.upstream}@{args.digest}")
        self.grants = [
            gcp.artifactregistry.RepositoryIamMember(
                f"{name}-{reader}",
                project=args.project,
                location=args.location,
                repository=repository.name,
                role="roles/artifactregistry.reader",
                member=member,
                opts=child,
            )
            for reader, member in args.readers.items()
        ]
        self.register_outputs({"ref": self.ref})

    @staticmethod
    def _built(
        name: str, args: ServingImageArgs, target: pulumi.Output[str], child: pulumi.ResourceOptions
    ) -> docker.Image:
        return docker.Image(
            name,
            image_name=target,
            build=docker.DockerBuildArgs(
                context=args.build_context,
                platform="linux/amd64",
                args={"BASE_IMAGE": f"{args.upstream}@{args.digest}"},
            ),
            # Docker's own credential helper signs in (gcloud auth configure-docker): no password in the program or the state.
            opts=child,
        )


def _docker_hub() -> gcp.artifactregistry.RepositoryRemoteRepositoryConfigArgs:
    return gcp.artifactregistry.RepositoryRemoteRepositoryConfigArgs(
        description="Docker Hub",
        docker_repository=gcp.artifactregistry.RepositoryRemoteRepositoryConfigDockerRepositoryArgs(
            public_repository="DOCKER_HUB"
        ),
    )
