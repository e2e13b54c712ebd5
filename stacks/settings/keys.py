"""Every key of a settings file with its attribute path, its type and the effect of a change."""

from collections.abc import Iterator
from functools import cache

from gemma_serving.planning.settings.fields import SettingField, block_fields, own_field
from gemma_serving.stacks.settings.block import Block
from gemma_serving.stacks.settings.stack import Settings


@cache
def setting_fields(kind: type[Block] = Settings) -> tuple[SettingField, ...]:
    """Return every field of the settings, blocks before their fields. The blocks of a list have no keys of their own."""
    return tuple(_fields(kind))


def _fields(kind: type[Block]) -> Iterator[SettingField]:
    for name, info in kind.model_fields.items():
        annotation: object = kind.__annotations__[name]
        field = own_field(name, annotation, info.default)._replace(key=info.alias or name)
        yield field
        if field.block is not None:
            yield from block_fields(field.block, name, field.key, field.effect)
