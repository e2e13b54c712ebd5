"""The server's image, and the account with which it is pulled."""

from typing import Annotated, Final, Literal

from pydantic import Field

from planning.data.images import Image, image_of
from stacks.settings.block import Block, Judged, OnChange
from stacks.settings.text import Digest, DockerUser, Repository, SecretVersion

CUDA_13: Final = 13


class ImageSettings(Block):
    """An image of your own: a Docker Hub repository pinned by digest. The stack pulls it through Artifact Registry."""

    repository: Repository
    """Repository on Docker Hub."""
    digest: Digest
    """Digest of the image or of its multi-architecture index. A tag can change under a running service, a digest cannot."""
    version: Annotated[str | None, Judged("image_version"), OnChange("nothing")] = None
    """Version of vLLM in the image. It is never used to pull; the planner looks up what this version loads."""
    supports: Annotated[
        list[Literal["fp8", "nvfp4", "w4a16"]],
        Field(default_factory=list),
        Judged("image_supports"),
        OnChange("nothing"),
    ]
    """Precisions that this image loads although its version does not, such as those of a patch in `buildContext`."""
    build_context: str | None = None
    """Folder with a Dockerfile that starts from this image (build argument BASE_IMAGE). The stack builds it and serves the result."""
    uid: Annotated[int | None, Judged("cloud_run.image_uid")] = None
    """User that the image runs as, if not root. The FUSE mount then belongs to this user; otherwise the server cannot read it."""
    gid: Annotated[int | None, Judged("cloud_run.image_gid")] = None
    """Group that the image runs as, if not root."""

    @property
    def known(self) -> Image | None:
        """The entry of the table of images for this repository, or None."""
        return image_of(self.repository)

    @property
    def needs_cuda_13(self) -> bool:
        """Whether the image has CUDA 13 or newer; assumed of an image of your own, which loses nothing if it is older."""
        return self.known is None or (self.known.cuda_major or 0) >= CUDA_13


class DockerHubSettings(Block):
    """An account of Docker Hub, with which Artifact Registry pulls the image. Docker Hub limits pulls without one."""

    username: DockerUser
    """Name of the account."""
    token_secret: SecretVersion
    """Version in Secret Manager that holds an access token of the account (Public Repo Read-only). The token itself never passes through Pulumi."""
