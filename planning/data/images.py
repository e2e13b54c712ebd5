"""Server images by name: repository, digest, and what each is known to support.

A stack names an entry (`image: vllm-tpu`). To upgrade every stack, change the entry here.
A version outside `planning.question.server_flags.TABLES` needs a table of its flags: `python -m authors.vllm_flags vllm-X.Y.Z.tar.gz`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

ImagePlatform = Literal["tpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image of vLLM, pinned by digest."""

    repository: str
    """Repository on Docker Hub."""
    digest: str
    """ "sha256:..." of the image, or of its multi-architecture index."""
    version: str
    """vLLM's version, for people; never used to pull."""
    platform: ImagePlatform
    cuda_major: int | None = None
    """Major version of CUDA. A server with an older driver needs the image's compatibility libraries."""
    parsers: tuple[str, ...] = ()
    """Tool-call and reasoning parsers that a stack may rely on."""
    build_context: str | None = None
    """Folder of this repository that builds the image on top of the digest; None uses the digest as it is. `version` is the result's."""
    supports: tuple[str, ...] = ()
    """Precisions that it loads although its version does not."""
    generations: tuple[str, ...] = ()
    """Generations of accelerators (`planning.model.support`) that the solver offers a built image for."""
    model_kinds: tuple[str, ...] = ()
    """Kinds of models (`planning.model.support.ModelKind`) that the solver offers a built image for."""
    source: str
    """Where the digest was seen together with the version."""
    seen_on: str
    """Date of the source, YYYY-MM-DD."""


_NIGHTLY: Final = "sha256:ea98ed065a86d3e69ec7142b9f4766aa3cd7e475d752e680f4ef7612745aca61"
"""vllm/vllm-tpu:nightly of 2026-09-28, vLLM 0.30.1rc1.dev221+gc8d7a7dd1. No public file names a digest of 0.31.0 or 0.32.0 with its version."""
_NIGHTLY_SOURCE: Final = (
    "xbill9/gemma4-dev@395bf64, jev-tpu-31b/results/2026-09-28-pr3660-evidence (the base, named with its version)"
)
IMAGES: Final[Mapping[str, Image]] = {
    "vllm-openai": Image(
        repository="vllm/vllm-openai",
        digest="sha256:61fc8a896b0a4fbbbdc063bc4b0dbc25ce98e02b5050c24aeb7830ac02039b14",
        version="0.28.0",
        platform="cuda",
        cuda_major=13,
        parsers=("gemma4",),
        source="https://hub.docker.com/r/vllm/vllm-openai/tags (v0.28.0, index of all architectures)",
        seen_on="2026-09-08",
    ),
    "vllm-tpu": Image(
        repository="vllm/vllm-tpu",
        digest="sha256:19a1a0526476f902eb83e1057f3d8938f35b457dd7716a30e9ab4f7bee90d507",
        version="0.29.1rc1.dev468+g0b7f11a1e",
        platform="tpu",
        parsers=("gemma4",),
        source="https://github.com/xbill9/gemma4-dev/tree/main/jev-tpu (E2B, E4B and 12B served on one v6e chip)",
        seen_on="2026-09-24",
    ),
    "vllm-tpu-w4a16": Image(
        repository="vllm/vllm-tpu",
        digest=_NIGHTLY,
        version="0.31.0",
        platform="tpu",
        parsers=("gemma4",),
        build_context="images/vllm-tpu-w4a16",
        generations=("v6e",),
        model_kinds=("dense",),
        source=_NIGHTLY_SOURCE,
        seen_on="2026-09-28",
    ),
    "vllm-tpu-w4a16-experts": Image(
        repository="vllm/vllm-tpu",
        digest=_NIGHTLY,
        version="0.30.1rc1.dev221+gc8d7a7dd1",
        platform="tpu",
        parsers=("gemma4",),
        build_context="images/vllm-tpu-w4a16-experts",
        supports=("w4a16",),
        generations=("v6e",),
        model_kinds=("experts",),
        source=_NIGHTLY_SOURCE,
        seen_on="2026-09-28",
    ),
}
"""Every image that a stack can name, by its name."""
DEFAULT_IMAGES: Final[Mapping[str, str]] = {"tpu": "vllm-tpu", "cloud-run": "vllm-openai"}
"""The image of a stack that names none, by its target."""


def built_images(platform: ImagePlatform) -> Mapping[str, Image]:
    """Return the images that this repository builds for a platform, by name."""
    return {name: one for name, one in IMAGES.items() if one.platform == platform and one.build_context}


def image_of(repository: str) -> Image | None:
    """Return the entry of a repository, or None for a repository without one. A repository's platform does not change."""
    return next((image for image in IMAGES.values() if image.repository == repository), None)
