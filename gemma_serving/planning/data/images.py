"""Server images by name: repository, digest, and supported features.

A stack names an entry of images.json (`image: vllm-tpu`). To upgrade every stack, change the entry there.
A release that gemma_serving/planning/data/flags.json lacks needs its flags there: `python -m dev.authors.vllm_flags vllm-X.Y.Z.tar.gz`.
"""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct, field

from gemma_serving.planning.data.tables import Table, typed_file

ImagePlatform = Literal["tpu", "cuda"]


class Image(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One image of vLLM, pinned by digest."""

    repository: str
    """Repository on Docker Hub."""
    digest: str
    """ "sha256:..." of the image, or of its multi-architecture index."""
    version: str
    """vLLM version, for display; never used to pull."""
    platform: ImagePlatform
    cuda_major: int | None = None
    """Major version of CUDA. A server with an older driver needs the image's compatibility libraries."""
    parsers: tuple[str, ...] = ()
    """Tool-call and reasoning parsers that a stack may rely on."""
    build_context: str | None = None
    """Folder of this repository that builds the image on top of the digest; None uses the digest unchanged. `version` is the result's."""
    built_on: str = ""
    """Date of the first build that this repository records, YYYY-MM-DD; empty if it records none."""
    supports: tuple[str, ...] = ()
    """Precisions that it loads although its version does not."""
    generations: tuple[str, ...] = ()
    """Accelerator generations (`planning.model.support`) for which the solver suggests a built image."""
    model_kinds: tuple[str, ...] = ()
    """Model kinds (`planning.model.support.ModelKind`) for which the solver suggests a built image."""
    shipped: Mapping[str, Mapping[str, Mapping[str, int | float]]] = field(
        default_factory=dict[str, Mapping[str, Mapping[str, int | float]]]
    )
    """Options of the stacks that this repository ships with it, by accelerator and checkpoint."""
    audio: Literal["yes", "no", "unknown"]
    """True if it has the packages that decode audio (`vllm[audio]`). Without them every request with audio fails."""
    audio_source: str
    """Source of that."""
    source: str
    """Source that lists the digest with the version."""
    seen_on: str
    """Date of the source, YYYY-MM-DD."""
    note: str = ""
    not_newer: str = ""
    """Why a default image with published vulnerabilities is not replaced by a newer one, as a clause."""

    @property
    def reference(self) -> str:
        """Reference by digest on Docker Hub."""
        return f"docker.io/{self.repository}@{self.digest}"

    @property
    def decodes_audio(self) -> bool | None:
        """True if it has the packages, False if not, None if unknown."""
        return {"yes": True, "no": False, "unknown": None}[self.audio]


IMAGES: Final[Mapping[str, Image]] = Table(lambda: typed_file("images.json", dict[str, Image]))
"""Every image that a stack can name."""
DEFAULT_IMAGES: Final[Mapping[str, str]] = {"tpu": "vllm-tpu", "cloud-run": "vllm-openai"}
"""Default image by target."""


def built_images(platform: ImagePlatform) -> Mapping[str, Image]:
    """Return the images that this repository builds for a platform, by name."""
    return {name: one for name, one in IMAGES.items() if one.platform == platform and one.build_context}


def image_words(name: str) -> str:
    """Return the name of an image, with a warning if this repository builds it but records no build."""
    image = IMAGES[name]
    return f"{name} (never built yet)" if image.build_context and not image.built_on else name


def shipped_options(version: object, accelerator: str, model: str) -> Mapping[str, int | float]:
    """Return the options of the shipped stack with this image, accelerator and checkpoint, by path; empty if no stack has them."""
    return IMAGES[name].shipped.get(accelerator, {}).get(model, {}) if (name := built_name(version)) else {}


def image_of(repository: str) -> Image | None:
    """Return the entry of a repository, or None if it has none. A repository's platform does not change."""
    return next((image for image in IMAGES.values() if image.repository == repository), None)


def built_name(version: object) -> str | None:
    """Return the name of the image that this repository builds with a version; None if it builds none."""
    return next((name for name, one in IMAGES.items() if one.build_context and one.version == version), None)
