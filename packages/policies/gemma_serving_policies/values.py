"""Inputs of a resource as plain values, and a reader of the places that a rule checks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias, cast

_LONGEST: Final = 120
"""Maximum number of characters of a value in a message."""


class Missing(Enum):
    """The value that a preview does not know, because it is an output of a resource that does not exist yet."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Missing.UNKNOWN

Value: TypeAlias = "None | bool | int | float | str | Missing | Sequence[Value] | Mapping[str, Value]"

GOOGLE: Final = frozenset({"gcp", "gcp-tpu", "google-native"})
"""Pulumi packages of resources on Google Cloud. The rules ignore resources of other packages."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource that a program declares: its type token, its Pulumi name and its inputs."""

    type: str
    name: str
    inputs: Mapping[str, Value]

    @property
    def is_google(self) -> bool:
        """True if a Google provider creates the resource."""
        return self.type.partition(":")[0] in GOOGLE

    @property
    def kind(self) -> str:
        """The last part of the type token, such as `Bucket` of `gcp:storage/bucket:Bucket`."""
        return self.type.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class Found:
    """A value of a resource and its path, such as `template.containers[0].image`."""

    path: str
    value: Value

    @property
    def shown(self) -> str:
        """The value for a message, shortened."""
        value = self.value
        if isinstance(value, float) and value.is_integer():  # the engine passes all numbers as floats
            value = int(value)
        text = f'"{value}"' if isinstance(value, str) else str(value).lower()
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def found_at(inputs: Value, *keys: str) -> Iterator[Found]:
    """Yield each value at a path of keys. A list on the path, or at its end, stands for each of its elements.

    Yields nothing if a key is missing, and the unknown value if the preview does not know any value on the path.
    """
    yield from _descend(Found("", inputs), keys)


def _descend(here: Found, keys: Sequence[str]) -> Iterator[Found]:
    value = here.value
    if isinstance(value, Sequence) and not isinstance(value, str):
        for index, item in enumerate(value):
            yield from _descend(Found(f"{here.path}[{index}]", item), keys)
    elif value is None:
        return
    elif not keys or value is UNKNOWN:
        yield Found(".".join(part for part in (here.path, *keys) if part), value)
    elif isinstance(value, Mapping):
        inner = cast("Mapping[str, Value]", value)
        if keys[0] in inner:
            path = f"{here.path}.{keys[0]}" if here.path else keys[0]
            yield from _descend(Found(path, inner[keys[0]]), keys[1:])
