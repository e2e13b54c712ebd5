"""Rules for `extraArgs`: secrets, options with their own settings key, and flags that the image's vLLM rejects."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from planning.cost.subject import Subject
from planning.errors import PlanningError
from planning.model.support import version_in_use
from planning.question.server_flags import FlagTable, ServerArgument, flag_table, parse_arguments
from planning.question.types import Remedy
from planning.question.vllm_args import OPTIONS, REVISION, TOKENIZER, TOKENIZER_REVISION, VllmOption
from planning.rules.registry import RuleResult, change, rule

_SECRET_FLAG: Final = re.compile(r"--([a-z]+-)*(api-key|token|password|secret)")
"""Flags with a secret value. vLLM reads `_` as `-`, and has other flags that only contain such a word (`--tokenizer`)."""
_OWN_FLAGS: Final[Mapping[str, VllmOption]] = {option.flag: option for option in OPTIONS.values() if option.flag}
_SAME_AS: Final[Mapping[str, str]] = {
    "--spec-method": "speculativeConfig",
    "--spec-model": "speculativeConfig",
    "--spec-tokens": "speculativeConfig",
    "--language-model-only": "limitMmPerPrompt",
}
"""Flags that change the value of an option with another flag (vLLM's config/vllm.py and config/multimodal.py)."""
_OF_THE_MODEL: Final = (REVISION, TOKENIZER_REVISION)
"""Flags for `model_revision`. A tokenizer from another repository has its own commit."""
_SET_BY_THE_STACK: Final = ("--model", "--host", "--port")


@rule(
    "SEC01",
    "block",
    source="Secret Manager best practices",
    what="a secret in the server's arguments",
    is_acceptable=False,
)
def secret_argument(subject: Subject) -> RuleResult | None:
    """Find an argument that looks like a secret. Its value is never shown."""
    arguments = subject.resolved.deployment.vllm.extra_args
    if not arguments:
        return None
    secret = _words(_secrets(_read(subject), arguments))
    if not secret:
        return None
    kept = _without(arguments, secret)
    return RuleResult(
        message=(
            f"`vllm.extra_args` has {len(arguments) - len(kept)} argument(s) that look like a secret. They would be stored unencrypted in the "
            "settings, the state, and the service's description or the instance's metadata."
        ),
        remedies=(change("vllm.extra_args", kept),),
        advice=(
            "Revoke that secret. Store a Hugging Face token as hfToken and an API key as apiKey with "
            "`python -m scripts.save_token`; the server reads them from Secret Manager."
        ),
    )


@rule(
    "ARG01",
    "block",
    source="vLLM utils/argparse_utils.py (the last of two values counts)",
    what="an argument in extraArgs with its own settings key, whose value the plan ignores",
)
def own_key(subject: Subject) -> RuleResult | None:
    """Find arguments that override an option the planner uses."""
    arguments = subject.resolved.deployment.vllm.extra_args
    if not arguments:
        return None
    read = _read(subject)
    repeated = [argument for argument in read if argument.flag is not None and _owner(argument.flag.name, read)]
    if not repeated:
        return None
    listed = dict.fromkeys(
        f"{argument.written} ({_owner(argument.flag.name, read)})" for argument in repeated if argument.flag
    )
    kept = _without(arguments, _words(repeated) | _words(_secrets(read, arguments)))
    moved = _moved(repeated)

    def remedies() -> Iterator[Remedy]:
        if moved:
            yield Remedy(changes={**moved, "vllm.extra_args": kept})
        yield change("vllm.extra_args", kept)

    return RuleResult(
        message=(
            f"`vllm.extra_args` has {len(repeated)} argument(s) with their own key: {', '.join(listed)}. vLLM will use "
            "these values instead of the planned ones, and the plan will be wrong."
        ),
        remedies=remedies(),
    )


@rule(
    "ARG02",
    "block",
    "warn",
    source="vLLM engine/arg_utils.py and cli_args.py, by release in planning/data/flags",
    what="an argument in extraArgs that the image's vLLM rejects",
)
def unknown_argument(subject: Subject) -> RuleResult | None:
    """Find arguments that make the server exit while it parses them."""
    arguments = subject.resolved.deployment.vllm.extra_args
    if not arguments:
        return None
    table, read = _table(subject), _read(subject)
    wrong = [argument for argument in read if argument.problem]
    if not wrong:
        return None
    kept = _without(arguments, _words(wrong) | _words(_secrets(read, arguments)))
    ending = (
        "vLLM will exit at startup."
        if table.is_certain
        else f"The flags of {table.version} in this image are unknown, and the nearest releases reject it."
    )
    listed = "; ".join(dict.fromkeys(argument.problem for argument in wrong))
    return RuleResult(
        severity="block" if table.is_certain else "warn",
        message=f"`vllm.extra_args`: {_without_secret_text(listed)}. {ending}",
        remedies=(change("vllm.extra_args", kept),),
    )


def read_arguments(subject: Subject) -> tuple[ServerArgument, ...]:
    """Return `extraArgs` as the image's vLLM parses them."""
    return _read(subject) if subject.resolved.deployment.vllm.extra_args else ()


def kept_arguments(subject: Subject, dropped: Sequence[ServerArgument]) -> tuple[str, ...]:
    """Return `extraArgs` without the dropped ones and without secrets, because remedies are printed."""
    arguments = subject.resolved.deployment.vllm.extra_args
    return _without(arguments, _words(dropped) | _words(_secrets(read_arguments(subject), arguments)))


def _table(subject: Subject) -> FlagTable:
    resolved = subject.resolved
    return flag_table(version_in_use(resolved.accelerator, resolved.deployment.image_version) or None)


def _read(subject: Subject) -> tuple[ServerArgument, ...]:
    return parse_arguments(subject.resolved.deployment.vllm.extra_args, _table(subject))


def _owner(flag: str, read: Sequence[ServerArgument]) -> str:
    """Return the field of the settings key that a flag among others belongs to; empty if it has none."""
    if flag in _OF_THE_MODEL:
        has_tokenizer = any(one.flag is not None and one.flag.name == TOKENIZER for one in read)
        return "" if flag == TOKENIZER_REVISION and has_tokenizer else "`model_revision`"
    if flag in _OWN_FLAGS:
        return f"`vllm.{_OWN_FLAGS[flag].name}`"
    if flag in _SAME_AS:
        return f"`vllm.{OPTIONS[_SAME_AS[flag]].name}`"
    return "set by the stack" if flag in _SET_BY_THE_STACK else ""


def _moved(repeated: Sequence[ServerArgument]) -> dict[str, object]:
    """Return the values of the arguments as fields, without values that the option rejects."""
    found: dict[str, object] = {}
    for argument in repeated:
        option = _OWN_FLAGS.get(argument.flag.name) if argument.flag else None
        if (
            option is None
            or argument.key
            or argument.problem
            or any(_token_form().search(text) for text in argument.value)
        ):
            continue
        text = " ".join(argument.value) if option.kind is not bool else str(not argument.is_off).lower()
        try:
            found[f"vllm.{option.name}"] = option.read(text)
        except PlanningError:
            continue
    return found


def _secrets(read: Sequence[ServerArgument], arguments: Sequence[str]) -> list[ServerArgument]:
    """Return the arguments whose flag takes a secret, or that look like one."""
    return [
        argument
        for argument in read
        if _carries_secret(argument) or any(_token_form().search(arguments[position]) for position in argument.words)
    ]


def _carries_secret(argument: ServerArgument) -> bool:
    names = (argument.written.replace("_", "-"), argument.flag.name if argument.flag else "")
    return any(_SECRET_FLAG.fullmatch(name) for name in names)


def _words(arguments: Sequence[ServerArgument]) -> frozenset[int]:
    return frozenset(position for argument in arguments for position in argument.words)


def _without(arguments: Sequence[str], positions: frozenset[int]) -> tuple[str, ...]:
    return tuple(word for position, word in enumerate(arguments) if position not in positions)


def _without_secret_text(text: str) -> str:
    return _token_form().sub("...", text)


def _token_form() -> re.Pattern[str]:
    from contracts.masking import TOKEN_FORM  # noqa: PLC0415 - its patterns take 5 ms, and few plans have arguments

    return TOKEN_FORM
