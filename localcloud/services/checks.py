"""Checks that several services share: labels, regions, update masks."""

import re

from localcloud.rest.errors import CloudError
from localcloud.world.cloud import REGIONS

_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_MAX_LABELS = 64


def required_mask(mask: str | None) -> str:
    """Return the update mask. Raise 400 if it is absent or empty."""
    if not mask:
        raise CloudError.field("update_mask", "The update mask is required and must not be empty.")
    return mask


def check_labels(labels: object, path: str) -> None:
    """Refuse labels that break Google's rules: 64 at most, lower case keys of 63 characters, values of 63 characters."""
    if not isinstance(labels, dict):
        return
    pairs: dict[str, str] = labels  # pyright: ignore[reportUnknownVariableType] - checked against the discovery document before
    if len(pairs) > _MAX_LABELS:
        raise CloudError.field(path, f"Too many labels at '{path}': {len(pairs)}; at most {_MAX_LABELS} are allowed.")
    for key, value in pairs.items():
        if _LABEL_KEY.fullmatch(key) is None:
            raise CloudError.field(
                path,
                f"Invalid label key '{key}' at '{path}': it must start with a lower-case letter and hold lower-case letters, digits, _ and - only.",
            )
        if _LABEL_VALUE.fullmatch(value or "") is None:
            raise CloudError.field(
                path,
                f"Invalid label value '{value}' at '{path}[{key}]': at most 63 lower-case letters, digits, _ and - are allowed.",
            )


def check_region(name: str) -> str:
    """Return the location of `projects/P/locations/L...`. Raise 403, as Google does, if there is no such region."""
    location = name.split("/")[3]
    if location not in REGIONS:
        raise CloudError.denied(f"Permission denied on 'locations/{location}' (or it may not exist).")
    return location
