"""The server's image, and the account used to pull it."""

from typing import Annotated, Final, Literal

from pydantic import Field

from planning.data.images import Image, image_of
from stacks.settings.block import Block, Judged, OnChange
from stacks.settings.text import Digest, DockerUser, Repository, SecretVersion

CUDA_13: Final = 13


class ImageSettings(Block):
    """A custom image: a Docker Hub repository pinned by digest. The stack pulls it through Artifact Registry."""

    repository: Repository
    """Repository on Docker Hub."""
    digest: Annotated[Digest, Judged("image_digest")]
    """Digest of the image or of its multi-architecture index. A tag can change under a running service; a digest cannot."""
    version: Annotated[str | None, Judged("image_version"), OnChange("nothing")] = None
    """vLLM version in the image. It is not used to pull; the planner checks which models this version loads."""
    supports: Annotated[
        list[Literal["fp8", "mxfp4", "nvfp4", "w4a16"]],
        Field(default_factory=list),
        Judged("image_supports"),
        OnChange("nothing"),
    ]
    """Precisions that this image loads although its version does not, for example with a patch in `buildContext`."""
    audio: Annotated[bool | None, Judged("image_audio"), OnChange("nothing")] = None
    """True if this image has the packages that decode audio (`vllm[audio]`), false if not. Default: unknown."""
    build_context: str | None = None
    """Folder with a Dockerfile based on this image (build argument BASE_IMAGE). The stack builds it and serves the result."""
    uid: Annotated[int | None, Judged("cloud_run.image_uid")] = None
    """User that the image runs as, if not root. It owns the FUSE mount; otherwise the server cannot read the mount."""
    gid: Annotated[int | None, Judged("cloud_run.image_gid")] = None
    """Group that the image runs as, if not root."""

    @property
    def known(self) -> Image | None:
        """Entry for this repository in the table of images, or None."""
        return image_of(self.repository)

    @property
    def needs_cuda_13(self) -> bool:
        """True if the image has CUDA 13 or newer. Assumed for a custom image; a wrong guess does no harm."""
        return self.known is None or (self.known.cuda_major or 0) >= CUDA_13


class DockerHubSettings(Block):
    """A Docker Hub account that Artifact Registry uses to pull the image. Docker Hub limits pulls without an account."""

    username: DockerUser
    """Name of the account."""
    token_secret: SecretVersion
    """Version in Secret Manager with an access token of the account (Public Repo Read-only). The token itself never passes through Pulumi."""
