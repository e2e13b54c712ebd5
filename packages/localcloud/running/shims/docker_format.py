"""The subset of docker's `--format` templates that scripts use: `{{.A.B}}`, `{{index .A "key"}}`, `{{json .A}}`."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from localcloud.json_values import as_object

_ACTION: Final = re.compile(r"\{\{\s*(.*?)\s*\}\}")
_INDEX: Final = re.compile(r'index\s+(\.[\w.]*)\s+"([^"]*)"')
_JSON: Final = re.compile(r"json\s+(\.[\w.]*)")


def formatted(template: str, document: Mapping[str, Any]) -> str:
    """Fill a template. An unknown action exits with one sentence, like an invalid template in docker."""
    return _ACTION.sub(lambda match: _value(match[1], document), template)


def _value(action: str, document: Mapping[str, Any]) -> str:
    if match := _INDEX.fullmatch(action):
        found = _at(match[1], document)
        return str(as_object(found).get(match[2], ""))
    if match := _JSON.fullmatch(action):
        return json.dumps(_at(match[1], document))
    if re.fullmatch(r"\.[\w.]*", action):
        return _shown(_at(action, document))
    raise SystemExit(f"template parsing error: the simulated docker does not support {{{{{action}}}}}")


def _at(path: str, document: Mapping[str, Any]) -> object:
    found: object = document
    for part in path.strip(".").split(".") if path != "." else ():
        if part not in as_object(found):
            raise SystemExit(f'template: :1: map has no entry for key "{part}"')
        found = as_object(found)[part]
    return found


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "<no value>" if value is None else str(value)
