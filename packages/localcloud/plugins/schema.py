"""Properties of a resource type: their kinds, their names in request bodies, and how their changes are applied.

`PropertySpec` describes one property. `facts` creates the specifications of the gcp types; `coding`, `checking` and `diffing` read them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeAlias, cast

from localcloud.plugins.values import Value

Json: TypeAlias = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Object: TypeAlias = dict[str, Json]


class ValueKind(Enum):
    """The kinds of property."""

    TEXT = "a text"
    FLAG = "true or false"
    WHOLE = "a whole number"
    NUMBER = "a number"
    TEXTS_BY_KEY = "a map of texts"
    BLOCK = "an object"
    LIST = "a list"
    SET = "a list in any order"


class UnsetValue(Enum):
    """Marker of a missing value, as opposed to null."""

    ABSENT = "absent"


ABSENT: Final = UnsetValue.ABSENT
_NO_FIELDS: Final[Mapping[str, "PropertySpec"]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceScope:
    """The project and region of a resource, for conversions that need them. Empty if none exists."""

    project: str
    region: str


Encode: TypeAlias = Callable[[Value, ResourceScope], Json]
Decode: TypeAlias = Callable[[Json], Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertySpec:
    """One property.

    From the real provider's schema: `kind`, `terraform` (the name there), `required`, `output` (only ever computed),
    `computed` (the service can choose a value if the program sets none), `force_new` (a change replaces the resource), `default`, `secret`,
    `one_of` and `conflicts` (paths of properties that exclude this one), `collapsed` (a set of one member, shown as an object), `item`, `fields`.

    From the API's discovery document: `api`, the dotted path in the request body; empty: the same name. `local`: never sent. `wrapped`: the API
    takes a list, of which the property is the only member. `listed`: the API returns one object, which the SDK shows as a list. `long`: a number
    that the API writes as a text.

    From recordings: `autoname`: Check chooses a name. `create_only`: omitted from updates. `send_zero`: sent even when false, 0 or empty. `unset`
    and `unset_update`: the value sent instead of an absent one, on every request or only on updates. `absent`: the state if the service returns
    nothing, if it is not the zero of the kind. `switch`: a flag inside the API's object, true if the object is given. `encode` and `decode`:
    conversions. `same`: two texts that are equal after this function are not a difference.
    """

    kind: ValueKind
    terraform: str = ""
    required: bool = False
    output: bool = False
    computed: bool = False
    force_new: bool = False
    default: Value = None
    secret: bool = False
    one_of: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    collapsed: bool = False
    item: "PropertySpec | None" = None
    fields: Mapping[str, "PropertySpec"] = field(default_factory=lambda: _NO_FIELDS)
    api: str = ""
    local: bool = False
    wrapped: bool = False
    listed: bool = False
    long: bool = False
    autoname: bool = False
    create_only: bool = False
    send_zero: bool = False
    unset: Json | UnsetValue = ABSENT
    unset_update: Json | UnsetValue = ABSENT
    absent: Value | UnsetValue = ABSENT
    encode: Encode | None = None
    decode: Decode | None = None
    same: Callable[[str], str] | None = None
    switch: str = ""

    @property
    def is_collection(self) -> bool:
        """Return whether missing and empty are equivalent."""
        return self.kind in {ValueKind.LIST, ValueKind.SET, ValueKind.TEXTS_BY_KEY}

    @property
    def zero(self) -> Value:
        """Return the value that is equivalent to none. None for objects and collections."""
        return _ZEROS.get(self.kind)

    @property
    def kept(self) -> Value:
        """Return the state's value if neither the program nor the service sets one and it is not a zero."""
        return self.default if self.absent is ABSENT else self.absent

    @property
    def chosen(self) -> Value:
        """Return the default that Check adds to the inputs. A zero default only appears in the state."""
        return None if self.default == self.zero else self.default

    def inside(self, value: Value, change: Callable[["PropertySpecs", dict[str, Value]], dict[str, Value]]) -> Value:
        """Apply a function to an object, or to each object of a list, and return the result."""
        if self.kind is ValueKind.BLOCK and isinstance(value, dict):
            return cast("Value", change(self.fields, value))
        if self.item is not None and isinstance(value, list):
            item = self.item
            return [item.inside(member, change) for member in value]
        return value


_ZEROS: Final[Mapping[ValueKind, Value]] = MappingProxyType(
    {ValueKind.TEXT: "", ValueKind.FLAG: False, ValueKind.WHOLE: 0, ValueKind.NUMBER: 0}
)

PropertySpecs: TypeAlias = Mapping[str, PropertySpec]


def last_segment(path: str) -> str:
    """Return the last segment of a path or URL."""
    return path.rstrip("/").rsplit("/", 1)[-1]


def relative(path: str) -> str:
    """Return a resource's path from `projects/` on. Anything else is returned unchanged."""
    start = path.find("projects/")
    return path[start:] if start >= 0 else path
