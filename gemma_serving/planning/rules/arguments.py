"""Rules for `extraArgs`: secrets, options with their own settings key, and flags that the image's vLLM rejects."""

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, cast, get_args

from msgspec.structs import replace

from gemma_serving.contracts.fields import as_mapping
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
from gemma_serving.planning.question.lora import adapters_in
from gemma_serving.planning.question.recommendation import FUSE_MODES
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.server_flags import (
    CHAT_TEMPLATE,
    PLUGIN_OF,
    ServerArgument,
    parse_arguments,
    read_number,
)
from gemma_serving.planning.rules.registry import RuleResult, change, rule
from gemma_serving.planning.settings.finding import LostValue, Remedy
from gemma_serving.planning.settings.reading import problem_with, read_text
from gemma_serving.planning.settings.text import Commit
from gemma_serving.planning.settings.vllm_args import (
    DEFAULT_IMAGE_TOKENS,
    IMAGE_TOKENS,
    KEY_OF,
    OPTIONS,
    REVISION,
    STREAMER,
    TOKENIZER,
    TOKENIZER_REVISION,
    InJson,
    Modality,
    Pairs,
    VllmOption,
    VllmOptions,
)
from gemma_serving.planning.units import number_of

_LORA: Final = "lora."
"""Block whose flags belong together: some in `extraArgs` and others from the block are two sets of adapters."""
_ADAPTERS: Final = OPTIONS["lora.adapters"].name
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
_OLD_LIMIT: Final = re.compile(r"\w+=\d+(,\w+=\d+)*")
"""A limit of media in the form of vLLM's releases before 0.10."""
_TPU_LOADER: Final = "tpu_streaming_loader"
"""Load format that tpu-inference adds to vLLM's (models/vllm/vllm_model_loader.py)."""
_OF_THE_MODEL: Final = (REVISION, TOKENIZER_REVISION)
"""Flags for `model_revision`. A tokenizer from another repository has its own commit."""
_SET_BY_THE_STACK: Final = ("--model", "--host", "--port")
_BUCKET_MODES: Final = (*FUSE_MODES, "memory")
"""Weights modes of Cloud Run with a mount of the bucket."""
_PARSER: Final = "gemma4"
"""Name of Gemma 4's tool-call parser, and of its reasoning parser."""


@rule("SEC01")
def _secret_argument(subject: Subject) -> RuleResult | None:
    kept = kept_arguments(subject, ())
    count = len(subject.resolved.question.settings.vllm.extra_args) - len(kept)
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
    read, options = extra_arguments(subject.resolved), subject.resolved.question.settings.vllm
    repeated = {one: owner for one in read if (owner := owner_of(one, read, options))}
    if not repeated:
        return None
    listed = dict.fromkeys(f"{argument.written} ({owner})" for argument, owner in repeated.items())
    values = tuple(_of_the_stack(one, subject.resolved) for one in user_values(repeated, options))
    return RuleResult(
        f"vllm.extraArgs has {number_of(len(repeated), 'argument')} for which a key exists: {', '.join(listed)}. vLLM will use "
        "these values instead of the planned ones, and the plan will be wrong.",
        remedies=(Remedy(changes={"vllm.extra_args": kept_arguments(subject, tuple(repeated))}, loses=values),),
    )


