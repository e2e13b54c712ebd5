"""Known faults of vLLM and JAX on public record, by what fails: gemma_serving/planning/data/crashes.json.

`up` recognizes their log lines from the same rows (`stacks.hooks.failure_hints`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from gemma_serving.contracts.verdicts import Severity
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.data.checkpoints import find_checkpoint
from gemma_serving.planning.data.tables import Table, typed_file
from gemma_serving.planning.model.support import is_between, version_in_use, version_key
from gemma_serving.planning.question.drafters import named_drafter
from gemma_serving.planning.question.extra_arguments import extra_arguments, value_of_flag
from gemma_serving.planning.question.lora import lora_of
from gemma_serving.planning.question.releases import runners
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.rules.alternatives import DEFAULT_IMAGE
from gemma_serving.planning.rules.arguments import kept_arguments
from gemma_serving.planning.rules.platforms.replicas import replicas_remedy
from gemma_serving.planning.rules.registry import RuleResult, change, rule
from gemma_serving.planning.settings.finding import Remedy
from gemma_serving.planning.settings.image import image_of_version
from gemma_serving.planning.settings.vllm_args import SCALED_KV_SUFFIX

Kind = Literal["start", "answers", "load", "adapter"]
"""Part that fails: the start, the answers, the engine while it serves, or the effect of an adapter."""


class Crash(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One record: releases on some cards, if the deployment has all that it `needs`."""

    id: str
    """Issue or pull request that records it."""
    kind: Kind = "start"
    """Only a start can block; the others are warnings."""
    needs: tuple[str, ...]
    """Features, precisions, parts of vLLM (`_HAS`) and flags of `extraArgs`. Empty for all deployments."""
    cards: tuple[str, ...] = ()
    """Names of cards (machines.json); empty for all."""
    models: tuple[str, ...] = ()
    """Draft models that die by the record or by the diff of its fix; empty if `needs` names none."""
    sisters: tuple[str, ...] = ()
    """Draft models for which it is likely: a warning."""
    releases: tuple[tuple[str, str], ...] = (("", ""),)
    """Affected releases, each from the first (empty for all) to before the fixed one (empty for all later ones)."""
    images: tuple[str, ...] = ()
    """Digests of images that die. Other images of these releases get a warning; empty if all die."""
    dies: str = ""
    """Clause for a deployment that dies; empty if no record shows one of vLLM."""
    likely: str = ""
    """Clause for a deployment for which it is likely."""
    pattern: str = ""
    """Regular expression of its line in the server's log; empty if no line shows the failure."""
    line: str = ""
    """The line as the record quotes it."""
    way_out: str
    source: str
    """Page of the record."""
    basis: str
    """Threads and code that were read for this row."""
    seen_on: str


CRASHES: Final[Mapping[str, Crash]] = Table(
    lambda: {row.id: row for row in typed_file("crashes.json", tuple[Crash, ...])}
)
_OFF: Final[Mapping[str, Mapping[str, object]]] = {
    "a compile cache": {"tpu.compile_cache": "off"},
    "fp8 while loading": {"quantization": None},
    "a KV cache with a scale per head": {"vllm.kv_cache_dtype": None},
    "a draft model": {"vllm.speculative_config": None},
}
"""Changes that turn a part off."""


