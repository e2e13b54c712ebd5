"""Input and output tokens that the servers of a stack have served, from Managed Service for Prometheus."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Final

from gemma_serving.cloud.google_api import GoogleApi, answer_of
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.parallel import each_within
from gemma_serving.contracts.three_answers import Answer, Present, Unknown
from gemma_serving.planning.units import HOUR_S

_LIMIT_S: Final = 15.0
"""Timeout of Cloud Monitoring in seconds."""
_DAY_H: Final = 24
_START_H: Final = 3
"""Hours after a start in which the first metrics must have arrived. Otherwise, the collector was turned on later."""


def prometheus(api: GoogleApi, project: str, query: str) -> Sequence[object]:
    """Return the series of a PromQL query. Raises GoogleListError and ScriptError."""
    answer = api.post("monitoring", f"v1/projects/{project}/location/global/prometheus/api/v1/query", {"query": query})
    return as_sequence(as_mapping(answer.get("data")).get("result"))


def tokens_query(kind: str, namespace: str, hours: int, age_h: int) -> str:
    """Return the PromQL of the `prompt` or `generation` tokens of the last `hours`: no series if nothing counted them from the beginning."""
    counter = f'vllm:{kind}_tokens_total{{namespace="{namespace}"}}'
    # An offset of 0 does not parse.
    offsets = [f" offset {h - _START_H}h" if h > _START_H else "" for h in (hours, age_h)]
    early = " or ".join(f"count(last_over_time({counter}[{_START_H}h]{offset}))" for offset in offsets)
    return f"(sum(increase({counter}[{hours}h])) or vector(0)) and on() ({early})"


def served_tokens(
    api: GoogleApi, project: str, namespace: str, age_s: float
) -> tuple[Answer[tuple[float, float]], Answer[tuple[float, float]]]:
    """Return the tokens since the first start of the stack, `age_s` ago, and of the last day. `namespace`: name of its server."""
    age_h = max(1, math.ceil(age_s / HOUR_S))

    def value(kind: str, hours: int) -> float | None:
        found = prometheus(api, project, tokens_query(kind, namespace, hours, age_h))
        return float(str(as_sequence(as_mapping(found[0]).get("value"))[1])) if found else None

    def tokens(hours: int) -> Answer[tuple[float, float]]:
        match answer_of("monitoring", lambda: (value("prompt", hours), value("generation", hours))):
            case Present(value=(float(prompt), float(generation))):
                return Present((prompt, generation))
            case Unknown() as unknown:
                return unknown
            case _:
                return Unknown(
                    "Cloud Monitoring has no metrics of its first hours; metrics.enabled: true collects them"
                )

    found = each_within([partial(tokens, age_h), partial(tokens, _DAY_H)], workers=2, limit_s=_LIMIT_S)
    start, day = found
    return _answered(*start), _answered(*day)


def _answered(answer: Answer[tuple[float, float]] | None, error: BaseException | None) -> Answer[tuple[float, float]]:
    return answer or Unknown(f"Cloud Monitoring: {error}")
