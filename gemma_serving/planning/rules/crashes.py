"""Crashes of vLLM and JAX and wrong answers on public record, for exact models, options and releases: gemma_serving/planning/data/crashes.json.

`up` recognizes their log lines from the same rows (`stacks.hooks.failure_hints`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from gemma_serving.contracts.verdicts import Severity
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.data.checkpoints import find_checkpoint
from gemma_serving.planning.data.images import ImagePlatform
from gemma_serving.planning.data.tables import Table, data_file, row_of
from gemma_serving.planning.model.support import version_in_use, version_key
from gemma_serving.planning.question.drafters import named_drafter
from gemma_serving.planning.question.extra_arguments import extra_arguments, value_of_flag
from gemma_serving.planning.question.releases import Runner, runners
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.rules.alternatives import DEFAULT_IMAGE
from gemma_serving.planning.rules.arguments import kept_arguments
from gemma_serving.planning.rules.platforms.replicas import replicas_remedy
from gemma_serving.planning.rules.registry import RuleResult, change, rule
from gemma_serving.planning.settings.finding import Remedy
from gemma_serving.planning.settings.vllm_args import SCALED_KV_SUFFIX

Needs = Literal[
    "Gemma 4",
    "CUDA graphs with a draft model",
    "the first model runner with a draft model",
    "expert parallelism with a draft model",
    "replicas with a compile cache",
    "the PyTorch path with a draft model",
    "fp8 while loading",
    "a KV cache with a scale per head",
    "any model",
]
Kind = Literal["start", "answers", "load"]
"""Part that fails: the start, the answers, or the engine while it serves."""
_EXPERT_PARALLEL: Final = "--enable-expert-parallel"


class Crash(Struct, frozen=True, kw_only=True):
    """One record: releases from `first` (empty for all) to before `fixed` (empty for all later ones), if the deployment has what it `needs`."""

    id: str
    """Issue or pull request that records it."""
    kind: Kind = "start"
    """Only a start can block; the others are warnings."""
    platform: ImagePlatform | None
    """None for both."""
    needs: Needs
    models: tuple[str, ...] = ()
    """Draft models that die by the record or by the diff of its fix; empty if `needs` names none."""
    sisters: tuple[str, ...] = ()
    """Draft models for which it is likely: a warning."""
    first: str
    fixed: str
    images: tuple[str, ...] = ()
    """Digests of images that die. Other images of these releases get a warning; empty if all die."""
    dies: str = ""
    """Clause for a deployment that dies; empty if no record shows one of vLLM."""
    likely: str = ""
    """Clause for a deployment for which it is likely."""
    pattern: str = ""
    """Regular expression of its line in the server's log; empty if no line shows the failure."""
    way_out: str
    source: str
    """Page of the record."""
    basis: str
    """Threads and code that were read for this row."""
    seen_on: str

    @property
    def releases(self) -> str:
        """The affected releases, in words."""
        bounds = f"from {self.first}" if self.first else "", f"before {self.fixed}" if self.fixed else ""
        return ", ".join(filter(None, bounds)) or "all"


CRASHES: Final[Mapping[str, Crash]] = Table(
    lambda: {row["id"]: row_of(Crash, row) for row in data_file("crashes.json")}
)


_FIRST: Final[Runner] = 1
_SECOND: Final[Runner] = 2


def _drafts(resolved: Resolved) -> bool:
    return resolved.speculative_tokens > 0 and named_drafter(resolved.vllm) is not None


def _is_expert_parallel(resolved: Resolved) -> bool:
    return value_of_flag(extra_arguments(resolved), _EXPERT_PARALLEL) is not None


