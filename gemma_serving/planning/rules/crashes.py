"""The rule about known faults (`planning.question.records`)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from gemma_serving.contracts.verdicts import SEVERITIES, Severity
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.model.support import version_key
from gemma_serving.planning.question.extra_arguments import extra_arguments
from gemma_serving.planning.question.records import CRASHES, Crash, Kind, severity_of
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.rules.alternatives import DEFAULT_IMAGE
from gemma_serving.planning.rules.arguments import kept_arguments
from gemma_serving.planning.rules.platforms.replicas import replicas_remedy
from gemma_serving.planning.rules.registry import RuleResult, change, rule
from gemma_serving.planning.settings.finding import Remedy
from gemma_serving.planning.settings.image import NO_IMAGE, image_of_version

_OFF: Final[Mapping[str, Mapping[str, object]]] = {
    "a compile cache": {"tpu.compile_cache": "off"},
    "fp8 while loading": {"quantization": None},
    "a KV cache with a scale per head": {"vllm.kv_cache_dtype": None},
    "a draft model": {"vllm.speculative_config": None},
}
"""Changes that turn a part off."""
_CLAIMS: Final[Mapping[Kind, str]] = {
    "start": "The server may not start",
    "answers": "Its answers may be wrong",
    "load": "One request may stop the engine",
    "adapter": "An adapter may have no effect",
    "pair": "Two features do not work together",
}


def _remedies(found: Sequence[Crash], subject: Subject) -> Iterator[Remedy]:
    needs = {part for crash in found for part in crash.needs}
    if subject.resolved.question.settings.image != NO_IMAGE:
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
        other = replace(resolved, question=resolved.question.changed(image=image_of_version(release)))
        if any(severity_of(crash, other) not in {None, "info"} for crash in CRASHES.values()):
            break
        clean = release
    return f"Or set image to a release from {clean} by its digest." if clean else ""


@rule("REL01")
def _recorded_crash(subject: Subject) -> RuleResult | None:
    judged = {crash.id: severity_of(crash, subject.resolved) for crash in CRASHES.values()}
    severity: Severity | None = next((one for one in SEVERITIES if one in judged.values()), None)
    if severity is None:
        return None
    found = [CRASHES[name] for name, one in judged.items() if one in {severity, "info"}]
    faults = [crash for crash in found if not crash.asked]
    asked = "; ".join(f"{crash.asked} ({crash.source})" for crash in found if crash.asked)
    sentences = [_sentence(crash, severity) for crash in faults]
    return RuleResult(
        " ".join([*sentences, f"Some answers are wrong: {asked}."] if asked else sentences),
        remedies=_remedies(faults, subject) if faults else (),
        advice=_other_release(subject.resolved) if faults else "",
        severity=severity,
        source="; ".join(f"{crash.id}, {crash.seen_on}" for crash in found),
    )


def _sentence(crash: Crash, severity: Severity) -> str:
    if severity == "block":
        return f"The server will not start: {crash.dies} ({crash.source})."
    return f"{_CLAIMS[crash.kind]}: {crash.likely} ({crash.source})."
