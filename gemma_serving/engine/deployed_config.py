"""Configuration of a stack: of its last successful update, as the backend keeps it, and of its settings file."""

import json
from collections.abc import Iterator, Mapping
from typing import Final

from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.engine import runner

BUCKET_CREATION: Final = "bucket for the weights"
"""Message of the engine's update that only creates a bucket."""
_SECRET: Final = "[secret]"  # noqa: S105 - the same text for each secret


def deployed_values(stack: str) -> Mapping[str, str] | None:
    """Return the settings of the last successful `up` by path, such as `gemma-serving:vllm.maxNumSeqs`; None if they are unknown.

    The creation of a bucket is none: staging changes the settings after it.

    The last ten updates are read. A secret has the same text always.
    """
    try:
        listed = runner.query(["stack", "history", "--json", "--page-size", "10", "--page", "1", "--stack", stack])
        updates = [as_mapping(one) for one in as_sequence(json.loads(listed))]
    except (ScriptError, ValueError):
        return None
    deployments = [one for one in updates if one.get("message") != BUCKET_CREATION]
    done = [one for one in deployments if (one.get("kind"), one.get("result")) == ("update", "succeeded")]
    if not done:
        return None
    config = {key: as_mapping(found) for key, found in as_mapping(done[0].get("config")).items()}
    return values_in({key: found.get("objectValue", _plain(found)) for key, found in config.items()})


def values_in(config: Mapping[str, object]) -> Mapping[str, str]:
    """Return each value of a configuration by its path, with dots between the keys of blocks."""
    return dict(_values(config))


def _plain(found: Mapping[str, object]) -> object:
    return {"secure": ""} if found.get("secret") else found.get("value")


def _values(config: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        inner = as_mapping(value)
        if inner and set(inner) != {"secure"}:
            yield from ((f"{key}.{path}", text) for path, text in _values(inner))
        elif inner:
            yield key, _SECRET
        else:
            yield key, value if isinstance(value, str) else json.dumps(value, sort_keys=True)
