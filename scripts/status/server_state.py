"""Query the health and load of a stack's server."""

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Final

from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.scripts.status.report import HEALTHY, ServerFacts
from loadtest.client import metrics as vllm
from loadtest.client.metrics import CACHE_CONFIG, KV_USAGE, METRICS_PATH, RUNNING, WAITING, Scrape, parse_metrics

ANSWER_LIMIT_S: Final = 15.0


_STARTED: Final = ("process_start_time_seconds",)
_LEFT_OUT: Final = ("_created", "_info")
"""Ends of the names of metrics whose total says nothing."""


def server_facts(outputs: StackOutputs, *, metrics: bool = False) -> ServerFacts:
    """Return the health and load of a server, and with `metrics` all its totals. Raises ScriptError if it is unreachable."""
    from gemma_serving.scripts.stack.access import open_stack_access  # noqa: PLC0415 - 0.1 s, and few stacks are queried
    from loadtest.client.openai import ServerError, call_once  # noqa: PLC0415 - as above

    with open_stack_access(outputs) as access:
        try:
            call = partial(call_once, access.base_url, access.headers, "GET", limit_s=ANSWER_LIMIT_S)
            health = call("/health")
            if health.status != HTTPStatus.OK:
                return ServerFacts(health=f"HTTP {health.status}")
            answer = call(METRICS_PATH)
        except ServerError as error:
            raise ScriptError(f"The server does not respond: {error}") from None
    if answer.status != HTTPStatus.OK:
        return ServerFacts(health=HEALTHY)
    load = parse_metrics(str(answer.body))
    prompt, generation = load.total(vllm.PROMPT_TOKENS), load.total(vllm.GENERATION_TOKENS)
    return ServerFacts(
        health=HEALTHY,
        running_requests=load.total(RUNNING),
        waiting_requests=load.total(WAITING),
        kv_use_share=load.highest(KV_USAGE),
        tokens=None if prompt is None or generation is None else (prompt, generation),
        started_s=load.total(_STARTED),
        metrics=_totals(load) if metrics else None,
    )


def _totals(found: Scrape) -> Mapping[str, object]:
    names = sorted(name for name in found.samples if not name.endswith(_LEFT_OUT))
    return {**{name: found.total((name,)) for name in names}, CACHE_CONFIG[0]: dict(found.labels(CACHE_CONFIG) or {})}
