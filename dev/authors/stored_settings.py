"""`python -m dev.authors.stored_settings [FILE]`: store pydantic's schema of the settings, so that a plan of a stack does not import pydantic."""

import re
import sys
from pathlib import Path
from typing import Any, Final, cast, get_origin

import msgspec
import pydantic_core
from msgspec.msgpack import Ext

from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.stored import (
    BY_CALL,
    BY_NAME,
    FILE,
    PACKAGE,
    Stored,
    digest_of,
    name_of,
    stored_validator,
)

_OF_JSON_SCHEMA: Final = "metadata"
"""Key of the part that only writes a JSON schema."""
_REFERENCES: Final = frozenset({"ref", "schema_ref"})
"""Keys with the name of a definition, which ends in an address of memory."""


def store(path: Path) -> None:
    """Write the file, unless it is there. Raises ValueError for a check without a name."""
    if stored_validator(Settings, path) is not None:
        return
    from pydantic import TypeAdapter  # noqa: PLC0415 - each `make` comes here, and most find the file

    schema = msgspec.Raw(msgspec.msgpack.encode(packed(cast("object", TypeAdapter(Settings).core_schema))))
    loaded = [module.__file__ for name, module in sys.modules.items() if name.startswith("gemma_serving.")]
    modules = tuple(sorted(str(Path(file).relative_to(PACKAGE)) for file in loaded if file))
    found = Stored(name_of(Settings), pydantic_core.__version__, modules, digest_of(modules), schema)
    path.write_bytes(msgspec.msgpack.encode(found))


def packed(value: object) -> object:
    """Return a part of a schema as msgpack has it. Raises ValueError for a check without a name."""
    if isinstance(value, dict):
        parts = {key: one for key, one in cast("dict[str, Any]", value).items() if key != _OF_JSON_SCHEMA}
        return {key: re.sub(r":\d+", "", one) if key in _REFERENCES else packed(one) for key, one in parts.items()}
    if isinstance(value, list):
        return [packed(one) for one in cast("list[object]", value)]
    if isinstance(value, tuple):
        return _call(tuple, [*cast("tuple[object, ...]", value)])
    if isinstance(value, msgspec.Struct):
        return _call(type(value), *(getattr(value, name) for name in value.__struct_fields__))
    return value if isinstance(value, str | int | float | None) else Ext(BY_NAME, _name_of(value).encode())


def _call(*parts: object) -> Ext:
    return Ext(BY_CALL, msgspec.msgpack.encode(packed([*parts])))


def _name_of(value: Any) -> str:  # noqa: ANN401 - any object
    """Return the name of a class, a function, or a table that a module has."""
    value = get_origin(value) or value
    if hasattr(value, "__qualname__") and "<" not in value.__qualname__:
        return name_of(value)
    for name, module in sys.modules.items():
        for key in (key for key, one in vars(module).items() if one is value and name.startswith("gemma_serving.")):
            return f"{name}:{key}"
    raise ValueError(f"{value!r} has no name in a module, by which the file could have it")


if __name__ == "__main__":
    store(Path(sys.argv[1]) if sys.argv[1:] else FILE)
