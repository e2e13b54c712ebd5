"""Load settings from the engine or a file. Each error is one sentence: key, value and allowed values."""

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.contracts.settings_files import (
    committed_text,
    no_settings_file,
    read_regular,
    refresh_command,
    stack_of_file,
)
from gemma_serving.contracts.spelling import meant, odd_character
from gemma_serving.planning.data.images import DEFAULT_IMAGES, IMAGES
from gemma_serving.planning.numbers import read_json
from gemma_serving.planning.settings.fields import Block
from gemma_serving.planning.settings.paths import ENDED
from gemma_serving.planning.settings.reading import InvalidBlockError, Problem, part_at, read_block
from gemma_serving.planning.settings.secrets import KINDS, SECRET_KEYS, set_command
from gemma_serving.planning.settings.stack import NAMESPACES, NOT_IN_FILE, Settings
from gemma_serving.planning.settings.vllm_args import VllmOptions
from gemma_serving.planning.settings.vllm_blocks import OptionsOrBlocks, stated_in_blocks

T = TypeVar("T")
_PLACE = frozenset({"gcp:project", "gcp:region", "gcp:zone"})
"""Settings of the provider gcp that a stack needs. The others are a finding."""
_PROJECT_VARIABLES = ("GOOGLE_CLOUD_PROJECT", "GOOGLE_PROJECT", "CLOUDSDK_CORE_PROJECT")
_MAX_VALUE_CHARACTERS = 60


class SettingsError(CommandRefusedError):
    """The settings are invalid. The message has one sentence per error, each on its own line."""


_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_TRUE_OR_FALSE = re.compile("^(?i:true|false)$")


class _RefusedYamlError(yaml.MarkedYAMLError):
    """Valid YAML that no settings file may have. The problem names what to do."""


class _EngineYaml(yaml.SafeLoader):
    """YAML as the Pulumi engine reads it, without aliases, which `pulumi config set` copies (3.256)."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own name and type
        first: [(tag, _TRUE_OR_FALSE if tag.endswith(":bool") else pattern) for tag, pattern in resolvers]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node. Raises _RefusedYamlError."""
        if self.check_event(yaml.AliasEvent):
            mark: yaml.Mark = cast("Any", self).peek_event().start_mark
            raise _RefusedYamlError(problem="aliases are not read. Write the value itself", problem_mark=mark)
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.MappingNode):
            _require_distinct_keys(node)
        return node


def _require_distinct_keys(block: yaml.MappingNode) -> None:
    lines: dict[str, int] = {}
    for key in (key for key, _ in block.value if isinstance(key, yaml.ScalarNode)):
        if key.value in lines:
            problem = f'mapping key "{key.value}" already defined at line {lines[key.value]}. Remove one of the two'
            raise _RefusedYamlError(problem=problem, problem_mark=key.start_mark)
        lines[key.value] = key.start_mark.line + 1


def from_values(
    values: Mapping[str, object],
    *,
    project: str | None,
    origin: str,
    secrets: Sequence[str] = (),
    provider: Sequence[str] = (),
) -> Settings:
    """Return the settings of parsed values (camelCase keys). Raises SettingsError, with every error.

    `origin` is the file name in messages. `secrets` are the keys of secrets set by value, `provider` as of `_provider_keys`.
    """
    if project is None:
        raise SettingsError(
            f"{origin}: gcp:project and GOOGLE_CLOUD_PROJECT are not set. Run `export GOOGLE_CLOUD_PROJECT=PROJECT_ID`, "
            f"or set gcp:project in {origin}."
        )
    for key in NOT_IN_FILE:
        if key in values:
            raise SettingsError(f"{origin}: {PRODUCT}:{key} is not a known setting{_suggestion([key])}")
    # The engine passes every value as text, and `pulumi config set` writes `maxUsd: "3"` into the file. Both mean the number.
    parsed = {key: _parsed(value) if isinstance(value, str) else value for key, value in values.items()}
    in_blocks = stated_in_blocks(as_mapping(parsed.get("vllm")))
    image = DEFAULT_IMAGES.get(str(parsed.get("target")), next(iter(IMAGES)))
    derived = {"project": project, "secrets": [*secrets], "providerKeys": [*provider], "vllmInBlocks": in_blocks}
    return _read(Settings, {"image": image, **parsed, **derived}, origin)


