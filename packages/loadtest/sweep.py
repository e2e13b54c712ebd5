"""Run of a sweep, point by point. Each point is stored when it finishes."""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final, Literal, TypeAlias

from loadtest.client.json_values import as_mapping
from loadtest.client.openai import OpenAIClient, ServerError
from loadtest.client.proxy import HttpProxy, proxy_of
from loadtest.endpoint import Endpoint
from loadtest.errors import NotReachedError, SweepError
from loadtest.generator.load import Share
from loadtest.generator.pool import (
    WorkerError,
    WorkerPool,
    client_machine,
    open_files_limit,
    usable_cores,
    workers_for,
)
from loadtest.measure import SCHEMA_VERSION, has_too_many_failures, point_text
from loadtest.progress import Reporter
from loadtest.results import point_result
from loadtest.served_model import ServerInfo, count_by_tokenizer, count_by_usage, inspect_server, watching
from loadtest.settings import ForecastBand, SweepSettings, warm_up_requests
from loadtest.steady import output_rates
from loadtest.store import ResultStore, open_store, read_run
from loadtest.traffic.points import Point, Sweep, beyond_cache, plan_points, planned_s, point_seed
from loadtest.traffic.prepare import PreparedTraffic, prepare_traffic
from loadtest.traffic.prompts import Calibration, Recipe, calibrate, fit_recipe

RECOVERY_LIMIT_S: Final = 30.0
"""Time that a server which stopped responding has to come back."""
WARM_UP_TOKENS: Final = 16
WARM_UP_INDEX: Final = 1 << 40
"""First index of warm-up prompts, so no measured prompt is in the cache."""
SATURATED_GAIN: Final = 1.05
"""Closed loops: the server is saturated if two consecutive loads gain less than this factor in throughput."""
FILES_BESIDE: Final = 64
"""Open files of a process other than its streams: pipes, modules, the event loop."""

Ending = Literal["done", "interrupted", "server gone", "unreachable", "client failed"]
"""`server gone`: the server stopped responding. `unreachable`: the connection to it was lost, which is not a server problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOutcome:
    """Outcome of a sweep."""

    ending: Ending
    detail: str
    stored: int
    """Points in the folder."""
    planned: int
    empty: int
    """Stored points without a single complete response."""
    invalid: int
    """Stored points with invalid metrics."""
    invalid_points: tuple[tuple[str, str], ...]
    """Each stored point with invalid metrics, and its reason; a point with several reasons has a row for each."""
    failing: int
    """Stored points with more failures than `--max-failed` allows."""
    left_out: tuple[Mapping[str, str], ...]
    """Points that were not measured: `key` and `reason`."""
    simulated: str | None


class _GoneError(Exception):
    """The server stopped responding and did not come back."""

    def __init__(self, message: str, ending: Ending = "server gone") -> None:
        super().__init__(message)
        self.ending: Ending = ending


@dataclass(slots=True, kw_only=True)
class _SweepRun:
    """State shared by the points of one sweep."""

    settings: SweepSettings
    endpoint: Endpoint
    client: OpenAIClient
    pool: WorkerPool
    info: ServerInfo
    calibration: Calibration
    reporter: Reporter
    prepared: PreparedTraffic
    proxy: HttpProxy | None = None
    ignore_eos: bool = True


def run_config(settings: SweepSettings, sweep: Sweep) -> dict[str, Any]:
    """Return the settings for `run.json`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "stack": settings.stack,
        # The address of a deployment may change with each run, so its name identifies the server.
        "url": f"stack {settings.stack}" if settings.stack else settings.url,
        "model": settings.model,
        "endpoint": "/v1/chat/completions" if settings.chat else "/v1/completions",
        "concurrency": list(sweep.concurrency),
        "request_rate": list(sweep.request_rate),
        "input_tokens": list(sweep.input_tokens),
        "output_tokens": list(sweep.output_tokens),
        "requests": sweep.requests,
        "duration_s": sweep.duration_s,
        "repeats": sweep.repeats,
        "seed": sweep.seed,
        "slo": asdict(settings.objective) if settings.objective else None,
        "poisson": settings.poisson,
        "max_failed": settings.max_failed,
        "usd_per_hour": settings.usd_per_hour,
        "extra_body": dict(settings.extra_body),
        "roofline": asdict(settings.roofline) if settings.roofline else None,
        "traffic": sweep.traffic.as_json(),
        "hosting": asdict(settings.hosting),
    }


