"""Published vulnerabilities of vLLM that apply to Gemma 4: gemma_serving/planning/data/advisories.json, the worst first, compared with OSV every night."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.data.tables import Table, typed_file
from gemma_serving.planning.model.support import is_between, known_key, version_in_use, version_key
from gemma_serving.planning.question.server_flags import flag_releases
from gemma_serving.planning.rules.registry import RuleResult, rule
from gemma_serving.planning.settings.finding import Remedy

ADVICE: Final = "Allow only callers that you trust, or set image to an image of that version by its digest."


class Advisory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One vulnerability: releases from `first` (empty for all) to before `fixed`, if the stack has the feature that it `needs`. A caller can `what`."""

    id: str
    aliases: tuple[str, ...]
    first: str
    fixed: str
    needs: Literal["nothing", "no chat template of the server", "video", "trustRemoteCode", "another model"]
    what: str
    source: str
    seen_on: str


ADVISORIES: Final[Mapping[str, Advisory]] = Table(
    lambda: {row.id: row for row in typed_file("advisories.json", tuple[Advisory, ...])}
)


def _found(subject: Subject, needs: Mapping[str, bool]) -> Sequence[Advisory]:
    """Return the vulnerabilities of the release; empty for an unknown one. A development version of the fixed release counts: its commit is unknown."""
    version = _version(subject)
    return [one for one in ADVISORIES.values() if needs.get(one.needs) and is_between(version, one.first, one.fixed)]


def _version(subject: Subject) -> str:
    return version_in_use(subject.resolved.accelerator, subject.resolved.question.image_version)


def _text(subject: Subject, found: Sequence[Advisory]) -> str:
    fixed = max((one.fixed for one in found), key=lambda release: version_key(release) or ())
    apply = "vulnerabilities that apply" if len(found) > 1 else "vulnerability that applies"
    has = f"vLLM {_version(subject)} has {len(found)} published {apply} to this deployment"
    return f"{has}; vLLM {fixed} has none of them. With the worst, a caller can {found[0].what} ({found[0].id})."


@rule("SEC11")
def _vulnerable_feature(subject: Subject) -> RuleResult | None:
    vllm = subject.resolved.question.settings.vllm
    limits = vllm.limit_mm_per_prompt or {}
    found = _found(subject, {"trustRemoteCode": bool(vllm.trust_remote_code), "video": bool(limits.get("video"))})
    if not found:
        return None
    off = {"vllm.trust_remote_code": None, "vllm.limit_mm_per_prompt": {**limits, "video": 0} if limits else None}
    return RuleResult(_text(subject, found), remedies=(Remedy(changes=off),), advice=ADVICE)


@rule("SEC04")
def _vulnerable(subject: Subject) -> RuleResult | None:
    version = _version(subject)
    if known_key(version) is None:
        return RuleResult(
            f"vLLM {version or 'of the image'} is not a release that this project knows (newest: {flag_releases()[-1]}). Whether it serves this model "
            "and takes these arguments, its memory, start and speed, and its published vulnerabilities are unknown.",
            severity="warn",
            advice="Set image.version to the version in the first lines of its log.",
        )
    found = vulnerabilities(subject) if subject.resolved.question.cloud_run.public else ()
    return RuleResult(_text(subject, found), severity="warn", advice=ADVICE) if found else None


def vulnerabilities(subject: Subject) -> Sequence[Advisory]:
    """Return the published vulnerabilities that callers of this deployment can use, the worst first."""
    resolved = subject.resolved
    needs = {"nothing": True, "no chat template of the server": resolved.vllm.chat_template is None}
    needs |= {"video": resolved.item_limit("video") > 0, "trustRemoteCode": bool(resolved.vllm.trust_remote_code)}
    return _found(subject, needs)
