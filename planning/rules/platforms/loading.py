"""Rules of loading on Cloud Run: a load format that contradicts the way of the weights, and images without the streamer."""

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
"""First release that streams from gs:// with the instance's own credentials; its image has the package (vllm-project/vllm#26464)."""
_IN_BUCKET: Final = (*FUSE_MODES, "memory")


@rule(
    "LDR01",
    "block",
    source="docs.vllm.ai, Loading models with Run:ai Model Streamer",
    what="a load format that contradicts the way of the weights",
)
def load_format(subject: Subject) -> RuleResult | None:
    """Find a load format that the way of the weights does not have: no rate is known for it, or the server finds no weights."""
    resolved = subject.resolved
    given, mode = resolved.deployment.vllm.load_format, resolved.weights_mode
    if resolved.platform != "cloud-run" or given is None:
        return None
    if mode == "streamer" and given != STREAMER:
        return RuleResult(
            message=f"`vllm.load_format` is {given}, but weights straight from gs:// need {STREAMER}: the server would find none.",
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
            f"`vllm.load_format` is {given}, but the weights come by {mode}, for which the plan has {duration(subject.startup.load_s)}: the streamer "
            "would read files of this instance at a rate that nobody knows. It is fast where it reads gs:// itself."
        ),
        remedies=remedies(),
    )


@rule(
    "LDR02",
    "block",
    source="GKE, Run:ai Model Streamer (vLLM 0.11.1 and later); vllm-project/vllm#26464",
    what="an image that is not known to stream from gs://",
)
def streams(subject: Subject) -> RuleResult | None:
    """Find an image whose vLLM is too old for gs://, or not known."""
    resolved = subject.resolved
    if resolved.platform != "cloud-run" or resolved.weights_mode != "streamer":
        return None
    if is_known_from(resolved, STREAMS_FROM_GS):
        return None
    version = version_in_use(resolved.accelerator, resolved.deployment.image_version)
    has = f"has vLLM {version}" if version else "has a version of vLLM that is not known (`image_version`)"
    return RuleResult(
        message=f"The image {has}; weights straight from gs:// need {STREAMS_FROM_GS} or later, and the package that its image brings.",
        remedies=(change("weights_mode", "fuse-buffered"),),
    )


@rule(
    "LDR03",
    "warn",
    source="vllm-project/vllm#37198; docs/decisions/0025",
    what="compiled graphs that are kept although that saves nothing",
)
def kept_graphs(subject: Subject) -> RuleResult | None:
    """Find a cache of compiled graphs that nobody fills, or whose download takes as long as it saves."""
    resolved, startup = subject.resolved, subject.startup
    if resolved.platform != "cloud-run" or resolved.deployment.cloud_run.graph_cache == "off":
        return None
    saved_s = 0.0 if startup.cached_total_s is None else startup.total_s - startup.cached_total_s
    if saved_s > 0:
        return None
    why = "`vllm.enforce_eager` compiles nothing" if resolved.eager else "reading them takes as long as compiling"
    return RuleResult(
        message=f"`cloud_run.graph_cache` is bucket, but {why}: starts are 0 s sooner for it.",
        remedies=(change("cloud_run.graph_cache", "off"),),
    )
