"""Write values and deployments as TOML. Python can read TOML but not write it."""

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import cast

from planning.question.fields import field_types, value_at
from planning.question.types import Deployment


def toml_value(value: object) -> str:
    """Return a value as TOML. Raises TypeError for a type that the corpus does not use."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value).items()
        return "{ " + ", ".join(f"{toml_key(key)} = {toml_value(inner)}" for key, inner in pairs) + " }"
    if isinstance(value, Sequence):
        return "[" + ", ".join(toml_value(inner) for inner in cast("Sequence[object]", value)) + "]"
    raise TypeError(f"{type(value).__name__} has no TOML form")


def toml_key(key: str) -> str:
    """Return a key, quoted if necessary."""
    return (
        key
        if key and all(letter.isascii() and (letter.isalnum() or letter in "-_") for letter in key)
        else json.dumps(key)
    )


def deployment_lines(deployment: Deployment) -> list[str]:
    """Return the fields of a deployment that differ from their defaults, one line each, by path."""
    plain = Deployment(model=deployment.model, accelerator=deployment.accelerator)
    lines = [f"model = {toml_value(deployment.model)}", f"accelerator = {toml_value(deployment.accelerator)}"]
    for path in field_types():
        value = value_at(deployment, path)
        if path not in {"model", "accelerator"} and value is not None and value != value_at(plain, path):
            lines.append(f"{path} = {toml_value(value)}")
    return lines
