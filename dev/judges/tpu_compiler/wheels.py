"""Which released wheels are nearest to which image, and what still differs.

vLLM's TPU server is published as two wheels: `vllm-tpu` (releases only) and `tpu-inference` (releases, and one wheel for each day). An image of a
nightly build has no wheel of its own, so each answer names the gap.
`make -C dev/judges compiler-locks` resolves each row, with the packages of that time, into `locks/`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LOCKS: Final = Path(__file__).resolve().parent / "locks"
_RELEASE: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedImage:
    """An image that a row is nearest to, as in `gemma_serving/planning/data/images.json`."""

    name: str
    version: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """A locked set of wheels. The figures were measured with uv 0.13 on two busy cores."""

    name: str
    vllm_tpu: str
    tpu_inference: str
    until: str
    """Date (UTC). Packages that were published later are not in the lock."""
    images: tuple[JudgedImage, ...] = ()
    gap: str
    """What differs from these images, in one sentence."""
    lacks: str = ""
    """What the images have and these wheels have not, so that a refusal of it is none of the image."""
    lacks_pattern: str = ""
    """Regular expression of that refusal."""
    download_gb: float
    """Size of the wheels, in 10^9 bytes."""
    disk_gb: float
    """Size of the environment, in 10^9 bytes."""
    install_s: int
    """Duration of an installation with an empty cache of uv."""

    @property
    def lock(self) -> Path:
        """The lock: every package with its version and hash."""
        return _LOCKS / f"{self.name}.txt"

    @property
    def words(self) -> str:
        """The two packages that decide."""
        return f"vllm-tpu {self.vllm_tpu} with tpu-inference {self.tpu_inference}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The wheels that judge an image."""

    wheels: Wheels
    gap: str
    """What differs from the image, in one sentence."""


WHEELS: Final = (
    Wheels(
        name="0.30.0-day-20260924",
        vllm_tpu="0.30.0",
        tpu_inference="0.29.0.dev20260924",
        until="2026-10-01",
        images=(
            JudgedImage(
                name="vllm-tpu",
                version="0.29.1rc1.dev468+g0b7f11a1e",
                digest="sha256:19a1a0526476f902eb83e1057f3d8938f35b457dd7716a30e9ab4f7bee90d507",
            ),
        ),
        gap="The image has vLLM 0.29.1rc1.dev468 of 2026-09-24; the nearest wheels are vllm-tpu 0.30.0 of 2026-09-30 with tpu-inference of "
        "2026-09-24.",
        download_gb=1.53,
        disk_gb=4.1,
        install_s=89,
    ),
    Wheels(
        name="0.30.0-day-20260928",
        vllm_tpu="0.30.0",
        tpu_inference="0.29.0.dev20260928",
        until="2026-10-01",
        images=(
            JudgedImage(
                name="vllm-tpu-w4a16-experts",
                version="0.30.1rc1.dev221+gc8d7a7dd1",
                digest="sha256:ea98ed065a86d3e69ec7142b9f4766aa3cd7e475d752e680f4ef7612745aca61",
            ),
        ),
        gap="The image has vLLM 0.30.1rc1.dev221 of 2026-09-28 and tpu-inference 4727514 (pull request 3660); the nearest wheels are vllm-tpu 0.30.0 "
        "of 2026-09-30 with tpu-inference of 2026-09-28, which lacks 4-bit experts.",
        lacks="4-bit experts",
        lacks_pattern="compressed-tensors scheme for MoE layer .* is not yet supported",
        download_gb=1.53,
        disk_gb=4.1,
        install_s=102,
    ),
    Wheels(
        name="0.31.0",
        vllm_tpu="0.31.0",
        tpu_inference="0.31.0",
        until="2026-10-08",
        images=(
            JudgedImage(
                name="vllm-tpu-w4a16",
                version="0.31.0",
                digest="sha256:ea98ed065a86d3e69ec7142b9f4766aa3cd7e475d752e680f4ef7612745aca61",
            ),
        ),
        gap="The image installs the same wheels of vllm-tpu, tpu-inference and tokamax; its other packages are those of a nightly image of 2026-09-28, "
        "whose versions are not public.",
        download_gb=1.53,
        disk_gb=4.1,
        install_s=65,
    ),
    Wheels(
        name="0.32.0",
        vllm_tpu="0.32.0",
        tpu_inference="0.32.0",
        until="2026-10-24",
        gap="No shipped image has these wheels; they are the newest release.",
        download_gb=1.55,
        disk_gb=4.1,
        install_s=54,
    ),
)
"""Every row, by release."""

NEWEST: Final = WHEELS[-1]

_NVIDIA: Final = "torch links it, and symbolic links stand in for it (dev/judges/tpu_compiler/environment.py)"
_UNUSED: Final = "no module of it is imported"
LEFT_OUT: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "nvidia-cublas-cu12",
            "nvidia-cuda-cupti-cu12",
            "nvidia-cuda-nvrtc-cu12",
            "nvidia-cudnn-cu12",
            "nvidia-cufft-cu12",
            "nvidia-cufile-cu12",
            "nvidia-curand-cu12",
            "nvidia-cusolver-cu12",
            "nvidia-cusparse-cu12",
            "nvidia-cusparselt-cu12",
            "nvidia-nccl-cu12",
            "nvidia-nvjitlink-cu12",
            "nvidia-nvshmem-cu12",
            "nvidia-nvtx-cu12",
        ),
        _NVIDIA,
    ),
    "cuda-bindings": "torch imports it only if it exists",
    "triton": "vLLM disables it where no GPU is found",
    "opencv-python-headless": "vLLM imports it when it decodes a video",
    "ray": "only the executors for several hosts import it",
    **dict.fromkeys(
        (
            "cmake",
            "cryptography",
            "duckdb",
            "hf-xet",
            "nixl",
            "pandas",
            "pyarrow",
            "runai-model-streamer-gcs",
            "tensorstore",
        ),
        _UNUSED,
    ),
}
"""Requirements that no lock has, with the reason. Everything else below 10 MB stays, used or not."""


def wheels_for(version: str, digest: str = "") -> Nearest:
    """Return the wheels nearest to an image, by its version of vLLM and its digest. Both are empty if unknown."""
    for wheels in WHEELS:
        for image in wheels.images:
            if version in {image.version, ""} and digest in {image.digest, ""} and version + digest:
                return Nearest(wheels=wheels, gap=wheels.gap)
    if not _RELEASE.match(version):
        subject = f"Version {version!r}" if version else "The version of vLLM"
        gap = f"{subject} of image {digest or 'without a digest'} is unknown; the newest locked wheels are {NEWEST.words}."
        return Nearest(wheels=NEWEST, gap=gap)
    wheels = min(reversed(WHEELS), key=lambda row: abs(_order(row.vllm_tpu) - _order(version)))
    if version == wheels.vllm_tpu == wheels.tpu_inference:
        return Nearest(wheels=wheels, gap=f"The wheels are {wheels.words}; the image's other packages are unknown.")
    return Nearest(wheels=wheels, gap=f"The image has vLLM {version}; the nearest locked wheels are {wheels.words}.")


def _order(version: str) -> int:
    """Return a number that grows with the release of a version."""
    found = _RELEASE.match(version)
    if found is None:
        return 0
    major, minor, patch = map(int, found.groups())
    return (major * 1000 + minor) * 1000 + patch
