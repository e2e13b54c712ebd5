"""Annotations of the settings' fields by key: the planner's field, and the effect of a change."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple, get_args, get_origin

from stacks.settings.block import Block, EffectName, Judged, OnChange
from stacks.settings.stack import Settings


class SettingField(NamedTuple):
    """One field of the settings."""

    key: str
    """Key in the file, such as `tpu.existingNetwork.privateGoogleAccess`."""
    attributes: tuple[str, ...]
    """Attribute path from `Settings`."""
    judged: str | None
    """Field of the planner's question, or None if the planner does not judge it."""
    effect: EffectName | None
    """Effect of a change, from the field's annotation or its block's. None: the server changes."""


@cache
def setting_fields(kind: type[Block] = Settings) -> tuple[SettingField, ...]:
    """Return every field of the settings, blocks before their fields. Fields of the planner's own blocks are not included."""
    return tuple(_fields(kind, SettingField("", (), None, None)))


@cache
def judged_fields() -> Mapping[str, tuple[SettingField, ...]]:
    """Return the settings for each field of the planner's question: one per target that has its own key for it."""
    found: dict[str, tuple[SettingField, ...]] = {}
    for field in setting_fields():
        if field.judged is not None:
            found[field.judged] = (*found.get(field.judged, ()), field)
    return found


def value_of(settings: Settings, field: SettingField) -> object:
    """Return the value of a field, or None, including when its block is not set."""
    value: object = settings
    for name in field.attributes:
        value = None if value is None else getattr(value, name)
    return value


def _fields(block: type[Block], above: SettingField) -> Iterator[SettingField]:
    for name, info in block.model_fields.items():
        effects: list[EffectName] = [mark.name for mark in info.metadata if isinstance(mark, OnChange)]
        field = SettingField(
            key=f"{above.key}.{info.alias or name}".removeprefix("."),
            attributes=(*above.attributes, name),
            judged=next((mark.path for mark in info.metadata if isinstance(mark, Judged)), None),
            effect=effects[0] if effects else above.effect,
        )
        yield field
        # The blocks of a list have no separate keys in the file.
        for kind in (info.annotation, *get_args(info.annotation)) if get_origin(info.annotation) is not list else ():
            if isinstance(kind, type) and issubclass(kind, Block):
                yield from _fields(kind, field)
