"""Rules of what a server exposes: known vulnerabilities of its vLLM."""

from planning.advisories import advisories_of
from planning.registry import RuleResult, change, rule
from planning.subject import Subject
from planning.support import version_in_use, version_key


@rule(
    "SEC04",
    "info",
    source="planning/advisories.py: OSV, GitHub's advisory database",
    what="a version of vLLM with published vulnerabilities, or one that is not known",
)
def vulnerable(subject: Subject) -> RuleResult | None:
    """Find what a caller can do to a server of this version."""
    resolved = subject.resolved
    version, found = version_in_use(resolved.accelerator, resolved.deployment.image_version), advisories_of(resolved)
    if found is None:
        return RuleResult(
            message="The image's version of vLLM is not known, so whether it has published vulnerabilities is not known either.",
            advice="Set `image_version` to the version that its log states at the start.",
        )
    if not found:
        return None
    fixed = max((one.fixed for one in found), key=lambda release: version_key(release) or (0, 0, 0, 0))
    ways = dict.fromkeys(one.what for one in found)
    named = ", ".join(f"{way} ({', '.join(one.id for one in found if one.what == way)})" for way in ways)
    has_template_way = all(one.needs == "no chat template of the server" for one in found)
    return RuleResult(
        message=f"vLLM {version} has published vulnerabilities: a caller can {named}. vLLM {fixed} has none of them.",
        severity="warn" if resolved.deployment.public else None,
        remedies=(change("vllm.trust_remote_code", None),)
        if all(one.needs == "trustRemoteCode" for one in found)
        else (),
        advice=(
            "Let in only callers whom you trust, or name an image of that version by its digest (`image`)."
            + (
                " A chat template of the server's own (`vllm.chat_template`) closes this way too."
                if has_template_way
                else ""
            )
        ),
    )