_HAS: Final[Mapping[str, Callable[[Resolved], bool]]] = {
    "a GPU": lambda one: not one.is_tpu,
    "a TPU": lambda one: one.is_tpu,
    "Gemma 4": lambda one: one.spec.is_gemma4,
    "experts": lambda one: one.spec.is_moe,
    "the JAX path": lambda one: one.runtime == "tpu-jax",
    "the PyTorch path": lambda one: one.runtime == "tpu-torch",
    "a draft model": lambda one: one.speculative_tokens > 0 and named_drafter(one.vllm) is not None,
    "the first model runner": lambda one: 1 in runners(one),
    "the second model runner": lambda one: 2 in runners(one),  # noqa: PLR2004 - vLLM's number
    "CUDA graphs": lambda one: not one.eager,
    "LoRA adapters": lambda one: lora_of(one) is not None,
    "replicas": lambda one: one.dp > 1,
    "a compile cache": lambda one: one.deployment.tpu.compile_cache != "off",
    "fp8 while loading": lambda one: one.scheme.name.startswith("fp8") and one.spec.native_quantization != "fp8",
    "fp8 in blocks": lambda one: one.spec.native_quantization == "fp8" and one.spec.block_width > 0,
    "a KV cache with a scale per head": lambda one: one.kv_dtype.endswith(SCALED_KV_SUFFIX),
}
_CLAIMS: Final[Mapping[Kind, str]] = {
    "start": "The server may not start",
    "answers": "Its answers may be wrong",
    "load": "One request may stop the engine",
    "adapter": "An adapter may have no effect",
}


def _has(part: str, resolved: Resolved) -> bool:
    is_flag = part.startswith("--")
    return value_of_flag(extra_arguments(resolved), part) is not None if is_flag else _HAS[part](resolved)


def _severity(crash: Crash, resolved: Resolved) -> Severity | None:
    """Return whether a deployment dies by the record (block), likely does (warn), or is not affected (None)."""
    accelerator, image = resolved.accelerator, resolved.deployment.image
    version = version_in_use(accelerator, resolved.deployment.image_version)
    is_known_image = image is not None and image.digest in crash.images
    is_affected = is_known_image or any(is_between(version, *bounds) for bounds in crash.releases)
    is_here = not crash.cards or accelerator.family in crash.cards
    if not (is_affected and is_here and all(_has(part, resolved) for part in crash.needs)):
        return None
    drafter = find_checkpoint(named_drafter(resolved.vllm) or "")
    if drafter is not None and drafter.id in crash.sisters:
        return "warn"
    if (crash.models or crash.sisters) and (drafter is None or drafter.id not in crash.models):
        return None
    return "block" if crash.dies and (is_known_image or not crash.images) else "warn"


def _remedies(found: Sequence[Crash], subject: Subject) -> Iterator[Remedy]:
    needs = {part for crash in found for part in crash.needs}
    if subject.resolved.deployment.image is not None:
        yield Remedy(changes=DEFAULT_IMAGE)
    if dropped := [one for one in extra_arguments(subject.resolved) if one.name in needs]:
        yield change("vllm.extra_args", kept_arguments(subject, dropped))
    yield from (Remedy(changes=off) for part, off in _OFF.items() if part in needs)
    if "replicas" in needs:
        yield replicas_remedy(None)


def _other_release(resolved: Resolved) -> str:
    """Return, as advice, the first release from which on no record is about a deployment; empty without one."""
    bounds = {bound for crash in CRASHES.values() for pair in crash.releases for bound in pair if bound}
    clean = ""
    for release in sorted(bounds, key=lambda bound: version_key(bound) or (), reverse=True):
        other = replace(resolved, deployment=replace(resolved.deployment, image=image_of_version(release)))
        if any(_severity(crash, other) for crash in CRASHES.values()):
            break
        clean = release
    return f"Or set image to a release from {clean} by its digest." if clean else ""


@rule("REL01")
def _recorded_crash(subject: Subject) -> RuleResult | None:
    judged = [(crash, _severity(crash, subject.resolved)) for crash in CRASHES.values()]
    severity: Severity = "block" if any(one == "block" for _, one in judged) else "warn"
    found = [crash for crash, one in judged if one == severity]
    if not found:
        return None
    return RuleResult(
        " ".join(_sentence(crash, severity) for crash in found),
        remedies=_remedies(found, subject),
        advice=_other_release(subject.resolved),
        severity=severity,
        source="; ".join(f"{crash.id}, {crash.seen_on}" for crash in found),
    )


def _sentence(crash: Crash, severity: Severity) -> str:
    if severity == "block":
        return f"The server will not start: {crash.dies} ({crash.source})."
    return f"{_CLAIMS[crash.kind]}: {crash.likely} ({crash.source})."
