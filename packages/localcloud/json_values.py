"""JSON values of a shape that the type checker does not know. A missing part reads as an empty one."""

import json
from typing import Any, TypeAlias, cast

JsonObject: TypeAlias = dict[str, Any]


def as_object(value: object) -> JsonObject:
    """Return a JSON object as it is and anything else as an empty one."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return a JSON list as it is and anything else as an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def part(document: JsonObject, key: str) -> JsonObject:
    """Return the object under a key, or an empty one. The caller has checked the document's types."""
    return cast("JsonObject", document.get(key) or {})


def parts(document: JsonObject, key: str) -> list[JsonObject]:
    """Return the list of objects under a key, or an empty one. The caller has checked the document's types."""
    return cast("list[JsonObject]", document.get(key) or [])


def strings(document: JsonObject, key: str) -> list[str]:
    """Return the list of texts under a key, or an empty one. The caller has checked the document's types."""
    return cast("list[str]", document.get(key) or [])


def packaged(package: str, name: str) -> JsonObject:
    """Return the object of a file in a package's folder `data`, which is JSON or TOML by its ending."""
    from importlib.resources import files  # noqa: PLC0415 - a tenth of the start of a machine's command, which never reads such a file

    text = (files(package) / "data" / name).read_text(encoding="utf-8")
    if name.endswith(".toml"):
        import tomllib  # noqa: PLC0415 - the same

        return tomllib.loads(text)
    return cast("JsonObject", json.loads(text))


def copied(value: JsonObject) -> JsonObject:
    """Return a copy of a document that shares nothing with it. JSON has no cycles; `copy.deepcopy` takes twice as long because it detects them."""
    return {key: _copied(item) for key, item in value.items()}


def _copied(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, dict):
        return copied(cast("JsonObject", value))
    if isinstance(value, list):
        return [_copied(item) for item in cast("list[Any]", value)]
    return value


def filled(form: Any, values: JsonObject) -> Any:  # noqa: ANN401 - any JSON value
    """Return a form with a value in place of each text that begins with $, its name. A missing value is null."""
    if isinstance(form, dict):
        return {key: filled(item, values) for key, item in cast("JsonObject", form).items()}
    if isinstance(form, list):
        return [filled(item, values) for item in cast("list[Any]", form)]
    return values.get(form[1:]) if isinstance(form, str) and form.startswith("$") else form
