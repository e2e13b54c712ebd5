"""Settings of a server from the inputs of its component, and the words for its inputs in messages."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, cast

import pulumi

from contracts.fields import camel_case
from contracts.labels import PRODUCT
from hosted.kinds import Kind, default_settings
from stacks.loading import SettingsError, from_values, project_from_environment
from stacks.secrets import SECRET_KEYS
from stacks.settings import Settings

NOT_HERE: Final[Mapping[str, str]] = {
    "maxAge": "the guard that enforces it knows only stacks of gemma-serving",
    "maxUsd": "the guard that enforces it knows only stacks of gemma-serving",
    "tpu.idleAfter": "the guard that enforces it knows only stacks of gemma-serving",
    "tpu.gateway": "a gateway reads the outputs of stacks of gemma-serving",
    "cloudRun.rollout": "its command knows only stacks of gemma-serving",
    "modelConfig": "the component reads no files of your program",
    "draftConfig": "the component reads no files of your program",
    "prices": "the component reads no files of your program",
    "image.buildContext": "the component reads no files of your program",
}
"""Settings of a stack that a component does not offer, with the reason."""
_COMMAND: Final = re.compile(r"(?:(?<=[.!]\s)|^)(?:Run|To) [^.\n`]*`python -m scripts\.[^`]*`[^.\n]*\.\s*")
"""A sentence of advice that names a command of this project, which another program does not have."""

_BLOCKS: Final = "|".join(field.alias or camel_case(name) for name, field in Settings.model_fields.items())
_KEY: Final = re.compile(rf"(?<![\w./`:-])(?:{_BLOCKS})(?=\.[a-z]\w+)")
"""A settings key in a block, without the namespace: `vllm.maxModelLen`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInputs:
    """Inputs of a component."""

    kind: Kind
    name: str
    """Name of the component in its program."""
    given: Mapping[str, object]
    """Inputs that are set, apart from secrets and `settings`."""
    settings: Mapping[str, object]
    """More settings, as in a settings file."""
    secrets: tuple[str, ...]
    """Keys of the secrets that are set."""

    def validated(self) -> Settings:
        """Return the settings. Raises SettingsError with one sentence per error, in the words of the inputs."""
        self._refuse_what_is_not_offered()
        values = _merged(_merged(default_settings(self.kind, self.given), self.settings), self._stated())
        project = self.given.get("project") or pulumi.Config("gcp").get("project") or project_from_environment()
        if project is None:
            raise SettingsError(
                f"{self.title}: project is not set, and neither is gcp:project nor GOOGLE_CLOUD_PROJECT. Set project."
            )
        try:
            settings = from_values(
                {"target": self.kind.target, **values}, project=str(project), origin=self.title, secrets=self.secrets
            )
        except SettingsError as error:
            raise SettingsError(self.worded(str(error))) from None
        if settings.image.build_context is not None:
            raise SettingsError(
                f"{self.title}: settings.image names an image that a stack builds, and a component builds none. "
                "Use an image with repository and digest."
            )
        return settings

    def states(self, key: str) -> bool:
        """Return whether an input or `settings` states a setting."""
        return _has(self.settings, key) or any(its == key and own in self.given for own, its in self.kind.keys.items())

    @property
    def title(self) -> str:
        """Name of the component in messages."""
        return f"{self.kind.name} {self.name}"

    def worded(self, text: str) -> str:
        """Return a message of a stack in the words of the inputs, without sentences that name commands of this project."""
        return self.worded_keys(_COMMAND.sub("", text).strip())

    def worded_keys(self, text: str) -> str:
        """Return a text with the inputs instead of settings keys: keys with the namespace, and keys of inputs, blocks and options."""
        shown = text
        for own, key in self.kind.keys.items():
            shown = re.sub(rf"(?<![\w.])(?:{PRODUCT}:)?{re.escape(key)}(?!\w|\.\w)", own, shown)
        shown = re.sub(rf"{PRODUCT}:(?=[a-z])", "settings.", shown)
        return _KEY.sub(r"settings.\g<0>", shown)

    def _stated(self) -> Mapping[str, object]:
        """Return the inputs as settings. Raises SettingsError if `settings` has one of them too."""
        stated: Mapping[str, object] = {}
        for name, value in self.given.items():
            key = self.kind.keys.get(name)
            if key is None:
                continue
            if _has(self.settings, key):
                raise SettingsError(f"{self.title}: {name} and settings.{key} are both set. Remove settings.{key}.")
            stated = _merged(stated, _nested(key, value))
        return stated

    def _refuse_what_is_not_offered(self) -> None:
        for key in self.settings:
            if key in ("target", *SECRET_KEYS):
                instead = f"Use the input {key}." if key in SECRET_KEYS else "Remove it."
                raise SettingsError(f"{self.title}: settings.{key} is an input of its own or implied. {instead}")
        for key, reason in NOT_HERE.items():
            if _has(self.settings, key):
                raise SettingsError(
                    f"{self.title}: settings.{key} is not available in a component, because {reason}. Remove it."
                )


def plain_mapping(value: object, title: str, *, place: str) -> Mapping[str, object]:
    """Return a block of inputs with whole numbers as integers. Raises SettingsError for a value known only after `up`, or another type.

    Args:
        value: the block.
        title: the component, for messages.
        place: input with the block, for messages; empty for all inputs together.
    """
    for path, part in _leaves(value, place):
        if isinstance(part, pulumi.Output):
            raise SettingsError(
                f"{title}: {path} is an output of a resource, but the plan needs its value in a preview. Set a plain value."
            )
    if not isinstance(value, Mapping):
        raise SettingsError(f"{title}: {place} = {json.dumps(value, default=str)}: expected a block of settings.")
    return cast("Mapping[str, object]", _whole(cast("object", value)))


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, part in cast("Mapping[str, object]", value).items():
            yield from _leaves(part, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, part in enumerate(cast("list[object]", value)):
            yield from _leaves(part, f"{path}[{index}]")
    else:
        yield path, value


def _whole(value: object) -> object:
    """Return a value with whole numbers as integers, because the protocol has only floating-point numbers."""
    if isinstance(value, Mapping):
        return {key: _whole(part) for key, part in cast("Mapping[str, object]", value).items()}
    if isinstance(value, list):
        return [_whole(part) for part in cast("list[object]", value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _has(values: Mapping[str, object], key: str) -> bool:
    name, _, rest = key.partition(".")
    if name not in values:
        return False
    inner = values[name]
    return not rest or (isinstance(inner, Mapping) and _has(cast("Mapping[str, object]", inner), rest))


def _nested(key: str, value: object) -> Mapping[str, object]:
    name, _, rest = key.partition(".")
    return {name: _nested(rest, value) if rest else value}


def _merged(first: Mapping[str, object], second: Mapping[str, object]) -> Mapping[str, object]:
    """Return both blocks in one; a block of both is merged too."""
    merged = dict(first)
    for key, value in second.items():
        own = merged.get(key)
        both = isinstance(own, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(cast("Mapping[str, object]", own), cast("Mapping[str, object]", value)) if both else value
    return merged
