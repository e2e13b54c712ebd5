"""What a resource type's properties are: their kinds, their names in request bodies, and how a change of each is carried out.

One `PropertySpec` describes one property. The helpers below (`text`, `flag`, `whole`, ...) are what the tables in `localcloud.plugins.table` are
written with. All of it is data: `coding`, `checking` and `diffing` read it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

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
    ASSET = "a file or text asset"


class Absent(Enum):
    """The marker of a body field that is not sent at all, as opposed to one that is sent as null."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
_NO_FIELDS: Final[Mapping[str, "PropertySpec"]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceScope:
    """What conversions may need to know beside the value: the resource's project and region, empty where there is none."""

    project: str
    region: str


Encode: TypeAlias = Callable[[Value, ResourceScope], Json]
Decode: TypeAlias = Callable[[Json], Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertySpec:
    """One property.

    `api`: its dotted path in the request body; empty: the same name. `local`: never sent. `output`: only ever computed. `computed`: the service may
    choose a value where the program gives none, so its absence from the program is no difference. `force_new`: a change replaces the resource.
    `default`: what Check fills in. `send_zero`: sent even when false, 0 or empty. `unset`, `unset_update`: what is sent when there is no value, on
    every request or on updates only. `create_only`: left out of updates. `sparse`: absent from the state, rather than zero, where the service
    does not answer it. `same`: two texts that are equal after this function are no difference.
    """

    kind: ValueKind
    api: str = ""
    local: bool = False
    required: bool = False
    output: bool = False
    computed: bool = False
    force_new: bool = False
    secret: bool = False
    autoname: bool = False
    create_only: bool = False
    send_zero: bool = False
    sparse: bool = False
    default: Value = None
    unset: Json | Absent = ABSENT
    unset_update: Json | Absent = ABSENT
    encode: Encode | None = None
    decode: Decode | None = None
    same: Callable[[str], str] | None = None
    item: "PropertySpec | None" = None
    fields: Mapping[str, "PropertySpec"] = field(default_factory=lambda: _NO_FIELDS)

    @property
    def is_collection(self) -> bool:
        """Tell whether absence and emptiness are one and the same."""
        return self.kind in {ValueKind.LIST, ValueKind.SET, ValueKind.TEXTS_BY_KEY}

    @property
    def zero(self) -> Value:
        """The value that stands in the state where the service answers none; None for objects and collections."""
        return _ZEROS.get(self.kind)


_ZEROS: Final[Mapping[ValueKind, Value]] = MappingProxyType(
    {ValueKind.TEXT: "", ValueKind.FLAG: False, ValueKind.WHOLE: 0, ValueKind.NUMBER: 0}
)

PropertySpecs: TypeAlias = Mapping[str, PropertySpec]


# The helpers take PropertySpec's own keywords; their names are checked by PropertySpec itself when a table is imported.


def text(**options: Any) -> PropertySpec:  # noqa: ANN401 - PropertySpec's keywords
    """A text."""
    return PropertySpec(kind=ValueKind.TEXT, **options)


def flag(**options: Any) -> PropertySpec:  # noqa: ANN401 - PropertySpec's keywords
    """True or false."""
    return PropertySpec(kind=ValueKind.FLAG, **options)


def whole(**options: Any) -> PropertySpec:  # noqa: ANN401 - PropertySpec's keywords
    """A whole number."""
    return PropertySpec(kind=ValueKind.WHOLE, **options)


def number(**options: Any) -> PropertySpec:  # noqa: ANN401 - PropertySpec's keywords
    """A number."""
    return PropertySpec(kind=ValueKind.NUMBER, **options)


def texts_by_key(**options: Any) -> PropertySpec:  # noqa: ANN401 - PropertySpec's keywords
    """A map of texts, such as labels."""
    return PropertySpec(kind=ValueKind.TEXTS_BY_KEY, **options)


def block(fields: PropertySpecs, **options: Any) -> PropertySpec:  # noqa: ANN401 - PropertySpec's keywords
    """An object with properties of its own."""
    return PropertySpec(kind=ValueKind.BLOCK, fields=fields, **options)


def listing(item: PropertySpec, **options: Any) -> PropertySpec:  # noqa: ANN401 - PropertySpec's keywords
    """A list whose order matters."""
    return PropertySpec(kind=ValueKind.LIST, item=item, **options)


def choice(item: PropertySpec, **options: Any) -> PropertySpec:  # noqa: ANN401 - PropertySpec's keywords
    """A list whose order does not matter (a set)."""
    return PropertySpec(kind=ValueKind.SET, item=item, **options)


def outputs(**fields: PropertySpec) -> dict[str, PropertySpec]:
    """Mark fields as computed by the service only."""
    return {name: replace(each, output=True) for name, each in fields.items()}


def long(**options: Any) -> PropertySpec:  # noqa: ANN401 - PropertySpec's keywords
    """A 64-bit whole number, which travels as a text in JSON."""
    return PropertySpec(kind=ValueKind.WHOLE, encode=_long_to_json, decode=_long_from_json, **options)


def digits(raw: Json) -> Value:
    """A number that the service writes as a text; None where it is no number."""
    return int(str(raw)) if str(raw).isdigit() else None


def _long_to_json(value: Value, _scope: ResourceScope) -> Json:
    return str(value)


def _long_from_json(value: Json) -> Value:
    return int(value) if isinstance(value, str | int) else None


def one_listed(raw: Json) -> Value:
    """A nested object that the SDK shows as a list of one."""
    return [cast("Value", raw)] if isinstance(raw, dict) else None


def last_segment(path: str) -> str:
    """The last segment of a path or URL."""
    return path.rstrip("/").rsplit("/", 1)[-1]


def relative(path: str) -> str:
    """A resource's path from `projects/` on; anything else as it is."""
    start = path.find("projects/")
    return path[start:] if start >= 0 else path
