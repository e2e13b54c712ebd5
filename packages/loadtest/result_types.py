"""Types of a line of `results.jsonl` and of the output of `--json`. The published JSON schema is generated from them.

Each of ttft, tpot, itl and e2el has further fields, such as `p99_ttft_ms`, which STATISTICS lists. The text of an annotation is the field's
description.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

from loadtest.measure import PERCENTILES
from loadtest.verdict import SweepVerdict

STATISTICS: Final = tuple(
    f"{key}_{name}_ms"
    for name in ("ttft", "tpot", "itl", "e2el")
    for key in ("mean", "median", "std", *(f"p{share:g}" for share in PERCENTILES))
)
"""Fields of a result in milliseconds; null without values, or if the requests do not support the percentile."""


class BandRecord(TypedDict):
    """A forecast with its uncertainty."""

    low: float
    typical: float
    high: float


class PointRecord(TypedDict):
    """The load and the lengths of a point."""

    key: Annotated[str, "Name of the point; the same load and lengths have the same name with every seed."]
    mode: Annotated[Literal["closed", "open"], "closed: requests in flight; open: requests per second."]
    level: Annotated[float, "Requests in flight, or requests per second."]
    input_tokens: int
    output_tokens: int
    requests: Annotated[int | None, "Requests to send; null if the duration ends the point."]
    least_requests: Annotated[int | None, "Requests to send even after the duration; null without a minimum."]
    duration_s: Annotated[float | None, "Seconds of sending; null if the requests end the point."]
    seed: int
    repeat: Annotated[int, "Number of the measurement, from 0."]
    requested_input_tokens: Annotated[int | None, "Requested length, if it was clamped."]
    traffic: Annotated[str, "Difference of the load from prompts of one length; empty without one."]


class FirstWaveRecord(TypedDict):
    """Latencies of the requests that filled the idle server, before the steady window."""

    requests: int
    median_ttft_ms: float | None
    max_ttft_ms: float | None
    median_tpot_ms: float | None
    median_e2el_ms: float | None


class SteadyRecord(TypedDict):
    """Metrics of the steady window. Rates count arrivals in it; latencies are of the requests sent in it."""

    start_s: float
    end_s: float
    requests: int
    requests_left_out: int
    request_throughput: float
    output_throughput: Annotated[float, "Output tokens per second."]
    mean_in_flight: float
    request_goodput: Annotated[float | None, "Good responses per second; null without --slo."]
    good_share: Annotated[float | None, "Share of the requests within every limit; null without --slo."]
    highest_percentile: Annotated[float | None, "Highest percentile that the requests support; null without one."]
    itl_quantiles_ms: Annotated[list[list[float]], "Pairs of percent and ms."]
    first_wave: FirstWaveRecord


class SaturationRecord(TypedDict):
    """Whether an open loop sent more than the server answers."""

    over: Annotated[bool | None, "null if the steady window is too short for a trend."]
    reason: str | None
    in_flight_growth_per_s: NotRequired[float]
    ttft_growth_s_per_s: NotRequired[float]
    e2e_growth_s_per_s: NotRequired[float]
    answered_per_s: NotRequired[float]


class ServerRecord(TypedDict):
    """The server's metrics during the point; null if it does not export them."""

    samples: int
    kv_cache_usage_mean: Annotated[float | None, "Share from 0 to 1."]
    kv_cache_usage_max: Annotated[float | None, "Share from 0 to 1."]
    requests_running_mean: float | None
    requests_running_max: float | None
    requests_waiting_mean: float | None
    requests_waiting_max: float | None
    prompt_tokens: float | None
    generation_tokens: float | None
    preemptions: float | None
    prefix_cache_queries: float | None
    prefix_cache_hits: float | None
    prefix_cache_hit_rate: float | None
    requests_begun: int | None
    mean_ttft_ms: float | None
    decode_s: float | None
    round_trip_ms: float | None


class ClientRecord(TypedDict):
    """The load generator's own metrics."""

    workers: int
    cpu_s: float
    cpu_s_per_1000_requests: float | None
    cpu_share_max: float
    lag_mean_ms: float
    lag_p99_ms: float
    lag_max_ms: float
    send_late_p99_ms: float
    mean_connect_ms: float | None
    stale_retries: int
    retry_after_waits: int
    run_queue_share_max: float | None
    steal_share: Annotated[float | None, "Share of the machine's CPU time that its hypervisor took; null if unknown."]
    shed: int


