"""Custom labels of a stack's resources."""

from collections.abc import Mapping
from typing import Annotated

from gemma_serving.contracts.labels import is_reserved
from gemma_serving.planning.settings.annotations import Checked, Matching

LabelKey = Annotated[
    str, Matching(r"^[a-z][a-z0-9_-]{0,62}$", "1 to 63 characters of a-z, 0-9, - and _, starting with a letter")
]
LabelValue = Annotated[str, Matching(r"^[a-z0-9_-]{0,63}$", "up to 63 characters of a-z, 0-9, - and _")]


def _reserved(labels: Mapping[str, str]) -> str | None:
    reserved = next((key for key in sorted(labels) if is_reserved(key)), None)
    return None if reserved is None else f'"{reserved}" is set by this project; choose another key'


Labels = Annotated[Mapping[LabelKey, LabelValue], Checked(_reserved)]
