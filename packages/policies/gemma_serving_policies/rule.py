"""A rule: its texts, its configuration and its check. Answers are violations and inputs that a preview does not know; no answer means no violation."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from gemma_serving_policies.values import UNKNOWN, Found, Resource, Value

EXEMPT: Final = "exempt"
_EXEMPT_SCHEMA: Final[Mapping[str, object]] = {
    "type": "array",
    "items": {"type": "string", "pattern": "^.+::.+$"},
    "default": (),
    "description": "Resources that the rule does not check: TYPE::NAME, the last two parts of the URN.",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated rule. The message names the resource, the property, its value, the allowed values and the fix."""

    message: str


@dataclass(frozen=True, slots=True)
class NotKnown:
    """An input that the preview does not know. `pulumi up` knows it and checks it."""

    place: str
    """Property and resource, for a message."""


Answer: TypeAlias = Violation | NotKnown
Config: TypeAlias = Mapping[str, Value]
Check: TypeAlias = Callable[[Resource, Config], Iterable[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of the pack."""

    name: str
    description: str
    check: Check
    own_settings: Mapping[str, Mapping[str, object]]
    """JSON schema and default of each setting, by name. All rules have `exempt` in addition."""

    @property
    def settings(self) -> Mapping[str, Mapping[str, object]]:
        """JSON schema and default of each setting, `exempt` included."""
        return {**self.own_settings, EXEMPT: _EXEMPT_SCHEMA}

    def defaults(self) -> Config:
        """Return the default of each setting."""
        return {name: schema["default"] for name, schema in self.settings.items()}  # pyright: ignore[reportReturnType] - the schemas are JSON

    def answers(self, resource: Resource, given: Config) -> Iterator[Answer]:
        """Yield the answers for a resource. `given` replaces defaults; a setting that does not exist is a violation of every resource."""
        strange = sorted(given.keys() - self.settings.keys())
        if strange:
            yield Violation(
                f"The policy configuration of {self.name} has {', '.join(strange)}, but its settings are {', '.join(sorted(self.settings))}; "
                "correct the name in the file of --policy-pack-config."
            )
            return
        config = {**self.defaults(), **given}
        if f"{resource.type}::{resource.name}" not in strings(config[EXEMPT]):
            yield from self.check(resource, config)


def strings(value: Value) -> list[str]:
    """Return the strings of a setting that is a list."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, (list, tuple)) else []


def not_known(resource: Resource, found: Found) -> NotKnown:
    """Return the answer for an input that the preview does not know."""
    return NotKnown(f"`{found.path}` of {resource.name}")


def violation(resource: Resource, found: Found, allowed: str, fix: str) -> Violation:
    """Return the answer for an input with a forbidden value."""
    return Violation(f"{resource.name}: `{found.path}` is {found.shown}, but {allowed}; {fix}.")


def absent(resource: Resource, path: str, allowed: str, fix: str) -> Violation:
    """Return the answer for an input that is missing."""
    return Violation(f"{resource.name}: `{path}` is not set, but {allowed}; {fix}.")


def is_unknown(found: Found) -> bool:
    """Return whether the preview does not know the value."""
    return found.value is UNKNOWN


def is_true(found: Found) -> bool:
    """Return whether a switch is on. Programs can write it as text."""
    return str(found.value).lower() == "true"
