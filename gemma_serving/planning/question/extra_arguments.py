"""`extraArgs` as the image's vLLM parses them, and the options whose effect the plan ignores."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from gemma_serving.planning.model.support import version_in_use
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.server_flags import FlagTable, ServerArgument, flag_table, parse_arguments
from gemma_serving.planning.question.tpu_quantization import is_planned
from gemma_serving.planning.settings.vllm_args import (
    ADDITIONAL_CONFIG,
    OPTIONS,
    TOKENIZER,
    TOKENIZER_REVISION,
    Pairs,
    VllmOption,
)

OWN_FLAGS: Final[Mapping[str, VllmOption]] = {option.flag: option for option in OPTIONS.values() if option.flag} | {
    option.shape.switch: option for option in OPTIONS.values() if isinstance(option.shape, Pairs)
}
"""Option of each flag that has a settings key."""
CHANGES_ANSWERS: Final = frozenset(
    {
        "--anthropic-disabled-thinking-effort",
        "--chat-template-content-format",
        "--code-revision",
        "--exclude-tools-when-tool-choice-none",
        "--generation-config",
        "--interleave-mm-strings",
        "--logprobs-mode",
        "--override-generation-config",
        "--reasoning-effort-map",
        "--response-role",
        "--return-tokens-as-token-ids",
        "--tokenizer-mode",
        "--tool-strict-level",
    }
)
"""Flags without another effect than on what a server answers (vLLM's config/model.py and entrypoints/common/cli_args.py, 0.33.0)."""
_WITHOUT_EFFECT: Final = frozenset(
    {
        *CHANGES_ANSWERS,
        TOKENIZER,
        TOKENIZER_REVISION,
        "--allowed-local-media-path",
        "--hf-token",
        "--max-logprobs",
        "--pt-load-map-location",
        "--reasoning-config",
        "--seed",
        "--structured-outputs-config",
        "--use-tqdm-on-load",
    }
)
"""Flags of the engine that change neither its memory nor its start nor its speed by more than the plan is accurate to."""
ON_BY_DEFAULT: Final = frozenset({"--enable-chunked-prefill", OPTIONS["enablePrefixCaching"].flag})
"""Switches that are on without the argument (vLLM's config/scheduler.py and config/cache.py, 0.31.0)."""
_GROUPS_WITHOUT_EFFECT: Final = ("", "Frontend", "LoggingConfig", "ObservabilityConfig", "StructuredOutputsConfig")
"""vLLM's groups of flags for the HTTP server, for logs and metrics, and for parsers. Those of the command itself have none."""

_SECRET_FLAG: Final = re.compile(r"--([a-z]+-)*(api-key|token|password|secret)")
"""Flags with a secret value. vLLM reads `_` as `-`, and has other flags that only contain such a word (`--tokenizer`)."""


def is_secret(*words: str) -> bool:
    """Return whether one of these words is a flag with a secret value, or looks like a secret. A variable counts as a flag: `--HF_TOKEN`."""
    return any(_SECRET_FLAG.fullmatch(word.lower().replace("_", "-")) or token_form().search(word) for word in words)


def secret_arguments(read: Sequence[ServerArgument], words: Sequence[str]) -> list[ServerArgument]:
    """Return the arguments that look like secrets in plain text. `read`: the arguments of `words`."""
    return [one for one in read if is_secret(one.written, one.name, *(words[place] for place in one.words))]


def plain_secrets(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the arguments and the variables that look like secrets in plain text."""
    read = parse_arguments(words, flag_table(None))
    found = [one.written for one in secret_arguments(read, words)]
    return found + [name for name, value in environment.items() if value and is_secret(f"--{name}", value)]


def token_form() -> re.Pattern[str]:
    """Return the form of known tokens."""
    from gemma_serving.contracts.masking import TOKEN_FORM  # noqa: PLC0415 - its patterns take 5 ms, and few plans have arguments

    return TOKEN_FORM


def flags_of(resolved: Resolved) -> FlagTable:
    """Return the flags of the deployment's image."""
    return flag_table(_version_of(resolved))


def _version_of(resolved: Resolved) -> str | None:
    return version_in_use(resolved.accelerator, resolved.question.image_version) or None


def extra_arguments(resolved: Resolved) -> tuple[ServerArgument, ...]:
    """Return the arguments in order; empty without any."""
    words = resolved.question.settings.vllm.extra_args
    return _read(tuple(words), _version_of(resolved)) if words else ()


@lru_cache(maxsize=64)
def _read(words: tuple[str, ...], version: str | None) -> tuple[ServerArgument, ...]:
    """Return the arguments. Many rules ask for the same ones, and each remedy is planned as a whole."""
    return parse_arguments(words, flag_table(version))


def value_of_flag(read: Sequence[ServerArgument], flag: str) -> tuple[str, ...] | None:
    """Return the words of a flag's last use, empty for a switch; None if it is absent or turned off."""
    found = next((one for one in reversed(read) if one.name == flag), None)
    return None if found is None or found.is_off or found.problem else found.value


def ignored_arguments(resolved: Resolved) -> list[ServerArgument]:
    """Return the members of `extraArgs` that may change memory, start or speed, and whose effect the plan ignores."""
    unplanned = {OPTIONS["multimodal.maxImageTokens"].flag, ADDITIONAL_CONFIG}
    planned = OWN_FLAGS.keys() - unplanned | _WITHOUT_EFFECT
    return [
        one
        for one in extra_arguments(resolved)
        if one.flag is not None
        and one.is_off == (one.name in ON_BY_DEFAULT)
        and not (one.name in planned or one.flag.group in _GROUPS_WITHOUT_EFFECT or is_planned(one))
    ]


def ignores_options(resolved: Resolved) -> bool:
    """Return whether the plan ignores the effect of an option, so its start and its speed are those of a deployment that was never measured."""
    return resolved.skips_compilation or bool(ignored_arguments(resolved))