@rule("ARG05")
def _ignored(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    options = resolved.question.settings.vllm
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
        value = getattr(resolved.question.settings.vllm, option.name)
        is_unread = option.name == "tool_call_parser" and not resolved.vllm.enable_auto_tool_choice
        if option.may_be_an_argument or value is None or is_unread or PLUGIN_OF.get(option.flag) in plugins:
            continue
        if option.flag == CHAT_TEMPLATE:
            rest = _template_hint(value, resolved, table.flags[CHAT_TEMPLATE].choices)
            problem = f"{CHAT_TEMPLATE} is not a file of {table.version}'s image{rest}" if rest is not None else ""
        else:
            problem = next((one.problem for one in parse_arguments(option.spell(value), table) if one.problem), "")
        if problem and not (resolved.is_tpu and value == _TPU_LOADER):
            named = resolved.question.vllm_key(option.name) + (f" ({value})" if isinstance(value, str) else "")
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
        is_staged = given in resolved.question.facts.staged_parts
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
    given = resolved.question.settings.vllm.chat_template
    if given is None or _is_template(given) or not _is_elsewhere(given):
        return None
    return RuleResult(
        f"{resolved.question.vllm_key('chat_template')} is {given}, outside {_IMAGE_SOURCES[resolved.is_tpu]}, the folder of vLLM's own templates. "
        "If neither the image nor a mount has that file, vLLM will exit at startup.",
        severity="warn",
        remedies=(change("vllm.chat_template", None),),
    )


@rule("ARG03")
def _wrong_soft_tokens(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    if not resolved.question.settings.vllm.extra_args or not resolved.spec.is_gemma4 or not resolved.has_processor:
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
        remedies=(Remedy(changes={"vllm.image_tokens": nearest, "vllm.extra_args": kept}),),
        last_resorts=(change("vllm.extra_args", kept),),
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
        name: f"{resolved.question.vllm_key(name)} is {parser}, {_FOREIGN[name]}"
        for name, parser in others.items()
        if name not in unknown and PLUGIN_OF[OPTIONS[KEY_OF[name]].flag] not in plugins
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
    words = subject.resolved.question.settings.vllm.extra_args
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
        return f"vllm.{option.key}" if not option.may_be_an_argument or _is_set(option, options) else ""
    if flag in _SAME_AS:
        return f"vllm.{_SAME_AS[flag]}"
    return "set by the stack" if flag in _SET_BY_THE_STACK else ""


def _is_set(option: VllmOption, options: VllmOptions) -> bool:
    """Return whether an option of a block is set. The options of `lora` count together."""
    together = [
        one for one in OPTIONS.values() if one is option or (option.key.startswith(_LORA) and one.key.startswith(_LORA))
    ]
    return any(getattr(options, one.name) is not None for one in together)


def user_values(repeated: Iterable[ServerArgument], options: VllmOptions) -> list[LostValue]:
    """Return the values of the arguments, each with the changes that keep it, or with why no setting has it."""
    of_place: dict[str, list[ServerArgument]] = {}
    for one in repeated:
        of_place.setdefault(_place_of(one), []).append(one)
    found = list[LostValue]()
    for place in sorted(of_place, key=lambda one: one != _ADAPTERS):  # before those used at once, which they change
        flags = tuple(dict.fromkeys(one.written for one in of_place[place]))
        try:
            found.append(LostValue(flags=flags, changes=_changes(place, of_place[place], options)))
        except ValueError as error:
            found.append(LostValue(flags=flags, reason=str(error)))
    return found


def _place_of(argument: ServerArgument) -> str:
    """Return the field that has the value of an argument; empty if none has it."""
    if argument.name in _OF_THE_MODEL:
        return "model_revision"
    is_part = argument.name in _PARTS or argument.name == _TEXT_ALONE
    option = OPTIONS[_SAME_AS[argument.name]] if is_part else OWN_FLAGS.get(argument.name)
    return option.name if option else ""


def _changes(place: str, arguments: Sequence[ServerArgument], options: VllmOptions) -> Mapping[str, object]:
    """Return the changes that keep the value of arguments, the last of which vLLM uses. Raises ValueError if no setting has it."""
    if place == "":
        raise ValueError("no key of vllm has it")
    if any(one.problem and not _OLD_LIMIT.fullmatch(" ".join(one.value)) for one in arguments):
        raise ValueError("vLLM rejects it")
    if place == "model_revision":
        commit = " ".join(dict.fromkeys(word for one in arguments for word in one.value))
        if problem := problem_with(Commit, commit):
            raise ValueError(problem)
        return {place: commit}
    read = _value(OPTIONS[KEY_OF[place]], arguments, getattr(options, place))
    text = read if isinstance(read, str) else json.dumps(read)
    if token_form().search(text):
        raise ValueError("it looks like a secret")
    value = read_text(OPTIONS[KEY_OF[place]].field, text)
    has_all_at_once = options.max_loras == max(len(options.lora_adapters or ()), 1)
    at_once = {"vllm.max_loras": max(len(as_mapping(value)), 1)}
    return {f"vllm.{place}": value, **(at_once if place == _ADAPTERS and has_all_at_once else {})}


def _value(option: VllmOption, arguments: Sequence[ServerArgument], given: object) -> object:
    """Return the value that vLLM reads from the arguments of an option, beside the one of the settings. Raises ValueError."""
    last = arguments[-1]
    if any(one.name == _TEXT_ALONE and not one.is_off for one in arguments):
        return dict.fromkeys(get_args(Modality), 0)
    if isinstance(option.shape, Pairs):
        named = [one.value for one in arguments if one.name == option.flag]
        return {**as_mapping(given), **dict(adapters_in(named[-1] if named else ()))}
    if option.kind is Mapping or isinstance(option.shape, InJson):
        return _of_object(option, _object(option, arguments, given))
    if option.kind is bool and not last.key:
        return not last.is_off
    if option.kind is tuple and not last.key:
        return list(last.value)
    if last.key or len(last.value) != 1:
        raise ValueError(f"vllm.{option.key} is one value")
    number = (last.flag.number if last.flag else "") or "size"
    return read_number(last.value[0], number) if option.kind is int or option.kind is float else last.value[0]


def _object(option: VllmOption, arguments: Sequence[ServerArgument], given: object) -> Mapping[str, object]:
    """Return the object that arguments set: as a whole, by keys that replace it, or by flags for a part of it. Raises ValueError."""
    wholes = [one.value[0] for one in arguments if one.name == option.flag and not one.key and one.value]
    keys = [(one.key, one.value[0]) for one in arguments if one.key and one.value]
    found: Mapping[str, object] = as_mapping(None if wholes or keys else given)
    if wholes and not keys:
        pairs = (pair.partition("=") for pair in wholes[-1].split(","))
        is_old = _OLD_LIMIT.fullmatch(wholes[-1])
        whole = {name: int(count) for name, _, count in pairs} if is_old else read_json(wholes[-1])
        if not isinstance(whole, dict):
            raise ValueError("vLLM rejects it")
        found = as_mapping(cast("object", whole))
    parts = [(_PARTS[one.name], one.value[0]) for one in arguments if one.name in _PARTS and one.value]
    for key, text in (*keys, *parts):
        found = _with_part(found, key, text)
    return found


def _with_part(found: Mapping[str, object], key: str, text: str) -> dict[str, object]:
    """Return an object with a part in JSON, or as text, at a key such as `a.b`."""
    first, _, rest = key.partition(".")
    value: object = text
    if rest:
        value = _with_part(as_mapping(found.get(first)), rest, text)
    else:
        with suppress(ValueError):
            value = read_json(text)
    return {**found, first: value}


def _of_object(option: VllmOption, found: Mapping[str, object]) -> object:
    """Return the value of an option from the object of its flag. Raises ValueError if the option has only a part of it."""
    if not isinstance(option.shape, InJson):
        return found
    value: object = found
    for name in option.shape.paths[0]:
        value = as_mapping(value).get(name)
    value = next((name for name, words in option.shape.words.items() if words == value), value)
    if value is None or [read_json(word.partition("=")[2]) for word in option.spell(value)] != [found]:
        raise ValueError(f"vllm.{option.key} sets nothing else of {option.flag}")
    return value


def _of_the_stack(value: LostValue, resolved: Resolved) -> LostValue:
    """Return a value with the change of the stack's own key: a bucket's streamer is a mode of its mount, and a commit belongs to a stack."""
    if value.changes.get("vllm.load_format") == STREAMER and resolved.weights_mode in _BUCKET_MODES:
        return replace(value, changes={"weights_mode": "streamer", "vllm.load_format": None})
    has_commit = resolved.question.is_of_stack and resolved.weights_mode != "image"
    is_foreign = "model_revision" in value.changes and not has_commit
    return replace(value, changes={}, reason="only a stack's hub or bucket has modelRevision") if is_foreign else value
