"""The server's image."""

from dataclasses import dataclass
from typing import Annotated, Final

from gemma_serving.planning.data.images import Image, image_of
from gemma_serving.planning.settings.annotations import ListOf, OnChange, OneOf
from gemma_serving.planning.settings.fields import Block
from gemma_serving.planning.settings.text import Digest, Repository
from gemma_serving.planning.settings.words import AfterValidator

CUDA_13: Final = 13
Precision = Annotated[str, AfterValidator(OneOf(("bf16", "fp8", "mxfp4", "nvfp4", "w4a16")))]


def in_artifact_registry(repository: str) -> bool:
    """Return whether a repository is in Artifact Registry."""
    return "-docker.pkg.dev/" in repository


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings(Block):
    """A custom image by digest. The stack pulls an image of Docker Hub through Artifact Registry, and one of Artifact Registry directly."""

    repository: Repository
    """Repository on Docker Hub, or in Artifact Registry: `LOCATION-docker.pkg.dev/PROJECT/REPOSITORY/IMAGE`."""
    digest: Digest
    """Digest of the image or of its multi-architecture index.

    A tag can change under a running service; a digest cannot.
    """
    version: Annotated[str | None, OnChange("nothing")] = None
    """vLLM version in the image. The planner checks which models it loads; the pull does not use it."""
    supports: Annotated[
        ListOf[Precision],
        OnChange("nothing"),
    ] = ()
    """Precisions that this image loads although its version does not, for example with a patch in `buildContext`."""
    audio: Annotated[bool | None, OnChange("nothing")] = None
    """True if this image has the packages that decode audio (`vllm[audio]`), false if not. Default: unknown."""
    build_context: str | None = None
    """Folder with a Dockerfile based on this image (build argument BASE_IMAGE). The stack builds it and serves the result."""
    uid: int | None = None
    """User that the image runs as, if not root. Without it, the server cannot read the FUSE mount."""
    gid: int | None = None
    """Group that the image runs as, if not root."""

    @property
    def is_default(self) -> bool:
        """True if it names neither another image than the default one nor another version."""
        return not self.digest and self.version is None

    @property
    def known(self) -> Image | None:
        """Entry for this repository in the table of images, or None."""
        return image_of(self.repository)

    @property
    def is_stored(self) -> bool:
        """True if the stack's own repositories store the image: pulled from Docker Hub, or built."""
        return self.build_context is not None or not in_artifact_registry(self.repository)

    @property
    def needs_cuda_13(self) -> bool:
        """True if the image has CUDA 13 or newer. Assumed for a custom image; a wrong guess does no harm."""
        return self.known is None or (self.known.cuda_major or 0) >= CUDA_13


NO_IMAGE: Final = ImageSettings(repository="", digest="")
"""The image of a question that names none: the accelerator's default image."""


def named_image(image: Image) -> ImageSettings:
    """Return the settings of an image of the table: what `image: NAME` in a file means."""
    return ImageSettings(
        repository=image.repository,
        digest=image.digest,
        version=image.version,
        supports=image.supports,
        audio=image.decodes_audio,
        build_context=image.build_context,
    )


def image_of_version(version: str) -> ImageSettings:
    """Return an image of which only the version of vLLM is known; empty if not even that."""
    return ImageSettings(repository="", digest="", version=version)
