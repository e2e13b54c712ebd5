"""Rules for `extraArgs`: secrets, options with their own settings key, and flags that the image's vLLM rejects."""

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

from gemma_serving.contracts.spelling import meant
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.numbers import read_json
from gemma_serving.planning.question.extra_arguments import (
    CHANGES_ANSWERS,
    ON_BY_DEFAULT,
    OWN_FLAGS,
    extra_arguments,
    flags_of,
    ignored_arguments,
    secret_arguments,
    token_form,
)
from gemma_serving.planning.question.features import soft_token_arguments
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.server_flags import CHAT_TEMPLATE, ServerArgument, parse_arguments
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
    Modality,
    VllmOption,
    VllmOptions,
)
from gemma_serving.planning.units import number_of

_LORA: Final = "lora."
"""Block whose flags belong together: some in `extraArgs` and others from the block are two sets of adapters."""
_PARTS: Final[Mapping[str, str]] = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}
"""Flags for one part of `speculativeConfig` (vLLM's engine/arg_utils.py)."""
_TEXT_ALONE: Final = "--language-model-only"
"""Flag that allows no item of any modality (vLLM's config/multimodal.py)."""
_SAME_AS: Final[Mapping[str, str]] = {
    **dict.fromkeys(_PARTS, "speculativeConfig"),
    _TEXT_ALONE: "limitMmPerPrompt",
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
_IMAGE_SOURCES: Final[Mapping[bool, str]] = {False: "/vllm-workspace/", True: "/workspace/vllm/"}
"""Folder of vLLM's sources, with its templates, in an image for GPUs and in one for TPUs (Dockerfiles of vLLM and of tpu-inference)."""
_FOREIGN: Final = {
    "tool_call_parser": "which does not read Gemma 4's tool calls. Responses will contain them as text.",
    "reasoning_parser": "whose marks are not in Gemma 4's tokenizer. vLLM may fail to start, or return the reasoning as part of the response.",
}
"""Effect of each parser of another model family."""
_PLUGIN_OF: Final[Mapping[str, str]] = {
    "tool_call_parser": "--tool-parser-plugin",
    "reasoning_parser": "--reasoning-parser-plugin",
}
"""Flag that adds names to each kind of parser."""
_OLD_LIMIT: Final = re.compile(r"\w+=\d+(,\w+=\d+)*")
"""A limit of media in the form of vLLM's releases before 0.10."""
_TPU_LOADER: Final = "tpu_streaming_loader"
"""Load format that tpu-inference adds to vLLM's (models/vllm/vllm_model_loader.py)."""
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
            "Revoke that secret, and store the new one in Secret Manager, where the server reads it. Store a Hugging Face token "
            "with `gemma save_token STACK hfToken` and an API key with `gemma save_token STACK apiKey`."
        ),
    )


@rule("ARG01")
def _own_key(subject: Subject) -> RuleResult | None:
    read, options = extra_arguments(subject.resolved), subject.resolved.deployment.vllm
    repeated = {one: owner for one in read if (owner := owner_of(one, read, options))}
    if not repeated:
        return None
    listed = dict.fromkeys(f"{argument.written} ({owner})" for argument, owner in repeated.items())
    kept, (moved, lost) = kept_arguments(subject, tuple(repeated)), moved_values(repeated, options)
    ways = tuple(_moving(kept, moved, lost))
    return RuleResult(
        f"vllm.extraArgs has {number_of(len(repeated), 'argument')} for which a key exists: {', '.join(listed)}. vLLM will use "
        "these values instead of the planned ones, and the plan will be wrong.",
        remedies=ways[:1],
        last_resorts=ways[1:],
    )