def seed_of(settings: SweepSettings, seed: int | None) -> int:
    """Return the given seed, the seed of the sweep to continue, or a new one, because earlier prompts may be in the server's cache."""
    if seed is not None:
        return seed
    before = read_run(settings.out).get("seed") if settings.resume else None
    return before if isinstance(before, int) else secrets.randbelow(1 << 32)


Run: TypeAlias = Callable[[Coroutine[Any, Any, "SweepOutcome"]], "SweepOutcome"]
"""Runs a coroutine. An interrupt cancels it and raises KeyboardInterrupt after it has finished, like `asyncio.run`."""


def run_sweep(
    settings: SweepSettings,
    sweep: Sweep,
    endpoint: Endpoint,
    reporter: Reporter,
    *,
    run: Run = asyncio.run,
) -> SweepOutcome:
    """Run a sweep and store it in its folder. Complete points are kept however the sweep ends.

    Raises SweepError if it cannot start, because the server is not reachable, the model is wrong, or the folder is in use.
    """
    state = _SweepCounts(max_failed=settings.max_failed)
    try:
        return run(_sweep(settings, sweep, endpoint, reporter, state))
    except KeyboardInterrupt:
        if state.planned:  # SIGTERM may arrive after a point was written but before it was counted
            state.results |= ResultStore(settings.out).done()
        return state.outcome("interrupted", "interrupted; the current point was not kept")


@dataclass(slots=True)
class _SweepCounts:
    """Counts that survive an interruption."""

    planned: int = 0
    simulated: str | None = None
    max_failed: float = 0.0
    results: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    left_out: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def outcome(self, ending: Ending, detail: str) -> SweepOutcome:
        return SweepOutcome(
            ending=ending,
            detail=detail,
            stored=len(self.results),
            planned=self.planned,
            empty=sum(result["completed"] == 0 for result in self.results.values()),
            invalid=sum(not result["valid"] for result in self.results.values()),
            invalid_points=tuple(
                (point_text(result["point"]), str(reason))
                for result in self.results.values()
                for reason in result["invalid_reasons"]
            ),
            failing=sum(has_too_many_failures(result, self.max_failed) for result in self.results.values()),
            left_out=tuple(self.left_out),
            simulated=self.simulated,
        )


async def _sweep(
    settings: SweepSettings, sweep: Sweep, endpoint: Endpoint, reporter: Reporter, state: _SweepCounts
) -> SweepOutcome:
    try:
        proxy = proxy_of(endpoint.base_url)  # for all requests, the load included
    except ValueError as error:
        raise SweepError(str(error)) from None
    async with (
        OpenAIClient(endpoint.base_url, endpoint.headers) as client,
        WorkerPool() as pool,
    ):
        try:
            info = await inspect_server(client, settings.model, chat=settings.chat)
        except ServerError as error:
            unreached = endpoint.not_reached(error)
            if unreached:
                raise NotReachedError(unreached) from None
            raise SweepError(
                f"Cannot measure {client.base_url}: {str(error).rstrip('.')}. Check that the server runs at this address."
            ) from None
        state.simulated = info.simulated
        config = run_config(replace(settings, model=info.model), sweep)
        with open_store(settings.out, config, resume=settings.resume) as store:
            calibration = await _calibration(client, info, chat=settings.chat)
            prepared = prepare_traffic(sweep, info, chat=settings.chat)
            points, planned_notes = plan_points(prepared.sweep, prepared.limit)
            notes = [*prepared.notes, *planned_notes]
            if proxy is not None:
                notes.append(
                    f"all requests went through the proxy {proxy.name} of the environment, whose time is included in the metrics"
                )
            state.planned, state.results = len(points), store.done()
            _check_open_file_limit(points, settings)
            found = {"server": asdict(info), "notes": notes, "client_machine": client_machine()}
            store.write_run(config | found)
            for note in notes:
                reporter.line(note)
            todo = [point for point in points if point.key not in state.results]
            if len(todo) < len(points):
                reporter.line(f"{len(points) - len(todo)} of {len(points)} points are already measured")
            run = _SweepRun(
                settings=settings,
                endpoint=endpoint,
                client=client,
                pool=pool,
                info=info,
                calibration=calibration,
                reporter=reporter,
                prepared=prepared,
                proxy=proxy,
            )
            return await _all_points(run, store, todo, state)


