"""Configuration of a stack's last successful update, as the backend keeps it."""

import json
from collections.abc import Iterator, Mapping

from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.engine import runner


def deployed_keys(stack: str) -> frozenset[str]:
    """Return the settings of the last successful `up`, such as `gemma-serving:vllm.maxNumSeqs`; empty if they are unknown.

    The last ten updates are read.
    """
    try:
        listed = runner.query(["stack", "history", "--json", "--page-size", "10", "--page", "1", "--stack", stack])
        updates = [as_mapping(one) for one in as_sequence(json.loads(listed))]
    except (ScriptError, ValueError):
        return frozenset()
    done = [one for one in updates if (one.get("kind"), one.get("result")) == ("update", "succeeded")]
    config = as_mapping(done[0].get("config") if done else None)
    return frozenset(keys_in({key: as_mapping(found).get("objectValue") for key, found in config.items()}))


def keys_in(values: Mapping[str, object]) -> Iterator[str]:
    """Yield the path of each value of a configuration, with dots between the keys of blocks."""
    for key, value in values.items():
        inner = as_mapping(value)
        if inner and set(inner) != {"secure"}:
            yield from (f"{key}.{path}" for path in keys_in(inner))
        else:
            yield key
