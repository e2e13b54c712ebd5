"""Rules for files that a server loads from the hub: repositories without a commit, files with code, and code itself."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.data.checkpoints import find_checkpoint
from gemma_serving.planning.memory.resolve import Resolved
from gemma_serving.planning.question.hub_files import hub_files
from gemma_serving.planning.rules.registry import RuleResult, change, rule
from gemma_serving.planning.settings.finding import Remedy
from gemma_serving.planning.settings.vllm_args import SAFETENSORS, TOKENIZER_REVISION

COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_UNPICKLES: Final = ("auto", "hf", "pt", "npcache")
"""Load formats that open .bin or .pt files (vLLM, model_executor/model_loader/default_loader.py, 0.32.0)."""
_OTHER_WEIGHTS: Final[Mapping[str, str]] = {
    "dummy": "gives the model random weights, so every response is noise",
    "ipc_cache": "reads weights that another process on the same machine holds",
    "mistral": "reads consolidated files, which only Mistral's checkpoints have",
    "modelexpress": "reads weights from a server of ModelExpress",
    "runai_streamer_sharded": "reads a checkpoint that vLLM saved for one number of devices",
    "sharded_state": "reads a checkpoint that vLLM saved for one number of devices",
    "tensorizer": "reads a checkpoint that tensorizer serialized",
}
"""Effect of each load format that leaves a checkpoint's safetensors files alone (vLLM, config/load.py, 0.31.0)."""
_SPECULATIVE: Final = "vllm.speculative_config"


@rule("SEC07")
def _floating_repository(subject: Subject) -> RuleResult | None:
    found = tuple(_floating(subject.resolved))
    if not found:
        return None
    is_whole = all(changes for _, _, changes in found)
    named = " and ".join(f"the {name}" for name, _, _ in found)
    one_of = "the account that owns it" if len(found) == 1 else "an account that owns one of them"
    return RuleResult(
        f"{named[:1].upper()}{named[1:]} {'has' if len(found) == 1 else 'have'} no commit. The server loads the "
        f"current main branch at each start. Anyone who controls {one_of} can change weights, tokenizer and chat "
        "template without any sign in a preview.",
        remedies=(Remedy(changes={path: value for _, _, one in found for path, value in one.items()}),)
        if is_whole
        else (),
        advice=" ".join(advice for _, advice, changes in found if not (is_whole and changes)),
    )


@rule("LDR04")
def _unusual_weights(subject: Subject) -> RuleResult | None:
    given = (subject.resolved.question.settings.vllm.load_format or SAFETENSORS).lower()
    if given in _OTHER_WEIGHTS:
        return RuleResult(
            f"vllm.loadFormat is {given}, which {_OTHER_WEIGHTS[given]}. The plan is for the checkpoint's safetensors files.",
            severity="block",
            remedies=(change("vllm.load_format", None),),
        )
    if given not in _UNPICKLES:
        return None
    when = "of a checkpoint without safetensors " if given in {"auto", "hf"} else ""
    return RuleResult(
        f"vllm.loadFormat is {given}, so vLLM opens the pickled files {when}(.bin, .pt), which can contain code. "
        "Only PyTorch's restricted unpickler protects against it, and it has been bypassed (CVE-2025-32434). "
        f"{SAFETENSORS} opens no such file; the server will not start without any other.",
        remedies=(change("vllm.load_format", None),),
    )


@rule("MOD06")
def _remote_code(subject: Subject) -> RuleResult | None:
    question = subject.resolved.question
    if not question.settings.vllm.trust_remote_code:
        return None
    return RuleResult(
        "vllm.trustRemoteCode is true. The server will run Python code from the repository of "
        f"{question.settings.model}, which Gemma 4 does not need.",
        remedies=(change("vllm.trust_remote_code", None),),
    )


def _floating(resolved: Resolved) -> Iterator[tuple[str, str, Mapping[str, object]]]:
    """Yield kind and name of each repository without a commit, the advice, and the change to a commit that public sources state."""
    question, config = resolved.question, resolved.vllm.speculative_config or {}
    if not question.is_of_stack:
        return
    if resolved.weights_mode == "hub" and not question.settings.model_revision:
        known = _known_commit(question.settings.model)
        advice = (
            "To find the commit of its main branch and the command that sets modelRevision, run `gemma doctor "
            "STACK`. Review the changes before you adopt a newer one."
        )
        yield f"model {question.settings.model}", advice, {"model_revision": known} if known else {}
    advices = {
        "drafter": f"Set the key revision of {question.vllm_key('speculative_config')} to a commit of {{}}.",
        "tokenizer": f"Add {TOKENIZER_REVISION}=COMMIT with a commit of {{}} to vllm.extraArgs.",
        "adapter": "vLLM loads the main branch of an adapter. With weights bucket, gemma stage_model copies {} and pins it by its hash.",
    }
    for one in hub_files(resolved):
        if not COMMIT.fullmatch(one.revision):
            known = _known_commit(one.name) if one.kind == "drafter" else ""
            changes = {_SPECULATIVE: {**config, "revision": known}} if known else {}
            yield f"{one.kind} {one.name}", advices[one.kind].format(one.name), changes


def _known_commit(name: str) -> str:
    found = find_checkpoint(name)
    return found.commit if found is not None and found.id == name else ""