def _expected_figures(run: _SweepRun, point: Point) -> dict[str, dict[str, float]] | None:
    """Return the expected metrics of a point by their names in the result, or None if unknown."""
    forecast = run.settings.forecast
    bands: Mapping[str, ForecastBand] = {} if forecast is None else forecast.figures(run.prepared.traffic, point)
    return {name: band.rounded(4) for name, band in bands.items()} or None


def _check_open_file_limit(points: list[Point], settings: SweepSettings) -> None:
    """Reject more streams than the system allows open files. Raises SweepError."""
    limit = open_files_limit()
    streams = max(point.concurrency or 0 for point in points)
    workers = settings.workers or workers_for(streams, usable_cores())
    if limit is not None and -(-streams // workers) + FILES_BESIDE > limit:
        raise SweepError(
            f"concurrency {streams} needs more open files than the {limit} that the system allows per process. Raise `ulimit -Hn` or use more --workers."
        )


async def _calibration(client: OpenAIClient, info: ServerInfo, *, chat: bool) -> Calibration:
    try:
        if info.has_tokenizer:
            return await calibrate(lambda prompt: count_by_tokenizer(client, info.model, prompt, chat=chat), "tokenize")
        return await calibrate(lambda prompt: count_by_usage(client, info.model, prompt, chat=chat), "usage")
    except ServerError as error:
        raise SweepError(f"The server's token count is not available: {error}") from None


async def _all_points(run: _SweepRun, store: ResultStore, todo: list[Point], state: _SweepCounts) -> SweepOutcome:
    saturation = _Saturation()
    for result in state.results.values():
        point = Point(**{name: value for name, value in result["point"].items() if name != "key"})
        saturation.learn(point, result)
    run.reporter.begin(len(todo))
    tokens = run.info.kv_cache_tokens or run.settings.kv_cache_tokens
    limit_s = run.prepared.sweep.limit_s
    end_s = None if limit_s is None else asyncio.get_running_loop().time() + limit_s
    try:
        for point in todo:
            beyond = beyond_cache(point, run.prepared.traffic, tokens)
            reason = beyond if run.prepared.sweep.within_cache else ""
            if run.settings.stop_when_saturated and saturation.over(point):
                reason = "the server is saturated at a lower load"
            result = None if reason else await _measured_until(run, point, end_s)
            if result is None:
                reason = (
                    reason or f"it does not end in the time of the preset; --concurrency {point.level:g} measures it"
                )
                run.reporter.skipped(point, reason)
                state.left_out.append({"key": point.key, "reason": reason})
                store.write_run(store.run | {"left_out": state.left_out})
                continue
            if beyond:
                result["notes"].append(beyond)
            store.append(result)
            state.results[point.key] = result
            saturation.learn(point, result)
            run.reporter.done(point, result)
    except _GoneError as error:
        return state.outcome(error.ending, str(error))
    except WorkerError as error:
        return state.outcome("client failed", str(error))
    return state.outcome("done", "")


class _Saturation:
    """Detector of loads that no longer increase the throughput."""

    def __init__(self) -> None:
        self._results: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
        self._flat: dict[tuple[object, ...], int] = {}

    @staticmethod
    def _series(point: Point) -> tuple[object, ...]:
        return (point.mode, point.input_tokens, point.output_tokens, point.repeat)

    def over(self, point: Point) -> bool:
        return self._flat.get(self._series(point), 0) >= 2  # noqa: PLR2004 - twice in a row

    def learn(self, point: Point, result: Mapping[str, Any]) -> None:
        series = self._series(point)
        results = self._results.setdefault(series, [])
        results.append(result)
        if point.request_rate is not None:
            # The throughput of a short open loop is always below its rate, because the last responses come late.
            flat = bool(as_mapping(result.get("saturation")).get("over"))
        else:
            *earlier, speed = output_rates(results)
            flat = speed < max(earlier, default=0.0) * SATURATED_GAIN
        self._flat[series] = self._flat.get(series, 0) + 1 if flat else 0


async def _measured_until(run: _SweepRun, point: Point, end_s: float | None) -> dict[str, Any] | None:
    """Measure one point. Return None if it does not end before `end_s` by the forecast or by the event loop's clock."""
    if end_s is not None:
        output = (_expected_figures(run, point) or {}).get("output_throughput")
        expected_s = 0.0 if output is None else planned_s(point, output["low"])
        if asyncio.get_running_loop().time() + expected_s > end_s:
            return None
    run.reporter.start(point)
    deadline = asyncio.timeout_at(end_s)
    try:
        async with deadline:
            return await _measured(run, point)
    except TimeoutError:
        if not deadline.expired():  # a limit inside the measurement
            raise
        return None


async def _measured(run: _SweepRun, point: Point) -> dict[str, Any]:
    """Measure one point. If the server stops responding and comes back, measure it again from the start."""
    for attempt in (0, 1):
        seeded = replace(point, seed=point_seed(point.seed, point.key, attempt)) if attempt else point
        result, gone = await _measure(run, seeded)
        if not gone:
            result["forecast"] = _expected_figures(run, point)
            if attempt:
                result["notes"].append(
                    "the server stopped responding during the point and came back; the point was measured again from its start"
                )
            return result
        lost = await _lost(run)
        if lost is not None:
            unreached = run.endpoint.not_reached(lost)
            if unreached:
                raise _GoneError(f"{unreached} Point {point.key} was not kept", "unreachable")
            break
        run.reporter.line(f"{point.text}: the server stopped responding and came back, measuring the point again")
    raise _GoneError(f"the server stopped responding at point {point.key}, which was not kept")


async def _lost(run: _SweepRun) -> ServerError | None:
    """Wait until the server is healthy, at most RECOVERY_LIMIT_S. Return None then, or else the error of the last probe."""
    last = ServerError("no probe has finished")
    try:
        async with asyncio.timeout(RECOVERY_LIMIT_S):
            while True:
                try:
                    answer = await run.client.get("/health", limit_s=5.0)
                    if answer.status == HTTPStatus.OK:
                        return None
                    last = ServerError(f"/health returned {answer.status}")
                except ServerError as error:
                    last = error
                await asyncio.sleep(0.5)
    except TimeoutError:
        return last


async def _measure(run: _SweepRun, point: Point) -> tuple[dict[str, Any], bool]:
    """Measure one point. The second value is True if the server stopped responding, which invalidates the metrics."""
    recipe, counted = await _recipe(run, point)
    if not await _warm_up(run, point, recipe):
        return {}, True
    shares = _shares(run, point, recipe)
    async with watching(run.client, enabled=run.info.has_metrics) as watch:
        results = await run.pool.run(shares, limit_s=run.settings.point_timeout_s, progress=run.reporter.progress)
    if any(result.gave_up for result in results):
        return {}, True
    result = point_result(
        run.settings,
        run.info,
        point,
        results,
        watch,
        prepared=run.prepared,
        ignore_eos=run.ignore_eos,
    )
    result["input_lens_source"] = run.calibration.source
    if counted != point.input_tokens and not run.prepared.varied:
        result["notes"].append(
            f"prompts of exactly {point.input_tokens} input tokens are not possible, because the server counts {counted}"
        )
    if result["completed"] == 0 and await _lost(run) is not None:
        return {}, True
    return result, False


async def _recipe(run: _SweepRun, point: Point) -> tuple[Recipe, int]:
    chat = run.settings.chat

    async def count(prompt: str) -> int:
        if run.info.has_tokenizer:
            return await count_by_tokenizer(run.client, run.info.model, prompt, chat=chat)
        return run.calibration.overhead_tokens + round(len(prompt.split()) * run.calibration.tokens_per_word)

    try:
        return await fit_recipe(run.calibration, count, input_tokens=point.input_tokens, seed=point.seed)
    except ServerError:
        # The server does not respond; the warm-up reports that.
        words = run.calibration.words_for(point.input_tokens)
        return Recipe(words=run.calibration.words, count=words, seed=point.seed), point.input_tokens


async def _warm_up(run: _SweepRun, point: Point, recipe: Recipe) -> bool:
    """Send uncounted requests and find out whether the server supports `ignore_eos`. Return False if it does not respond."""
    count = warm_up_requests(run.settings, point)
    if count == 0:
        return True
    short = replace(
        point,
        output_tokens=min(point.output_tokens, WARM_UP_TOKENS),
        requests=count,
        least_requests=None,
        duration_s=None,
        mode="closed",
        level=count,
    )
    share = _shares(run, short, recipe)[0]
    traffic = share.source.traffic
    limit = short.output_tokens if traffic.output_lengths is None else WARM_UP_TOKENS
    source = replace(share.source, output_tokens=limit, traffic=replace(traffic, turns=1, output_lengths=None))
    share = replace(share, source=source, first_index=WARM_UP_INDEX, worker=0, workers=1, concurrency=count)
    (result,) = await run.pool.run([share], limit_s=run.settings.point_timeout_s, progress=lambda _done, _open: None)
    refused = [
        record for record in result.records if record.error == "http_400" and "ignore_eos" in record.error_detail
    ]
    if refused and run.ignore_eos:
        run.ignore_eos = False
        run.reporter.line("the server does not support ignore_eos: responses may be shorter than requested")
        return await _warm_up(run, point, recipe)
    return result.gave_up is None


def _sessions(requests: int | None, turns: int) -> int | None:
    return None if requests is None else -(-requests // turns)


def _shares(run: _SweepRun, point: Point, recipe: Recipe) -> list[Share]:
    settings, traffic = run.settings, run.prepared.traffic
    streams = point.concurrency or settings.max_in_flight
    expected = point.concurrency or int(min(settings.max_in_flight, 16 * point.level))
    workers = settings.workers or workers_for(expected, usable_cores())
    workers = max(1, min(workers, streams))
    source = run.prepared.source(point, recipe, run.calibration)
    body: dict[str, object] = {
        "model": run.info.model,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"ignore_eos": True} if run.ignore_eos else {}),
        **settings.extra_body,
    }
    return [
        Share(
            url=run.endpoint.base_url,
            path="/v1/chat/completions" if settings.chat else "/v1/completions",
            headers=dict(run.endpoint.headers()),
            body=body,
            source=source,
            first_index=0,
            worker=worker,
            workers=workers,
            concurrency=streams // workers + (worker < streams % workers),
            rate_per_s=point.request_rate,
            poisson=settings.poisson,
            requests=_sessions(point.requests, traffic.turns),
            least_requests=_sessions(point.least_requests, traffic.turns),
            duration_s=point.duration_s,
            request_timeout_s=settings.request_timeout_s,
            stall_timeout_s=settings.stall_timeout_s,
            proxy=run.proxy,
        )
        for worker in range(workers)
    ]