def vllm_options(blocks: Mapping[str, object], origin: str) -> VllmOptions:
    """Return the options that the blocks of `vllm` set, such as `multimodal`, as in a file. Raises SettingsError."""
    return _read(_VllmAlone, {"vllm": blocks}, origin).vllm


@dataclass(frozen=True, slots=True, kw_only=True)
class _VllmAlone(Block):
    vllm: OptionsOrBlocks


def _read(kind: type[T], complete: Mapping[str, object], origin: str) -> T:
    """Return the block of a file's values. Raises SettingsError, with every error."""
    try:
        # JSON, because the engine passes JSON to the program: file and engine then yield the same settings.
        text = json.dumps(complete, default=str, ensure_ascii=False)
        text.encode()  # rejects half of a surrogate pair, which no resource can have
        return read_block(kind, text)
    except InvalidBlockError as error:
        sentences = [_sentence(problem, origin, complete) for problem in error.problems]
        raise SettingsError("\n".join(dict.fromkeys(sentences))) from None
    except (TypeError, ValueError, RecursionError):
        raise SettingsError(
            f"{origin} is invalid: use only text, numbers, true, false, lists, and blocks with text as keys."
        ) from None


def from_pulumi(config: Mapping[str, str], secret_keys: frozenset[str], *, stack: str) -> Settings:
    """Return the settings of the configuration that the engine passes to a program: full key to text, objects as JSON.

    Raises SettingsError for every error, including a secret stored in plain text.
    """
    origin = f"Pulumi.{stack}.yaml"
    _check_namespaces(config, origin)
    if not _own_keys(config):
        path = Path(origin)
        raise SettingsError(_no_settings(path) if path.is_file() else _missing_file(path))
    values = {key: text for key, text in _own_keys(config).items() if key not in SECRET_KEYS}
    secrets = [key for key in SECRET_KEYS if f"{PRODUCT}:{key}" in config]
    for key in secrets:
        if f"{PRODUCT}:{key}" not in secret_keys:
            raise _plain_text_secret(origin, key)
    provider = _provider_keys(config)
    return from_values(values, project=_project_of(config), secrets=secrets, provider=provider, origin=origin)


def from_file(path: Path, *, project: str | None = None, changes: Mapping[str, object] | None = None) -> Settings:
    """Return the settings of `Pulumi.<stack>.yaml`, read without an engine. Secrets are not decrypted.

    `project` is the fallback: planning needs none. `changes` replace values of the file, by path such as `tpu.runtimeVersion` or
    `gcp:project`; None removes one. Raises SettingsError.
    """
    config = _config_of(path)
    for place, value in (changes or {}).items():
        full = place if ":" in place else f"{PRODUCT}:{place}"
        config = _replaced(config, full.split("."), value)
    _check_namespaces(config, path.name)
    values = _own_keys(config)
    secrets = {key: value for key in SECRET_KEYS if (value := values.pop(key, None)) is not None}
    for key, value in secrets.items():
        if list(as_mapping(value)) != ["secure"]:
            raise _plain_text_secret(path.name, key)
    return from_values(
        values,
        project=_project_of(config, project),
        secrets=list(secrets),
        provider=_provider_keys(config),
        origin=f"{path.name} with --set" if changes else path.name,
    )


def _replaced(values: Mapping[str, object], place: Sequence[str], value: object) -> dict[str, object]:
    key, *rest = place
    inner = _replaced(as_mapping(values.get(key)), rest, value) if rest else value
    return {name: one for name, one in {**values, key: inner}.items() if one is not None or name != key}


def _project_of(config: Mapping[str, object], fallback: str | None = None) -> str | None:
    named = config.get("gcp:project")
    return named if named and isinstance(named, str) else project_from_environment() or fallback


