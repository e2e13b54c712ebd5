"""From Pulumi configuration, or its file, to `Settings`; every mistake is one sentence with the key, the value and what is allowed."""

import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from stacks.settings import Settings

NAMESPACE = "gemma-serving"
TOKEN_KEY = "hfToken"  # noqa: S105  the key, not a token
_PROJECT_VARIABLES = ("GOOGLE_CLOUD_PROJECT", "GOOGLE_PROJECT", "CLOUDSDK_CORE_PROJECT")
_MAX_VALUE_CHARACTERS = 60
_NOT_IN_FILE = {"project", "hasHfToken"}
"""Fields that do not come from keys of our namespace."""

_PATTERNS = {
    "zone": "a zone such as us-east5-a",
    "region": "a region such as us-east4",
    "project": "a project id: 6 to 30 lower-case letters, digits and hyphens, a letter first",
    "digest": "sha256: and 64 hexadecimal digits",
    "model": 'a Hugging Face id such as "google/gemma-4-E2B-it"',
    "acceleratorType": "a slice such as v6e-4",
    "invokers": 'a member such as "user:name@example.com" or "serviceAccount:name@project.iam.gserviceaccount.com"; for everybody set public: true',
    "tunnelMembers": 'a member such as "user:name@example.com"',
    "labels": "lower-case letters, digits, hyphens and underscores, 63 at most",
}


_PLAIN = {
    "Input should be a valid dictionary or instance of": "expected a block of settings, as in",
    "Input should be a valid": "expected a",
    "expected a integer": "expected a whole number",
    "Input should be": "expected",
    " after validation": "",
}
"""Words of the validator, and what a person would say."""


class SettingsError(ValueError):
    """The settings are wrong; the message is for a person, one sentence a line for each mistake."""


def from_values(values: Mapping[str, object], *, project: str | None, has_token: bool, origin: str) -> Settings:
    """Validate parsed configuration values (camelCase keys, without namespace). `origin` names the file or stack in messages.

    Raises:
        SettingsError: with every mistake that was found, not only the first.
    """
    if project is None:
        raise SettingsError(
            f"{origin}: gcp:project is not set and neither is GOOGLE_CLOUD_PROJECT; name the Google Cloud project: pulumi config set gcp:project PROJECT_ID"
        )
    reserved = sorted(_NOT_IN_FILE & values.keys())
    if reserved:
        raise SettingsError(f"{origin}: {NAMESPACE}:{reserved[0]} is not a known setting{_suggestion([reserved[0]])}.")
    try:
        return Settings.model_validate({**values, "project": project, "hasHfToken": has_token})
    except ValidationError as error:
        raise SettingsError(
            "\n".join(_sentence(details, origin, {**values, "project": project}) for details in error.errors())
        ) from None


def from_pulumi(config: Mapping[str, str], secret_keys: frozenset[str], *, stack: str) -> Settings:
    """Read the configuration that the engine hands to a program: full key -> text, objects as JSON.

    Raises:
        SettingsError: also where the token is stored in clear.
    """
    own = {key.partition(":")[2]: text for key, text in config.items() if key.startswith(f"{NAMESPACE}:")}
    has_token = TOKEN_KEY in own
    if has_token and f"{NAMESPACE}:{TOKEN_KEY}" not in secret_keys:
        raise SettingsError(
            f"Pulumi.{stack}.yaml: {NAMESPACE}:{TOKEN_KEY} is stored in clear; remove it, revoke that token, and set a new one: "
            f"pulumi config set --secret {NAMESPACE}:{TOKEN_KEY}"
        )
    values = {key: _parsed(text) for key, text in own.items() if key != TOKEN_KEY}
    return from_values(
        values,
        project=config.get("gcp:project") or project_from_environment(),
        has_token=has_token,
        origin=f"Pulumi.{stack}.yaml",
    )


