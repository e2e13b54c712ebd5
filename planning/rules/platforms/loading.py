"""Rules for loading on Cloud Run: load formats that conflict with the weights mode, and images without the streamer."""

from collections.abc import Iterator
from typing import Final

from planning.cost.subject import Subject
from planning.model.support import version_in_use
from planning.question.recommendation import FUSE_MODES
from planning.question.releases import is_known_from
from planning.question.types import Remedy
from planning.question.vllm_args import STREAMER
from planning.rules.registry import RuleResult, change, rule
from planning.units import duration

STREAMS_FROM_GS: Final = "0.11.1"
"""First release that streams from gs:// with the instance's credentials; its image has the package (vllm-project/vllm#26464)."""
_IN_BUCKET: Final = (*FUSE_MODES, "memory")


@rule(
    "LDR01",
    "block",
    source="docs.vllm.ai, Loading models with Run:ai Model Streamer",
    what="a load format that conflicts with the weights mode",
)
def load_format(subject: Subject) -> RuleResult | None:
    """Find a load format that conflicts with the weights mode: its rate is unknown, or the server finds no weights."""
    resolved = subject.resolved
    given, mode = resolved.deployment.vllm.load_format, resolved.weights_mode
    if resolved.platform != "cloud-run" or given is None:
        return None
    if mode == "streamer" and given != STREAMER:
        return RuleResult(
            message=f"`vllm.load_format` is {given}, but weights streamed from gs:// need {STREAMER}. The server will find no weights.",
            remedies=(change("vllm.load_format", None),),
        )
    if mode == "streamer" or not given.startswith(STREAMER):
        return None

    def remedies() -> Iterator[Remedy]:
        if mode in _IN_BUCKET:
            yield Remedy(changes={"weights_mode": "streamer", "vllm.load_format": None})
        yield change("vllm.load_format", None)

    return RuleResult(
        message=(
            f"`vllm.load_format` is {given}, but the weights mode is {mode}, planned at {duration(subject.startup.load_s)}. The streamer "
            "will read local files at an untested rate; it is fast only when it reads gs:// directly."
        ),
        remedies=remedies(),
    )


@rule(
    "LDR02",
    "block",
    source="GKE, Run:ai Model Streamer (vLLM 0.11.1 and later); vllm-project/vllm#26464",
    what="an image that may not stream from gs://",
)
def streams(subject: Subject) -> RuleResult | None:
    """Find an image whose vLLM is too old for gs://, or of unknown version."""
    resolved = subject.resolved
    if resolved.platform != "cloud-run" or resolved.weights_mode != "streamer":
        return None
    if is_known_from(resolved, STREAMS_FROM_GS):
        return None
    version = version_in_use(resolved.accelerator, resolved.deployment.image_version)
    has = f"has vLLM {version}" if version else "has an unknown version of vLLM (`image_version`)"
    return RuleResult(
        message=f"The image {has}, but streaming weights from gs:// needs {STREAMS_FROM_GS} or later with the package in its image.",
        remedies=(change("weights_mode", "fuse-buffered"),),
    )