_HAS: Final[Mapping[Needs, Callable[[Resolved], bool]]] = {
    "Gemma 4": lambda resolved: resolved.spec.is_gemma4,
    "CUDA graphs with a draft model": lambda one: _drafts(one) and _SECOND in runners(one) and not one.eager,
    "the first model runner with a draft model": lambda one: _drafts(one) and _FIRST in runners(one),
    "expert parallelism with a draft model": lambda one: _drafts(one) and _is_expert_parallel(one),
    "the PyTorch path with a draft model": lambda one: _drafts(one) and one.runtime == "tpu-torch",
    "replicas with a compile cache": lambda one: one.dp > 1 and one.deployment.tpu.compile_cache != "off",
    "fp8 while loading": lambda one: one.scheme.name.startswith("fp8") and one.spec.native_quantization != "fp8",
    "a KV cache with a scale per head": lambda one: one.spec.is_gemma4 and one.kv_dtype.endswith(SCALED_KV_SUFFIX),
    "any model": lambda _: True,
}
_CLAIMS: Final[Mapping[Kind, str]] = {
    "start": "The server may not start",
    "answers": "Its answers may be wrong",
    "load": "One request may stop the engine",
}


def _severity(crash: Crash, resolved: Resolved) -> Severity | None:
    """Return whether a deployment dies by the record (block), likely does (warn), or is not affected (None)."""
    if crash.platform not in {None, "tpu" if resolved.is_tpu else "cuda"} or not _HAS[crash.needs](resolved):
        return None
    image, drafter = resolved.deployment.image, find_checkpoint(named_drafter(resolved.vllm) or "")
    is_known_image = image is not None and image.digest in crash.images
    if not is_known_image and not _is_of(crash, resolved):
        return None
    if drafter is not None and drafter.id in crash.sisters:
        return "warn"
    if crash.models and (drafter is None or drafter.id not in crash.models):
        return None
    return "block" if crash.dies and (is_known_image or not crash.images) else "warn"


def _is_of(crash: Crash, resolved: Resolved) -> bool:
    """Return whether the image has an affected release. An unknown one counts only if all are affected."""
    if not crash.first and not crash.fixed:
        return True
    version = version_key(version_in_use(resolved.accelerator, resolved.deployment.image_version))
    first, fixed = version_key(crash.first), version_key(crash.fixed)
    return version is not None and (first is None or first <= version) and (fixed is None or version < fixed)


def _remedies(found: Sequence[Crash], subject: Subject) -> Iterator[Remedy]:
    resolved = subject.resolved
    needs = {crash.needs for crash in found}
    if resolved.deployment.image is not None:
        yield Remedy(changes=DEFAULT_IMAGE)
    if "expert parallelism with a draft model" in needs:
        dropped = [one for one in extra_arguments(resolved) if one.name == _EXPERT_PARALLEL]
        yield change("vllm.extra_args", kept_arguments(subject, dropped))
    if "replicas with a compile cache" in needs:
        yield change("tpu.compile_cache", "off")
        yield replicas_remedy(None)
    if "fp8 while loading" in needs:
        yield change("quantization", None)
    if "a KV cache with a scale per head" in needs:
        yield change("vllm.kv_cache_dtype", None)
    if any(crash.models or crash.needs == "the PyTorch path with a draft model" for crash in found):
        yield change("vllm.speculative_config", None)


@rule("REL01")
def _recorded_crash(subject: Subject) -> RuleResult | None:
    judged = [(crash, _severity(crash, subject.resolved)) for crash in CRASHES.values()]
    severity: Severity = "block" if any(one == "block" for _, one in judged) else "warn"
    found = [crash for crash, one in judged if one == severity]
    if not found:
        return None
    fixed = max((crash.fixed for crash in found), key=lambda release: version_key(release) or ())
    return RuleResult(
        " ".join(_sentence(crash, severity) for crash in found),
        remedies=_remedies(found, subject),
        advice=f"Or set image to a release from {fixed} by its digest." if fixed else "",
        severity=severity,
        source="; ".join(f"{crash.id}, {crash.seen_on}" for crash in found),
    )


def _sentence(crash: Crash, severity: Severity) -> str:
    if severity == "block":
        return f"The server will not start: {crash.dies} ({crash.source})."
    return f"{_CLAIMS[crash.kind]}: {crash.likely} ({crash.source})."
