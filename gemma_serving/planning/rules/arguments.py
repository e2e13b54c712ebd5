"""Rules for `extraArgs`: secrets, options with their own settings key, and flags that the image's vLLM rejects."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.question.extra_arguments import extra_arguments, flags_of, is_secret, token_form
from gemma_serving.planning.question.features import soft_token_arguments
from gemma_serving.planning.question.server_flags import ServerArgument
from gemma_serving.planning.rules.registry import RuleResult, change, rule
from gemma_serving.planning.settings.finding import Remedy
from gemma_serving.planning.settings.reading import read_text
from gemma_serving.planning.settings.vllm_args import (
    DEFAULT_IMAGE_TOKENS,
    IMAGE_TOKENS,
    OPTIONS,
    REVISION,
    TOKENIZER,
    TOKENIZER_REVISION,
    Pairs,
    VllmOption,
    VllmOptions,
)
from gemma_serving.planning.units import number_of

_OWN_FLAGS: Final[Mapping[str, VllmOption]] = {option.flag: option for option in OPTIONS.values() if option.flag} | {
    option.shape.switch: option for option in OPTIONS.values() if isinstance(option.shape, Pairs)
}
_LORA: Final = "lora."
"""Block whose flags belong together: some in `extraArgs` and others from the block are two sets of adapters."""
_SAME_AS: Final[Mapping[str, str]] = {
    "--spec-method": "speculativeConfig",
    "--spec-model": "speculativeConfig",
    "--spec-tokens": "speculativeConfig",
    "--language-model-only": "limitMmPerPrompt",
    **dict.fromkeys(
        (
            "--data-parallel-size-local",
            "--data-parallel-rank",
            "--data-parallel-start-rank",
            "--data-parallel-external-lb",
            "--data-parallel-hybrid-lb",
            "--data-parallel-multi-port-external-lb",
        ),
        "dataParallelSize",
    ),
}
"""Flags that change the value of an option with another flag (vLLM's config/vllm.py, config/multimodal.py and entrypoints/cli/serve.py)."""
_UNPLANNED: Final = frozenset(
    {
        OPTIONS["multimodal.maxImageTokens"].flag,
        "--kv-cache-memory-bytes",
        "--num-gpu-blocks-override",
        "--pipeline-parallel-size",
        "--enable-expert-parallel",
        "--attention-backend",
        "--attention-config",
        "--compilation-config",
        "--kv-transfer-config",
    }
)
"""Flags that change memory or speed, and that the plan ignores."""
_OF_THE_MODEL: Final = (REVISION, TOKENIZER_REVISION)
"""Flags for `model_revision`. A tokenizer from another repository has its own commit."""
_SET_BY_THE_STACK: Final = ("--model", "--host", "--port")
_PARSER: Final = "gemma4"
"""Name of Gemma 4's tool-call parser, and of its reasoning parser."""


@rule("SEC01")
def _secret_argument(subject: Subject) -> RuleResult | None:
    kept = kept_arguments(subject, ())
    count = len(subject.resolved.deployment.vllm.extra_args) - len(kept)
    if not count:
        return None
    return RuleResult(
        f"vllm.extraArgs has {number_of(count, 'argument')} with what looks like a secret. Arguments are stored "
        "unencrypted in the settings, the state, and the service's description or the instance's metadata.",
        remedies=(change("vllm.extra_args", kept),),
        advice=(
            "Revoke that secret. Store a Hugging Face token with `gemma save_token STACK hfToken` and an API key with "
            "`gemma save_token STACK apiKey`; the server reads them from Secret Manager."
        ),
    )


@rule("ARG01")
def _own_key(subject: Subject) -> RuleResult | None:
    read, options = extra_arguments(subject.resolved), subject.resolved.deployment.vllm
    repeated = {one: owner for one in read if (owner := _owner(one.name, read, options))}
    ignored = [one for one in read if one.name in _UNPLANNED and not one.is_off]
    if not repeated:
        return _ignored(subject, ignored)
    listed = dict.fromkeys(f"{argument.written} ({owner})" for argument, owner in repeated.items())
    kept, moved = kept_arguments(subject, (*repeated, *ignored)), _moved(repeated)
    return RuleResult(
        f"vllm.extraArgs has {number_of(len(repeated), 'argument')} for which a key exists: {', '.join(listed)}. vLLM will use "
        "these values instead of the planned ones, and the plan will be wrong.",
        remedies=(
            *((Remedy(changes={**moved, "vllm.extra_args": kept}),) if moved else ()),
            change("vllm.extra_args", kept),
        ),
    )


def _ignored(subject: Subject, found: Sequence[ServerArgument]) -> RuleResult | None:
    """Return the result for arguments that the plan ignores; None without any."""
    if not found:
        return None
    listed = ", ".join(dict.fromkeys(one.name for one in found))
    return RuleResult(
        f"vllm.extraArgs has {listed}, which changes memory or speed, but the plan ignores it.",
        severity="warn",
        remedies=(change("vllm.extra_args", kept_arguments(subject, found)),),
    )


@rule("ARG02")
def _unknown_argument(subject: Subject) -> RuleResult | None:
    wrong = [argument for argument in extra_arguments(subject.resolved) if argument.problem]
    if not wrong:
        return None
    table = flags_of(subject.resolved)
    ending = (
        "vLLM will exit at startup."
        if table.is_certain
        else f"The flags of {table.version} in this image are unknown, and the nearest releases reject it."
    )
    listed = "; ".join(dict.fromkeys(argument.problem for argument in wrong))
    return RuleResult(
        f"vllm.extraArgs: {token_form().sub('...', listed)}. {ending}",
        severity="block" if table.is_certain else "warn",
        remedies=(change("vllm.extra_args", kept_arguments(subject, wrong)),),
    )


@rule("ARG03")
def _wrong_soft_tokens(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    if not resolved.deployment.vllm.extra_args or not resolved.spec.is_gemma4 or not resolved.has_processor:
        return None
    argument, given = next(soft_token_arguments(resolved), (None, DEFAULT_IMAGE_TOKENS))
    if argument is None or given in IMAGE_TOKENS:
        return None
    *most, last = IMAGE_TOKENS
    kept = kept_arguments(subject, (argument,))
    nearest = min(IMAGE_TOKENS, key=lambda tokens: abs(tokens - given))
    return RuleResult(
        f"vllm.extraArgs sets max_soft_tokens to {given:,}, but Gemma 4 has images of {', '.join(map(str, most))} or "
        f"{last} tokens. vLLM will not start.",
        remedies=(
            Remedy(changes={"vllm.image_tokens": nearest, "vllm.extra_args": kept}),
            change("vllm.extra_args", kept),
        ),
        advice=f"Without the argument, an image has {DEFAULT_IMAGE_TOKENS} tokens.",
    )


@rule("ARG04")
def _foreign_parser(subject: Subject) -> RuleResult | None:
    resolved, options = subject.resolved, subject.resolved.vllm
    if not resolved.spec.is_gemma4:
        return None
    plugins = {one.name for one in extra_arguments(resolved)}
    effects: dict[str, str] = {}
    tools, reasoning = options.tool_call_parser or _PARSER, options.reasoning_parser or _PARSER
    if options.enable_auto_tool_choice and tools != _PARSER and "--tool-parser-plugin" not in plugins:
        effects["vllm.tool_call_parser"] = (
            f"{resolved.deployment.vllm_key('tool_call_parser')} is {tools}, which does not read Gemma 4's tool calls. Responses will contain "
            "them as text."
        )
    if reasoning != _PARSER and "--reasoning-parser-plugin" not in plugins:
        effects["vllm.reasoning_parser"] = (
            f"{resolved.deployment.vllm_key('reasoning_parser')} is {reasoning}, whose marks are not in Gemma 4's tokenizer. vLLM may fail to "
            "start, or return the reasoning as part of the response."
        )
    if not effects:
        return None
    return RuleResult(" ".join(effects.values()), remedies=(Remedy(changes=dict.fromkeys(effects, _PARSER)),))


def arguments_named(subject: Subject, names: Container[str]) -> list[ServerArgument]:
    """Return the members of `extraArgs` with one of these flags."""
    return [one for one in extra_arguments(subject.resolved) if one.name in names]


def kept_arguments(subject: Subject, dropped: Sequence[ServerArgument]) -> tuple[str, ...]:
    """Return `extraArgs` without the dropped ones and without secrets, because remedies are printed."""
    words = subject.resolved.deployment.vllm.extra_args
    read = extra_arguments(subject.resolved)
    secret = [one for one in read if is_secret(one.written, one.name, *(words[place] for place in one.words))]
    gone = {position for argument in (*dropped, *secret) for position in argument.words}
    return tuple(word for position, word in enumerate(words) if position not in gone)


def _owner(flag: str, read: Sequence[ServerArgument], options: VllmOptions) -> str:
    """Return the field of the settings key that a flag among others belongs to; empty if it has none, or none that is set and excludes it."""
    if flag in _OF_THE_MODEL:
        has_tokenizer = any(one.name == TOKENIZER for one in read)
        return "" if flag == TOKENIZER_REVISION and has_tokenizer else "modelRevision"
    if flag in _OWN_FLAGS:
        option = _OWN_FLAGS[flag]
        return f"vllm.{option.key}" if not option.is_in_block or _is_set(option, options) else ""
    if flag in _SAME_AS:
        return f"vllm.{_SAME_AS[flag]}"
    return "set by the stack" if flag in _SET_BY_THE_STACK else ""


def _is_set(option: VllmOption, options: VllmOptions) -> bool:
    """Return whether an option of a block is set. The options of `lora` count together."""
    together = [
        one for one in OPTIONS.values() if one is option or (option.key.startswith(_LORA) and one.key.startswith(_LORA))
    ]
    return any(getattr(options, one.name) is not None for one in together)


def _moved(repeated: Iterable[ServerArgument]) -> dict[str, object]:
    """Return the values of the arguments as fields, without values that the option rejects."""
    found: dict[str, object] = {}
    for argument in repeated:
        option = _OWN_FLAGS.get(argument.name)
        if option is None or option.is_in_block or argument.key or argument.problem:  # the value of a block stays
            continue
        if any(token_form().search(text) for text in argument.value):
            continue
        text = " ".join(argument.value) if option.kind is not bool else str(not argument.is_off).lower()
        try:
            found[f"vllm.{option.name}"] = read_text(option.field, text)
        except ValueError:
            continue
    return found
