"""Rules for what a server loads from the hub: repositories without a commit, files with code, and code itself."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from planning.cost.subject import Subject
from planning.data.checkpoints import find_checkpoint
from planning.memory.resolve import Resolved
from planning.question.hub_files import LoadedRepository, hub_files
from planning.question.types import Remedy
from planning.question.vllm_args import SAFETENSORS, TOKENIZER_REVISION
from planning.rules.registry import RuleResult, change, rule

COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_UNPICKLES: Final = ("auto", "hf", "pt", "npcache")
"""Load formats that open .bin or .pt files (vLLM, model_executor/model_loader/default_loader.py, 0.32.0)."""
_SPECULATIVE: Final = "vllm.speculative_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Floating:
    """A hub repository that a server loads without a commit."""

    name: str
    what: str
    advice: str
    """Instruction, as a sentence."""
    changes: Mapping[str, object]
    """The change to a commit that public sources state; empty if none is known."""


@rule(
    "SEC07",
    "warn",
    source="vLLM, `vllm serve --help` (--revision); huggingface.co/docs/hub/repositories-getting-started",
    what="a hub repository that the server loads without a commit",
)
def _floating_repository(subject: Subject) -> RuleResult | None:
    found = tuple(_floating(subject.resolved))
    if not found:
        return None
    known = {path: value for one in found for path, value in one.changes.items()}
    is_whole = all(one.changes for one in found)
    named = " and ".join(f"the {one.what} {one.name}" for one in found)
    one_of = "the account that owns it" if len(found) == 1 else "an account that owns one of them"
    return RuleResult(
        f"{named[:1].upper()}{named[1:]} {'has' if len(found) == 1 else 'have'} no commit. The server loads the "
        f"current main branch at each start. Anyone who controls {one_of} can change weights, tokenizer and chat "
        "template without any sign in a preview.",
        remedies=(Remedy(changes=known),) if is_whole else (),
        advice=" ".join(one.advice for one in found if not (is_whole and one.changes)),
    )


@rule(
    "LDR04",
    "warn",
    source="vLLM, model_executor/model_loader/default_loader.py and weight_utils.py (0.32.0); CVE-2025-32434",
    what="a load format that opens pickled files",
)
def _pickled_weights(subject: Subject) -> RuleResult | None:
    given = subject.resolved.deployment.vllm.load_format
    if given not in _UNPICKLES:
        return None
    when = "of a checkpoint without safetensors " if given in {"auto", "hf"} else ""
    return RuleResult(
        f"`vllm.load_format` is {given}, so vLLM opens the pickled files {when}(.bin, .pt), which can contain code. "
        "Only PyTorch's restricted "
        f"unpickler protects against it, and it has been bypassed (CVE-2025-32434). {SAFETENSORS} opens no such "
        "file; the server will not start "
        "without any other.",
        remedies=(change("vllm.load_format", None),),
    )


@rule(
    "MOD06",
    "warn",
    source="vLLM, docs/usage/security.md",
    what="code of the checkpoint's repository that the server runs",
)
def _remote_code(subject: Subject) -> RuleResult | None:
    deployment = subject.resolved.deployment
    if not deployment.vllm.trust_remote_code:
        return None
    return RuleResult(
        "`vllm.trust_remote_code` is true. The server will run Python code from the repository of "
        f"{deployment.model}, which Gemma 4 does not need.",
        remedies=(change("vllm.trust_remote_code", None),),
    )


def _floating(resolved: Resolved) -> Iterator[_Floating]:
    deployment = resolved.deployment
    if deployment.model_revision is None:
        return  # not a stack's question
    if resolved.weights_mode == "hub" and not deployment.model_revision:
        known = _known_commit(deployment.model)
        yield _Floating(
            name=deployment.model,
            what="model",
            advice=(
                "To find the commit of its main branch and the command that sets `model_revision`, run `gemma doctor "
                "STACK`. Review the changes "
                "before you adopt a newer one."
            ),
            changes={"model_revision": known} if known else {},
        )
    for one in hub_files(resolved):
        if not COMMIT.fullmatch(one.revision):
            yield _floating_file(resolved, one)


def _floating_file(resolved: Resolved, one: LoadedRepository) -> _Floating:
    """Return a drafter, tokenizer or adapter without a commit, with how to give it one."""
    known = _known_commit(one.name) if one.kind == "drafter" else ""
    advice = {
        "drafter": f"Set the key revision of `{_SPECULATIVE}` to a commit of {one.name}.",
        "tokenizer": f"Add {TOKENIZER_REVISION}=COMMIT with a commit of {one.name} to `vllm.extra_args`.",
        "adapter": f"vLLM loads the main branch of an adapter. With `weights_mode` bucket, scripts.stage_model copies {one.name} and pins it by its hash.",
    }
    config = resolved.vllm.speculative_config or {}
    changes = {_SPECULATIVE: {**config, "revision": known}} if known else {}
    return _Floating(name=one.name, what=one.kind, advice=advice[one.kind], changes=changes)


def _known_commit(name: str) -> str:
    found = find_checkpoint(name)
    return found.commit if found is not None and found.id == name else ""