def from_file(path: Path, *, project: str | None = None) -> Settings:
    """Read `Pulumi.<stack>.yaml` without an engine; secrets are not decrypted.

    `project` stands in where neither the file nor the environment names one (planning needs none).
    Raises SettingsError, also where the file is missing or is not YAML.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = (
            ", ".join(
                sorted(p.name.removeprefix("Pulumi.").removesuffix(".yaml") for p in path.parent.glob("Pulumi.*.yaml"))
            )
            or "none"
        )
        raise SettingsError(f"There is no {path.name}; the stacks with settings here are: {known}.") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"{path.name} is not YAML: {str(error).splitlines()[0]}.") from None
    config = _mapping(_mapping(document).get("config"))
    own = {key.partition(":")[2]: value for key, value in config.items() if key.startswith(f"{NAMESPACE}:")}
    has_token = own.pop(TOKEN_KEY, None) is not None
    named = config.get("gcp:project")
    found = named if isinstance(named, str) else project_from_environment() or project
    return from_values(own, project=found, has_token=has_token, origin=path.name)


def project_from_environment() -> str | None:
    """Return the project that the Google tools would take from the environment, or None."""
    return next((os.environ[name] for name in _PROJECT_VARIABLES if os.environ.get(name)), None)


def _mapping(value: object) -> dict[str, object]:
    """Return a YAML mapping with its keys as text, or an empty one for anything else."""
    if not isinstance(value, dict):
        return {}
    return {str(key): item for key, item in cast("dict[object, object]", value).items()}


def _parsed(text: str) -> object:
    """Undo what the engine does to structured values; plain words stay words."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _sentence(details: ErrorDetails, origin: str, values: Mapping[str, object]) -> str:
    location = [part for part in details["loc"] if part != "[key]"]
    key = _path(location)
    kind = details["type"]
    if kind == "extra_forbidden":
        return f"{origin}: {NAMESPACE}:{key} is not a known setting{_suggestion(location)}."
    if kind == "missing":
        return f"{origin}: {NAMESPACE}:{key} is missing; set it."
    value = _value_at(values, location)
    name = "gcp:project" if key == "project" else f"{NAMESPACE}:{key}" if key else "the settings"
    shown = f" = {_shown(value)}" if isinstance(value, str | int | float | bool) else ""
    return f"{origin}: {name}{shown}: {_allowed(details, location)}."


def _allowed(details: ErrorDetails, location: list[int | str]) -> str:
    if details["type"] == "string_pattern_mismatch":
        words = [part for part in reversed(location) if isinstance(part, str)]
        wanted = next((_PATTERNS[w] for word in words for w in (word, word.removesuffix("s")) if w in _PATTERNS), None)
        return f"expected {wanted}" if wanted else details["msg"]
    message = details["msg"].removeprefix("Value error, ").rstrip(".")
    for technical, plain in _PLAIN.items():
        message = message.replace(technical, plain)
    return message


def _path(location: list[int | str]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _value_at(values: object, location: list[int | str]) -> object:
    found = values
    for part in location:
        if isinstance(found, Mapping) and part in found:
            found = cast("Mapping[object, object]", found)[part]
        elif isinstance(found, list) and isinstance(part, int):
            found = cast("list[object]", found)[part]
    return cast("object", found)


def _shown(value: object) -> str:
    text = json.dumps(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return text if len(text) <= _MAX_VALUE_CHARACTERS else text[: _MAX_VALUE_CHARACTERS - 3] + "..."


def _suggestion(location: list[int | str]) -> str:
    model: object = Settings
    for part in location[:-1]:
        model = _field_model(model, part)
    known = _aliases(model)
    close = difflib.get_close_matches(str(location[-1]), known, n=1)
    if close:
        return f"; did you mean {close[0]}"
    return f"; known are {', '.join(known)}" if known else ""


def _aliases(model: object) -> list[str]:
    fields: dict[str, object] = getattr(model, "model_fields", {})
    return sorted(alias for field in fields.values() if (alias := str(getattr(field, "alias", ""))) not in _NOT_IN_FILE)


def _field_model(model: object, key: int | str) -> object:
    for field in getattr(model, "model_fields", {}).values():
        if field.alias == key:
            candidates = (field.annotation, *getattr(field.annotation, "__args__", ()))
            return next((candidate for candidate in candidates if hasattr(candidate, "model_fields")), None)
    return None