class UncertaintyRecord(TypedDict):
    """Errors of the time to first token, and the server's own figure."""

    lag_mean_ms: Annotated[float, "Lateness of the client's event loop."]
    lag_p99_ms: float
    lag_of_mean_ttft: float | None
    lag_of_p99_ttft: float | None
    steal_share: float | None
    first_event_mean_ms: Annotated[float | None, "From the send to the first event of any kind, as the server counts."]
    server_mean_ms: Annotated[float | None, "From the histogram of /metrics; null without."]
    bunched_share: Annotated[float | None, "Share of events that arrived together with the event before."]
    tokens_per_event: float | None


class SearchRecord(TypedDict):
    """A step of `--find slo`."""

    verdict: Literal["keeps", "misses"]
    kept: int
    missed: int
    ended_in_flight: int
    confirms: bool
    forecast_output_tok_per_s: BandRecord | None


class SessionsRecord(TypedDict):
    """Sessions of several turns."""

    begun: int
    ended_at_max_model_len: int
    turns: int
    think_time_s: float


class PointFigures(TypedDict):
    """A point as `--json` prints it, without the values per request."""

    schema_version: int
    date: Annotated[str, "End of the point, ISO 8601 in UTC."]
    point: PointRecord
    endpoint_type: str
    backend: str
    model_id: str
    tokenizer_id: str
    num_prompts: int
    request_rate: Annotated[float | Literal["inf"], "inf in a closed loop."]
    burstiness: Annotated[float | Literal["inf"], "inf for constant intervals."]
    max_concurrency: int | None
    simulated: Annotated[str | None, "Simulator; null for a real server."]
    duration: Annotated[float, "Seconds from the first intended send to the end of the last request."]
    completed: int
    failed: int
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: Annotated[float, "Complete responses per second."]
    request_goodput: Annotated[float | None, "Complete responses per second within every limit; null without --slo."]
    good_share: Annotated[float | None, "Share of the requests within every limit; null without --slo."]
    output_throughput: Annotated[float, "Output tokens per second of the whole point."]
    total_token_throughput: Annotated[float, "Prompt and output tokens per second."]
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    itl_quantiles_ms: Annotated[list[list[float]], "Pairs of percent and ms."]
    steady: SteadyRecord | None
    saturation: SaturationRecord | None
    errors_by_kind: dict[str, int]
    error_examples: dict[str, str]
    usd_per_million_output_tokens: float | None
    server: ServerRecord
    client: ClientRecord
    ttft_uncertainty: UncertaintyRecord
    traffic: Annotated[dict[str, Any], "Definition of the load."]
    image_tokens: NotRequired[int]
    audio_tokens: NotRequired[int]
    sessions: NotRequired[SessionsRecord]
    search: NotRequired[SearchRecord]
    valid: bool
    invalid_reasons: list[str]
    notes: list[str]
    input_lens_source: Literal["tokenize", "usage"]
    forecast: Annotated[dict[str, BandRecord] | None, "Planned metrics by their names; null without a forecast."]


class ResultLine(PointFigures):
    """A line of results.jsonl."""

    ttfts: Annotated[list[float], "Seconds, one value per complete response."]
    e2els: Annotated[list[float], "Seconds, one value per complete response."]
    input_lens: list[int]
    output_lens: list[int]
    start_times: Annotated[list[float], "Intended send times in seconds from the start of the point."]


class LeftOutRecord(TypedDict):
    """A point that was left out before it ran."""

    key: str
    reason: str


class SweepOutput(TypedDict):
    """The output of `--json`."""

    schema_version: int
    verdict: SweepVerdict | None
    ending: Literal["done", "interrupted", "server gone", "unreachable", "client failed"]
    out: str
    simulated: str | None
    planned: int
    stored: int
    invalid: int
    failing: int
    empty: int
    findings: Annotated[list[str], "Why points are not valid, one sentence for each reason."]
    found: Annotated[Mapping[str, Any] | None, "Result of --find slo."]
    left_out: list[LeftOutRecord]
    files: list[str]
    points: list[PointFigures]