def _config_of(path: Path) -> Mapping[str, object]:
    """Return the configuration of a settings file. Raises SettingsError for a missing or invalid file."""
    try:
        document = read_yaml(read_regular(path))
    except FileNotFoundError:
        raise SettingsError(_missing_file(path)) from None
    except OSError as error:
        raise SettingsError(f"{path.name} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{path.name} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}. Save the file as UTF-8."
        ) from None
    except yaml.YAMLError as error:
        raise SettingsError(not_yaml(path.name, error)) from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path.name} has a value that YAML cannot read: {str(error).rstrip('.')}.") from None
    config = {str(key): value for key, value in as_mapping(as_mapping(document).get("config")).items()}
    _check_namespaces(config, path.name)
    if not _own_keys(config):
        raise SettingsError(_no_settings(path))
    return config


def _missing_file(path: Path) -> str:
    return no_settings_file(stack_of_file(path.name), path.parent)


def _no_settings(path: Path) -> str:
    """Return the error for a file that can be read. The engine writes one with only a salt if the stack's own was deleted."""
    document = as_mapping(read_yaml(path.read_text(encoding="utf-8")))
    outside = next((key for key in map(str, document) if key.startswith(f"{PRODUCT}:")), "")
    if outside:
        return f"{path.name}: {outside} is not below config:. Indent each {PRODUCT}: key by two spaces."
    if f"{PRODUCT}:" in (committed_text(path.name, path.parent) or ""):
        return f"{path.name} has no settings, but its committed version has. Run `git checkout {shlex.quote(path.name)}` to restore it."
    return (
        f"{path.name} has no settings of this project. Set {PRODUCT}:target and {PRODUCT}:model below config:. If the stack is deployed, "
        f"run `{refresh_command(stack_of_file(path.name))}`, which writes its settings."
    )


def not_yaml(name: str, error: yaml.YAMLError) -> str:
    """Return the error for invalid YAML, with its line if the parser knows it."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"{name} is not YAML: {str(error).splitlines()[0]}. Fix the file."
    mark, problem = error.problem_mark, error.problem or "it cannot be read"
    if isinstance(error, _RefusedYamlError):
        return f"{name}, line {mark.line + 1}: {problem}."
    for number, line in enumerate((mark.buffer or "").splitlines(), start=1):
        if line.startswith("<<<<<<< "):
            return f"{name}, line {number}: a git conflict is not resolved: {line}. Keep one of its sides."
        odd = _NOT_ASCII.search(line)
        if odd is not None and number in {mark.line, mark.line + 1}:
            return f"{name}, line {number}, column {odd.start() + 1}: {odd_character(odd[0])}"
    place = f"{name} is not YAML at line {mark.line + 1}, column {mark.column + 1}"
    if r"'\t'" in problem:
        return f"{place}: a tab cannot indent. Replace the tab with spaces."
    return f"{place}: {problem}. Fix that line, or the one before it."


def read_yaml(text: str) -> object:
    """Return the value of a YAML text as the Pulumi engine reads it. Raises yaml.YAMLError."""
    document = _document(text)
    return None if document is None else cast("object", cast("Any", _EngineYaml("")).construct_document(document))


@lru_cache(maxsize=32)
def _document(text: str) -> yaml.Node | None:
    """Return the document of a YAML text, None for an empty one. A command reads one file several times, and scanning is nearly all that this costs."""
    return _EngineYaml(text).get_single_node()


def project_from_environment() -> str | None:
    """Return the project from the environment variables of Google's tools, or None."""
    return next((os.environ[name] for name in _PROJECT_VARIABLES if os.environ.get(name)), None)


def _plain_text_secret(origin: str, key: str) -> SettingsError:
    what = next(kind.what for kind in KINDS if kind.key == key)
    return SettingsError(
        f"{origin}: {PRODUCT}:{key} is stored in plain text. Remove it and revoke that {what}. To set a new one, run "
        f"`{set_command(key, stack_of_file(origin))}`."
    )


def _check_namespaces(config: Mapping[str, object], origin: str) -> None:
    """Raise SettingsError for keys of a misspelled namespace, which the engine ignores silently."""
    allowed = f"{', '.join(NAMESPACES[:-1])} or {NAMESPACES[-1]}"
    wrong = [key for key in config if key.partition(":")[0] not in NAMESPACES or ":" not in key]
    if wrong:
        sentences = (
            f"{origin}: {key} is not a setting: expected the namespace {allowed}. {_meant(key)}{_odd(key)}"
            for key in wrong
        )
        raise SettingsError("\n".join(sentences))


