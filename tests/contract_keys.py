"""The meaning of labels, metadata keys, guest attributes and phases, by table of dev/docs/contracts.md."""

import tomllib
from pathlib import Path


def keys() -> dict[str, dict[str, str]]:
    """Return the keys with their meaning, by table."""
    return tomllib.loads(
        (Path(__file__).parents[1] / "gemma_serving" / "contracts" / "keys.toml").read_text(encoding="utf-8")
    )
