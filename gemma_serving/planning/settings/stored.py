"""pydantic's schema of a block as a file, which pydantic_core reads without pydantic: importing and asking pydantic takes a third of a plan of a stack.

`python -m dev.authors.stored_settings` writes the file. It counts for one version of pydantic_core, and for the bytes of the modules that it was made of.
"""

import hashlib
from collections.abc import Iterable
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator

FILE: Final = Path(__file__).with_name("core_schema.msgpack")
PACKAGE: Final = Path(__file__).parents[2]
BY_NAME, BY_CALL = 1, 2
"""Codes of an object by `module:name`, and of the result of a call: a list of the function and its arguments."""


class Stored(msgspec.Struct, frozen=True):
    """Contents of the file."""

    block: str
    pydantic_core: str
    modules: tuple[str, ...]
    """Files of the modules, below the package."""
    digest: str
    schema: msgspec.Raw


def stored_validator(block: type, path: Path = FILE) -> "SchemaValidator | None":
    """Return the validator of a block by the file. None: the file has another block, or is missing or of other modules."""
    from pydantic_core import SchemaValidator, __version__  # noqa: PLC0415 - a plan of a model checks no value

    try:
        found = msgspec.msgpack.decode(path.read_bytes(), type=Stored)
        wanted = name_of(block), __version__
        if (found.block, found.pydantic_core) != wanted or found.digest != digest_of(found.modules):
            return None
    except (OSError, msgspec.DecodeError):
        return None
    return SchemaValidator(msgspec.msgpack.decode(found.schema, ext_hook=_object))


def name_of(found: type) -> str:
    """Return the name by which the file has a class or a function."""
    return f"{found.__module__}:{found.__qualname__}"


def digest_of(modules: Iterable[str]) -> str:
    """Return the hash of the modules' bytes. Raises OSError."""
    total = hashlib.sha256()
    for module in modules:
        total.update((PACKAGE / module).read_bytes())
    return total.hexdigest()


def _object(code: int, data: memoryview) -> object:
    if code == BY_NAME:
        module, _, name = bytes(data).decode().partition(":")
        return attrgetter(name)(import_module(module))
    function, *arguments = msgspec.msgpack.decode(data, ext_hook=_object)
    return function(*arguments)