def _meant(key: str) -> str:
    import difflib  # noqa: PLC0415 - only messages need it

    from gemma_serving.stacks.schema import known_keys  # noqa: PLC0415 - as above

    space, _, name = key.rpartition(":")
    keys = [f"{PRODUCT}:{one}" for one in meant(name, known_keys(PRODUCT))]
    keys = keys or [
        f"{one}:{name}" for one in difflib.get_close_matches(space.lower().replace("_", "-"), NAMESPACES, n=1)
    ]
    return f"Did you mean {' or '.join(keys)}?" if keys else "Remove it."


def _provider_keys(config: Mapping[str, object]) -> Sequence[str]:
    """Return the keys of the provider gcp but its project, region and zone."""
    return sorted(key for key in config if key.startswith("gcp:") and key not in _PLACE)


def _own_keys(config: Mapping[str, T]) -> dict[str, T]:
    """Return the keys of the namespace `gemma-serving`, without the namespace."""
    return {key.partition(":")[2]: value for key, value in config.items() if key.startswith(f"{PRODUCT}:")}


def _parsed(text: str) -> object:
    """Return the structured value of text from the engine. Plain words stay text."""
    try:
        return read_json(text)
    except ValueError:
        return text


def _sentence(problem: Problem, origin: str, values: Mapping[str, object]) -> str:
    from gemma_serving.stacks.schema import known_keys  # noqa: PLC0415 - only messages need it

    key = key_path(problem.place)
    if problem.kind == "unknown":
        if key in known_keys(PRODUCT):
            return f"{origin}: {PRODUCT}:{key} is not used with target {values.get('target')}; remove it or change the target."
        block, stack = str(problem.place[0]).partition(".")[0], f"--stack {shlex.quote(stack_of_file(origin))}"
        if block != problem.place[0] and block in known_keys(PRODUCT):
            value = part_at(values, problem.place)
            word = shlex.quote(f"{PRODUCT}:{key}")
            return (
                f"{origin}: {PRODUCT}:{key} is not below {PRODUCT}:{block}. Run `pulumi config rm {word} {stack}`, then "
                f"`pulumi config set --path {word} {shlex.quote(str(value))} {stack}`."
            )
        return f"{origin}: {PRODUCT}:{key} is not a known setting{_suggestion(problem.place)}{_odd(key)}"
    if problem.kind == "missing":
        return f"{origin}: {PRODUCT}:{key} is missing; set it."
    value = part_at(values, problem.place)
    name = "gcp:project or GOOGLE_CLOUD_PROJECT" if key == "project" else f"{PRODUCT}:{key}" if key else "the settings"
    shown = f" = {_shown(value)}" if isinstance(value, str | int | float | bool) else ""
    return f"{origin}: {name}{shown}: {problem.text}.{_odd(str(value)) if isinstance(value, str) else ''}"


def _odd(text: str) -> str:
    """Return the sentence about the first character that is not ASCII, with a space in front; empty without any."""
    odd = odd_character(text)
    return f" It has {odd}" if odd else ""


def key_path(location: Sequence[int | str]) -> str:
    """Return the path of a key, such as `tpu.zones[0]`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else text[: _MAX_VALUE_CHARACTERS - 3] + "..."


def _suggestion(location: Sequence[int | str]) -> str:
    """Return suggestions for an unknown key: what answers in a former one's place, the closest of its block, the same key of other blocks, or every key."""
    if ended := ENDED.get(key_path(location)):
        return f". {ended}"
    from gemma_serving.stacks.schema import blocks, known_keys  # noqa: PLC0415 - only messages need it

    *block, key = location
    known = known_keys(f"{PRODUCT}:{key_path(block)}" if block else PRODUCT)
    near = [key_path([*block, one]) for one in meant(str(key), known)]
    near = near or [
        f"{where.partition(':')[2]}.{key}".removeprefix(".") for where, one in blocks() if key in one["properties"]
    ]
    if near:
        return f". Did you mean {' or '.join(near)}?"
    return f". Known keys: {', '.join(known)}." if known else "."
