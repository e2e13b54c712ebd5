"""Rules for what a server loads from the hub: repositories without a commit, files with code, and code itself."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from planning.cost.subject import Subject
from planning.data.checkpoints import find_checkpoint
from planning.memory.resolve import Resolved
from planning.model.support import version_in_use
from planning.question.drafters import named_drafter
from planning.question.server_flags import flag_table, parse_arguments
from planning.question.types import Remedy
from planning.question.vllm_args import SAFETENSORS, TOKENIZER, TOKENIZER_REVISION
from planning.rules.registry import RuleResult, change, rule

HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_ADAPTERS: Final = "--lora-modules"
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
def floating_repository(subject: Subject) -> RuleResult | None:
    """Find repositories whose owner can change what the server loads at its next start."""
    found = tuple(_floating(subject.resolved))
    if not found:
        return None
    known = {path: value for one in found for path, value in one.changes.items()}
    is_whole = all(one.changes for one in found)
    named = " and ".join(f"the {one.what} {one.name}" for one in found)
    one_of = "the account that owns it" if len(found) == 1 else "an account that owns one of them"
    return RuleResult(
        message=(
            f"{named[:1].upper()}{named[1:]} {'has' if len(found) == 1 else 'have'} no commit. The server loads the "
            f"current main branch at each start. Anyone who controls {one_of} can change weights, tokenizer and chat template without any sign in a preview."
        ),
        remedies=(Remedy(changes=known),) if is_whole else (),
        advice=" ".join(one.advice for one in found if not (is_whole and one.changes)),
    )


@rule(
    "LDR04",
    "warn",
    source="vLLM, model_executor/model_loader/default_loader.py and weight_utils.py (0.32.0); CVE-2025-32434",
    what="a load format that opens pickled files",
)
def pickled_weights(subject: Subject) -> RuleResult | None:
    """Find a load format that opens .bin or .pt files, which can contain code."""
    given = subject.resolved.deployment.vllm.load_format
    if given not in _UNPICKLES:
        return None
    when = "of a checkpoint without safetensors " if given in {"auto", "hf"} else ""
    return RuleResult(
        message=(
            f"`vllm.load_format` is {given}, so vLLM opens the pickled files {when}(.bin, .pt), which can contain code. Only PyTorch's restricted "
            f"unpickler protects against it, and it has been bypassed (CVE-2025-32434). {SAFETENSORS} opens no such file; the server will not start "
            "without any other."
        ),
        remedies=(change("vllm.load_format", None),),
    )


@rule(
    "MOD06",
    "warn",
    source="vLLM, docs/usage/security.md",
    what="code of the checkpoint's repository that the server runs",
)
def remote_code(subject: Subject) -> RuleResult | None:
    """Find a server that runs Python code from the hub."""
    deployment = subject.resolved.deployment
    if not deployment.vllm.trust_remote_code:
        return None
    return RuleResult(
        message=f"`vllm.trust_remote_code` is true. The server will run Python code from the repository of {deployment.model}, which Gemma 4 does not need.",
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
                "To find the commit of its main branch and the command that sets `model_revision`, run `python -m scripts.doctor`. Review the changes "
                "before you adopt a newer one."
            ),
            changes={"model_revision": known} if known else {},
        )
    yield from _floating_drafter(resolved)
    yield from _floating_arguments(resolved)


def _floating_drafter(resolved: Resolved) -> Iterator[_Floating]:
    config, drafter = resolved.vllm.speculative_config, named_drafter(resolved.vllm)
    if config is None or drafter is None or not HUB_ID.fullmatch(drafter) or _is_commit(config.get("revision")):
        return
    known = _known_commit(drafter)
    yield _Floating(
        name=drafter,
        what="drafter",
        advice=f"Set the key revision of `{_SPECULATIVE}` to a commit of {drafter}.",
        changes={_SPECULATIVE: {**config, "revision": known}} if known else {},
    )


def _floating_arguments(resolved: Resolved) -> Iterator[_Floating]:
    """Yield the repositories in `extra_args`: a tokenizer without a commit, and adapters, which vLLM always loads without one."""
    arguments = resolved.deployment.vllm.extra_args
    if not arguments:
        return
    version = version_in_use(resolved.accelerator, resolved.deployment.image_version)
    read = parse_arguments(arguments, flag_table(version or None))
    values = {one.flag.name: one.value for one in read if one.flag is not None}
    tokenizer = _first(values.get(TOKENIZER))
    if HUB_ID.fullmatch(tokenizer) and not _is_commit(_first(values.get(TOKENIZER_REVISION))):
        advice = f"Add {TOKENIZER_REVISION}=COMMIT with a commit of {tokenizer} to `vllm.extra_args`."
        yield _Floating(name=tokenizer, what="tokenizer", advice=advice, changes={})
    for module in values.get(_ADAPTERS, ()):
        name = _adapter_place(module)
        if HUB_ID.fullmatch(name):
            advice = f"vLLM loads the main branch of an adapter. Copy {name} into the image and use that folder."
            yield _Floating(name=name, what="adapter", advice=advice, changes={})


def _first(value: Sequence[str] | None) -> str:
    return value[0] if value else ""


def _adapter_place(module: str) -> str:
    """Return the location of an adapter: the text after `NAME=`, or `path` of a JSON object."""
    found = re.search(r'"path"\s*:\s*"([^"]*)"', module) if module.startswith("{") else None
    return found[1] if found else module.partition("=")[2]


def _is_commit(value: object) -> bool:
    return isinstance(value, str) and COMMIT.fullmatch(value) is not None


def _known_commit(name: str) -> str:
    found = find_checkpoint(name)
    return found.commit if found is not None and found.id == name else ""
