"""Series on which each alert of a serving stack fires, and neighbours on which it does not; the expressions are those of the golden policies.

A part of a series is scraped every 30 seconds from its first to its last minute. A case lasts until its last minute; then its alert fires, or
does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

GOLDEN = Path(__file__).with_name("policies.golden.yaml")
"""Policies and channels by target. The product's tests write it (tests/agreement/test_alerts.py)."""
POLICIES: Mapping[str, Any] = yaml.safe_load(GOLDEN.read_text())
NAMESPACE = "gemma-x"
START_S = 1_800_000_000
"""Time of the first scrape of each case, on the grid of 30 seconds."""
Samples = Mapping[str, tuple[float, float]]
"""Samples by name, each as (first value, growth per scrape)."""


@dataclass(frozen=True)
class Rule:
    """A condition of a policy."""

    expression: str
    for_s: float


@dataclass(frozen=True, kw_only=True)
class Part:
    """Answers of one target of the collector during some minutes."""

    minutes: tuple[float, float]
    samples: Samples = field(default_factory=dict)
    up: bool | None = True
    """None: not a scrape; only the clock goes on."""
    job: str = "vllm"


def _rules() -> Mapping[tuple[str, str], Rule]:
    found: dict[tuple[str, str], Rule] = {}
    for target, declared in POLICIES.items():
        for condition in (each for policy in declared["policies"] for each in policy["conditions"]):
            query, title = condition.get("conditionPrometheusQueryLanguage"), condition["displayName"]
            if query:
                for_s = float(query["duration"].removesuffix("s"))
                found[target, title] = Rule(query["query"], for_s)
    return found


RULES = _rules()


def server(first: float, last: float, *, up: bool = True, **samples: tuple[float, float]) -> Part:
    """Return scrapes of the server."""
    return Part(minutes=(first, last), up=up, samples={_SERVER[key]: each for key, each in samples.items()})


def agent(first: float, last: float, phase: str, *, deadline: float | None = None) -> Part:
    """Return scrapes of the machine's agent. `deadline`: minute at which its run ends."""
    samples: dict[str, tuple[float, float]] = {f'gemma_serving_phase{{phase="{phase}"}}': (1, 0)}
    if deadline is not None:
        samples["gemma_serving_deadline_timestamp_seconds"] = (START_S + 60 * deadline, 0)
    return Part(minutes=(first, last), samples=samples, job="agent")


def machine(first: float, last: float, node: str) -> Part:
    """Return the metric that Google's own agent on a machine writes."""
    name = f'tpu_googleapis_com:cpu_utilization{{monitored_resource="tpu_worker",node_id="{node}"}}'
    return Part(minutes=(first, last), samples={name: (2.5, 0)}, up=None)


def service(last: float, **samples: tuple[float, float]) -> list[Part]:
    """Return the metrics that Google writes of a Cloud Run service, with its own labels."""
    return [Part(minutes=(0, last), samples={_SERVICE[key]: each for key, each in samples.items()})]


def clock(minute: float) -> Part:
    """Return a time at which nothing is scraped."""
    return Part(minutes=(minute, minute), up=None)


def engines(**samples: tuple[float, float]) -> list[Part]:
    """Return the samples of engine 1 for six minutes, beside engine 0 that has no queue and serves."""
    healthy = {"waiting": (0, 0), "running": (1, 0), "tokens": (900, 3)}
    return [
        Part(
            minutes=(0, 6),
            samples={
                f'{_SERVER[key]}{{engine="{engine}"}}': values
                for engine, given in enumerate((healthy, samples))
                for key, values in given.items()
            },
        )
    ]


_SERVER = {
    "for_capacity": 'vllm:num_requests_waiting_by_reason{reason="capacity"}',
    "deferred": 'vllm:num_requests_waiting_by_reason{reason="deferred"}',
    "waiting": "vllm:num_requests_waiting",
    "running": "vllm:num_requests_running",
    "tokens": "vllm:generation_tokens_total",
    "kv_cache": "vllm:kv_cache_usage_perc",
    "in_time": 'vllm:time_to_first_token_seconds_bucket{le="2.5"}',
    "first_tokens": "vllm:time_to_first_token_seconds_count",
    "served": 'vllm:request_success_total{finished_reason="stop"}',
    "ok": 'http_requests_total{status="2xx"}',
    "errors": 'http_requests_total{status="5xx"}',
    "restarts": "gemma_serving_restarts_total",
}
_OF = 'monitored_resource="cloud_run_revision",service_name="gemma-x"'
_SERVICE = {
    "ok": f'run_googleapis_com:request_count{{{_OF},response_code="200",response_code_class="2xx"}}',
    "unavailable": f'run_googleapis_com:request_count{{{_OF},response_code="503",response_code_class="5xx"}}',
    "billed_s": f"run_googleapis_com:container_billable_instance_time{{{_OF}}}",
}
_NO_REQUESTS: Mapping[str, tuple[float, float]] = {"served": (0, 0), "running": (0, 0)}

