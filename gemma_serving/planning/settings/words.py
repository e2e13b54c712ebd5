"""pydantic's words for what it checks. pydantic is not imported here: they are notes of a name and its arguments, until pydantic reads them."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct


class Word(Struct, frozen=True, eq=False):
    """A word of pydantic, with its arguments. pydantic makes the annotation itself of it, as of each `GroupedMetadata` of annotated-types."""

    name: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    __is_annotated_types_grouped_metadata__: ClassVar = True

    def __iter__(self) -> Iterator[object]:
        """Yield pydantic's annotation."""
        import pydantic  # noqa: PLC0415 - takes a third of a plan of a model, which checks no value

        yield getattr(pydantic, self.name)(*self.arguments, **self.keywords)


def _noted(name: str, *arguments: object, **keywords: object) -> Word:
    return Word(name, arguments, keywords)


if TYPE_CHECKING:
    from pydantic import AfterValidator, BeforeValidator, Field, WrapValidator  # pyright: ignore[reportUnusedImport] - for the settings
else:
    AfterValidator, BeforeValidator, WrapValidator, Field = (
        partial(_noted, name) for name in ("AfterValidator", "BeforeValidator", "WrapValidator", "Field")
    )
