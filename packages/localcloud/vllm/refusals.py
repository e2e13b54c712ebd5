"""What a start refuses, in the words of vLLM, its libraries and Google (`data/refusals.toml`)."""

import tomllib
from importlib.resources import files
from typing import Final

from localcloud.json_values import JsonObject, part, parts

_TABLE: Final[JsonObject] = tomllib.loads(
    (files("localcloud.vllm") / "data" / "refusals.toml").read_text(encoding="utf-8")
)
CONDITIONS: Final = parts(_TABLE, "conditions")
"""Rows as those of validators.json."""


class EngineStartError(Exception):
    """The engine cannot start. The message is the last line of vLLM's traceback."""


def words(name: str, /, **values: object) -> str:
    """Return a sentence of the table with its values."""
    return str(part(_TABLE, "words")[name]).format(**values)


def hub_words(client: str, name: str, /, **values: object) -> str:
    """Return the hub's answer as a server or as `hf download` prints it."""
    return str(part(part(_TABLE, "hub"), client)[name]).format(**values)


def refused(name: str, /, **values: object) -> EngineStartError:
    """Return the error of a start with a sentence of the table."""
    return EngineStartError(words(name, **values))