@rule("ARG05")
def _ignored(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    options = resolved.deployment.vllm
    read = extra_arguments(resolved)
    found = [one for one in ignored_arguments(resolved) if not owner_of(one, read, options)]
    answers = [one for one in read if one.name in CHANGES_ANSWERS and not one.is_off and one.value != ("auto",)]
    changes: dict[str, object] = {}
    facts: list[str] = []
    if resolved.skips_compilation:
        changes["vllm.enforce_eager"] = None
        facts.append(
            "vllm.enforceEager is true: vLLM on TPU then compiles no program while it starts, and each request of a new shape waits for its program."
        )
    if found:
        facts.append(f"vllm.extraArgs has {_listed(found)}, which may change memory, start or speed.")
    if any(one.name.startswith("--attention-") for one in found):
        facts.append("Whether vLLM takes that attention backend for this model on this device is not judged.")
    if facts:
        facts.append(
            "The plan ignores that: its bands of start and speed are those of a server that was never measured."
        )
    if answers:
        facts.append(f"vllm.extraArgs has {_listed(answers)}, which may change what the server answers.")
    if found or answers:
        changes["vllm.extra_args"] = kept_arguments(subject, (*found, *answers))
    return RuleResult(" ".join(facts), remedies=(Remedy(changes=changes),)) if facts else None


def _listed(found: Sequence[ServerArgument]) -> str:
    return ", ".join(dict.fromkeys(one.written if one.is_off else one.name for one in found))


@rule("ARG02")
def _unknown_argument(subject: Subject) -> RuleResult | None:
    wrong = [argument for argument in extra_arguments(subject.resolved) if argument.problem]
    rejected = dict(_rejected_options(subject.resolved))
    if not wrong and not rejected:
        return _unchecked_template(subject.resolved)
    table = flags_of(subject.resolved)
    ending = (
        "vLLM will exit at startup."
        if table.is_certain
        else f"The words of {table.version} in this image are unknown, and the nearest releases reject it."
    )
    listed = "; ".join(dict.fromkeys(argument.problem for argument in wrong))
    facts = (*rejected.values(), *([f"vllm.extraArgs: {listed}"] if wrong else ()))
    changes: dict[str, object] = {f"vllm.{name}": None for name in rejected}
    if wrong:
        changes["vllm.extra_args"] = kept_arguments(subject, wrong)
    return RuleResult(
        f"{token_form().sub('...', '. '.join(facts))}. {ending}",
        severity="block" if table.is_certain else "warn",
        remedies=(Remedy(changes=changes),),
    )


def _rejected_options(resolved: Resolved) -> Iterator[tuple[str, str]]:
    """Yield each option of the settings whose value vLLM rejects: its field, and what is wrong."""
    table = flags_of(resolved)
    plugins = {one.name for one in extra_arguments(resolved)}
    for option in OPTIONS.values():
        value = getattr(resolved.deployment.vllm, option.name)
        is_unread = option.name == "tool_call_parser" and not resolved.vllm.enable_auto_tool_choice
        if option.is_in_block or value is None or is_unread or _PLUGIN_OF.get(option.name) in plugins:
            continue
        if option.flag == CHAT_TEMPLATE:
            rest = _template_hint(value, resolved, table.flags[CHAT_TEMPLATE].choices)
            problem = f"{CHAT_TEMPLATE} is not a file of {table.version}'s image{rest}" if rest is not None else ""
        else:
            problem = next((one.problem for one in parse_arguments(option.spell(value), table) if one.problem), "")
        if problem and not (resolved.is_tpu and value == _TPU_LOADER):
            named = resolved.deployment.vllm_key(option.name) + (f" ({value})" if isinstance(value, str) else "")
            yield option.name, problem.replace(option.flag, named, 1)


def _template_hint(given: str, resolved: Resolved, known: Sequence[str]) -> str | None:
    """Return what to write instead of a chat template that an image of vLLM lacks; None for any other one, or one that only the image's maker knows."""
    sources = _IMAGE_SOURCES[resolved.is_tpu]
    path = given.removeprefix(sources)
    # An image for GPUs starts in the folder of the sources, one for TPUs in another. Both find the built-in templates by name.
    starts_there = path != given or not resolved.is_tpu or "/" not in path
    if _is_template(given) or _is_elsewhere(given) or (path in known and starts_there):
        return None
    if given == resolved.vllm.own_template:
        is_staged = given in resolved.deployment.staged_parts
        return None if is_staged else ", nor a file of the project with weights: bucket"
    names = {one.rpartition("/")[2]: f"{sources}{one}" for one in known if "/" in one}
    near = meant(path.rpartition("/")[2], names)
    return f" (did you mean {names[near[0]]}?)" if near else ""


def _is_template(text: str) -> bool:
    """Return whether vLLM reads a text as the template itself (entrypoints/chat_utils.py)."""
    return any(sign in text for sign in "{}\n")


def _is_elsewhere(path: str) -> bool:
    return path.startswith("/") and not path.startswith(tuple(_IMAGE_SOURCES.values()))


def _unchecked_template(resolved: Resolved) -> RuleResult | None:
    """Return the warning about a chat template that is not among vLLM's own; None without one."""
    given = resolved.deployment.vllm.chat_template
    if given is None or _is_template(given) or not _is_elsewhere(given):
        return None
    return RuleResult(
        f"{resolved.deployment.vllm_key('chat_template')} is {given}, outside {_IMAGE_SOURCES[resolved.is_tpu]}, the folder of vLLM's own templates. "
        "If neither the image nor a mount has that file, vLLM will exit at startup.",
        severity="warn",
        remedies=(change("vllm.chat_template", None),),
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
    given = {
        "tool_call_parser": options.tool_call_parser if options.enable_auto_tool_choice else None,
        "reasoning_parser": options.reasoning_parser,
    }
    others = {name: parser for name, parser in given.items() if parser not in (None, _PARSER)}
    if not others:
        return None
    unknown = dict(_rejected_options(resolved))
    plugins = {one.name for one in extra_arguments(resolved)}
    foreign = {
        name: f"{resolved.deployment.vllm_key(name)} is {parser}, {_FOREIGN[name]}"
        for name, parser in others.items()
        if name not in unknown and _PLUGIN_OF[name] not in plugins
    }
    if not foreign:
        return None
    return RuleResult(
        " ".join(foreign.values()), remedies=(Remedy(changes={f"vllm.{name}": _PARSER for name in foreign}),)
    )


def arguments_named(subject: Subject, names: Container[str]) -> list[ServerArgument]:
    """Return the members of `extraArgs` with one of these flags."""
    return [one for one in extra_arguments(subject.resolved) if one.name in names]


def kept_arguments(subject: Subject, dropped: Sequence[ServerArgument]) -> tuple[str, ...]:
    """Return `extraArgs` without the dropped ones and without secrets, because remedies are printed."""
    words = subject.resolved.deployment.vllm.extra_args
    read = extra_arguments(subject.resolved)
    gone = {position for argument in (*dropped, *secret_arguments(read, words)) for position in argument.words}
    return tuple(word for position, word in enumerate(words) if position not in gone)


def owner_of(argument: ServerArgument, read: Sequence[ServerArgument], options: VllmOptions) -> str:
    """Return the field of the settings key that an argument among others belongs to; empty if it has none, or none that is set and excludes it."""
    flag = argument.name
    if flag in ON_BY_DEFAULT and not argument.is_off and options.enable_prefix_caching is not False:
        return ""
    if flag in _OF_THE_MODEL:
        has_tokenizer = any(one.name == TOKENIZER for one in read)
        return "" if flag == TOKENIZER_REVISION and has_tokenizer else "modelRevision"
    if flag in OWN_FLAGS:
        option = OWN_FLAGS[flag]
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


class MovedValue(NamedTuple):
    """A value of arguments as the value of a field."""

    value: Any
    flags: tuple[str, ...]
    """The flags as written."""


def moved_values(repeated: Iterable[ServerArgument], options: VllmOptions) -> tuple[dict[str, MovedValue], list[str]]:
    """Return the values of the arguments by field, and the flags of values that stay behind, which the option rejects or has in another form."""
    found: dict[str, MovedValue] = {}
    lost: list[str] = []
    parts_last = sorted(repeated, key=lambda one: one.name in _PARTS)  # a part replaces that of the whole
    for argument in parts_last:
        is_part = argument.name in _PARTS or argument.name == _TEXT_ALONE
        option = OPTIONS[_SAME_AS[argument.name]] if is_part else OWN_FLAGS.get(argument.name)
        if option is None or option.is_in_block:  # the value of a block stays
            lost.append(argument.written)
            continue
        try:
            value = _moved_value(argument, option)
        except ValueError:
            lost.append(argument.written)
            continue
        path = f"vllm.{option.name}"
        given = getattr(options, option.name) if argument.name in _PARTS else None
        before = found.get(path, MovedValue(given or {}, ()))
        whole = {**before.value, **value} if option.kind is Mapping else value
        found[path] = MovedValue(whole, (*before.flags, argument.written))
    return found, lost


def _moving(kept: tuple[str, ...], moved: Mapping[str, MovedValue], lost: Sequence[str]) -> Iterator[Remedy]:
    """Yield the change that moves all values, those without one of them, and the one without any. Each names the flags whose value it drops."""
    for left in (set[str](), *({path} for path in moved if len(moved) > 1), {*moved}):
        gone = dict.fromkeys((*lost, *(flag for path in left for flag in moved[path].flags)))
        changes = {path: one.value for path, one in moved.items() if path not in left}
        title = f"no fix keeps the value of {', '.join(gone)}" if gone else ""
        yield Remedy(changes={**changes, "vllm.extra_args": kept}, title=title)


def _moved_value(argument: ServerArgument, option: VllmOption) -> Any:  # noqa: ANN401 - a value of any option
    """Return the value of an argument for its option. Raises ValueError if the option rejects it, or if it looks like a secret."""
    if argument.name == _TEXT_ALONE:
        return dict.fromkeys(get_args(Modality), 0)
    text = " ".join(argument.value) if option.kind is not bool else str(not argument.is_off).lower()
    if argument.problem and not _OLD_LIMIT.fullmatch(text):
        raise ValueError(argument.problem)
    if argument.name in _PARTS:
        text = json.dumps({_PARTS[argument.name]: int(text) if text.isdecimal() else text})
    elif option.kind is Mapping and argument.key:
        text = json.dumps({argument.key: read_json(text)})
    elif option.kind is Mapping and _OLD_LIMIT.fullmatch(text):
        text = json.dumps({name: int(count) for name, _, count in (pair.partition("=") for pair in text.split(","))})
    elif argument.problem or argument.key:
        raise ValueError(argument.key)
    if token_form().search(text):
        raise ValueError("a secret")
    return read_text(option.field, text)