CASES: Mapping[tuple[str, str], Mapping[str, tuple[list[Part], list[Part]]]] = {
    ("tpu", "Not ready"): {
        "the first start": ([agent(0, 61, "starting")], [agent(0, 50, "starting"), agent(50.5, 61, "ready")]),
        "nothing reported": ([agent(0, 1, "ready"), clock(66.5)], [agent(0, 7, "ready"), clock(66.5)]),
        "no machine yet": ([server(0, 0, up=False), clock(66.5)], [clock(0), clock(66.5)]),
        # Google's metrics are up to three minutes late.
        "a machine that never reported": (
            [machine(0, 58, "gemma-x-node"), clock(61)],
            [machine(0, 61, "gemma-x-b-node")],
        ),
        "the former document serves after a failed change": (
            [agent(0, 61, "failed"), server(0, 61, up=False)],
            [agent(0, 61, "failed"), server(0, 61)],
        ),
        "the agent is gone and the server serves": (
            [Part(minutes=(0, 61), up=False, job="agent"), server(0, 61)],
            [agent(0, 61, "ready"), server(0, 61)],
        ),
        "a preemption, not the planned end of the run": (
            [agent(0, 40, "ready", deadline=60), clock(106)],
            [agent(0, 60, "ready", deadline=60), clock(126)],
        ),
        "the machine outlives its run": (
            [agent(0, 60, "ready", deadline=60), agent(60.5, 128, "ending", deadline=60)],
            [agent(0, 60, "ready", deadline=60), agent(60.5, 62, "ending", deadline=60), clock(126)],
        ),
        "the next machine after a preemption": (
            [agent(0, 10, "ready"), agent(30, 76, "loading")],
            [agent(0, 10, "ready"), agent(30, 69, "loading"), agent(69.5, 76, "ready")],
        ),
        "the next machine after a planned end never reports": (
            [agent(0, 60, "ready", deadline=60), machine(80, 141, "gemma-x-node")],
            [agent(0, 60, "ready", deadline=60), clock(141)],
        ),
    },
    ("tpu", "No tokens while requests wait"): {
        "waiting requests": (engines(waiting=(2, 0), tokens=(900, 0)), engines(waiting=(2, 0), tokens=(900, 1))),
        "running requests": (engines(running=(1, 0), tokens=(900, 0)), engines(running=(1, 0), tokens=(900, 3))),
        "a new server": (
            [server(0, 5, waiting=(2, 0), tokens=(0, 0))],
            [server(0, 4.5, waiting=(2, 0), tokens=(0, 0))],
        ),
    },
    ("tpu", "Restart loop"): {
        "three in half an hour": ([server(0, 30, restarts=(0, 0.06))], [server(0, 30, restarts=(0, 0.04))]),
    },
    ("tpu", "HTTP errors"): {
        "many requests": ([server(0, 6, ok=(0, 90), errors=(0, 10))], [server(0, 6, ok=(0, 96), errors=(0, 4))]),
        "few requests": ([server(0, 6, ok=(0, 1), errors=(0, 1.1))], [server(0, 6, ok=(0, 1), errors=(0, 0.9))]),
    },
    ("tpu", "Slow first token"): {
        "the budget burned for most of the hour, and no longer does": (
            [server(0, 65, in_time=(0, 80), first_tokens=(0, 100))],
            [
                server(0, 55, in_time=(0, 80), first_tokens=(0, 100)),
                server(55.5, 65, in_time=(8880, 100), first_tokens=(11100, 100)),
            ],
        ),
        "few requests": (
            [server(0, 65, in_time=(0, 0.2), first_tokens=(0, 0.5))],
            [server(0, 65, in_time=(0, 0.2), first_tokens=(0, 0.4))],
        ),
    },
    ("tpu", "KV cache nearly full"): {
        "for two minutes": ([server(0, 3, kv_cache=(0.95, 0))], [server(0, 3, kv_cache=(0.85, 0))]),
        "in a burst": ([server(0, 2, kv_cache=(0.95, 0))], [server(0, 1.5, kv_cache=(0.95, 0))]),
    },
    ("tpu", "Requests waiting"): {
        "with reasons": (
            [server(0, 2, for_capacity=(3, 0), waiting=(3, 0))],
            [server(0, 2, for_capacity=(0, 0), deferred=(3, 0), waiting=(3, 0))],
        ),
        "without reasons": ([server(0, 2, waiting=(3, 0))], [server(0, 2, waiting=(0, 0))]),
        "in a burst": ([server(0, 0.5, waiting=(3, 0))], [server(0, 0.5, waiting=(0, 3))]),
    },
    ("tpu", "Idle"): {
        "a request runs": (
            [server(0, 32, served=(40, 0), running=(0, 0))],
            [server(0, 32, served=(40, 0), running=(1, 0))],
        ),
        "a new server": ([server(0, 22, **_NO_REQUESTS)], [server(0, 21, **_NO_REQUESTS)]),
        "the machine is gone": (
            [server(0, 32, **_NO_REQUESTS), clock(36.5)],
            [server(0, 32, **_NO_REQUESTS), clock(37)],
        ),
        "down for a while": (
            [server(0, 9.5, **_NO_REQUESTS), server(10, 25, up=False), server(25.5, 50, **_NO_REQUESTS)],
            [
                server(0, 9.5, **_NO_REQUESTS),
                server(10, 25, up=False),
                server(25.5, 50, served=(0, 0.1), running=(0, 0)),
            ],
        ),
    },
    ("tpu", "Daily cost"): {
        "of a machine": ([server(0, 140)], [server(0, 100)]),
    },
    ("cloud-run", "Daily cost"): {
        "of a service": (service(60, billed_s=(5000, 300)), service(40, billed_s=(5000, 300))),
    },
    ("cloud-run", "Server errors"): {
        "many requests": (service(6, ok=(0, 90), unavailable=(0, 10)), service(6, ok=(0, 96), unavailable=(0, 4))),
        "few requests": (service(6, ok=(0, 1), unavailable=(0, 1.1)), service(6, ok=(0, 1), unavailable=(0, 0.9))),
    },
}
"""By target and title of a condition: the name of each case, parts on which the alert fires, and parts on which it does not."""
