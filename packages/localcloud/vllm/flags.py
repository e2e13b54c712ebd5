"""vLLM's command-line flags: names, types, choices. `data/flags.json` lists them and their sources."""

from collections.abc import Mapping
from functools import cache

from localcloud.json_values import JsonObject, packaged


@cache
def _tables() -> JsonObject:
    return packaged("localcloud.vllm", "flags.json")


def names(kind: str) -> frozenset[str]:
    """Return the flags of a kind, or the names of parsers.

    `booleans`, `integers`, `floats`, `strings`: one value. `optional_strings`: one value or none.
    `readable_integers`: whole numbers that vLLM also accepts as `16k` (thousands) or `16K`
    (1,024s), `max-model-len` also as `auto` or -1. `lists`: one or more values. `repeated`: several times, one value each. `jsons`: JSON, and
    (objects) single keys as `--flag.key value`. `reasoning_parsers`, `tool_parsers`: allowed values of the flags with these names.
    """
    return frozenset(_tables()[kind])


def choices() -> Mapping[str, list[str]]:
    """Return the flags with a fixed set of values, and those values."""
    return _tables()["choices"]


def aliases() -> Mapping[str, str]:
    """Return the short forms of flags."""
    return _tables()["aliases"]
