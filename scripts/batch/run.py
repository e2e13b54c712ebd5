"""Run a batch: check everything, send the requests without a response, and store each response as it arrives."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Final, cast

from contracts.errors import CommandRefusedError, ScriptError
from contracts.exit_codes import ExitCode
from contracts.fields import camel_case
from contracts.outputs import StackOutputs
from contracts.plain_text import for_terminal
from engine.children import run_async
from engine.stack import stack_outputs
from loadtest.client.openai import ServerAnswer
from scripts.batch.options import BatchLoadOptions, BatchOptions, BatchServerOptions
from scripts.batch.progress import BatchProgress
from scripts.batch.report import BatchReport, FailedRequest, json_of, rows
from scripts.batch.requests_file import BatchFile, BatchLine, open_requests
from scripts.batch.results_file import ResultsFile, open_results
from scripts.batch.server import BatchServer, Unanswered
from scripts.cli.access import ServerAccess, open_stack_access, open_url_access
from scripts.cli.command import say
from scripts.cli.measured.planned import deployed_plan
from scripts.cli.tables import console, paragraph
from scripts.connect.face import Upstream

URL_CONCURRENCY: Final = 32
"""Concurrent requests to a server whose settings are unknown."""
_FAILURES_IN_A_ROW: Final = 10
"""Requests without a response, beyond those in flight, after which the run stops."""
_MAX_NUM_SEQS: Final = camel_case("max_num_seqs")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTarget:
    """The server, its price and the requests that it runs at once."""

    opener: Callable[[], AbstractContextManager[ServerAccess]]
    concurrency: int
    usd_per_hour: float | None


def run_batch(options: BatchOptions) -> ExitCode:
    """Run the command. Raises CommandRefusedError before the first request, and KeyboardInterrupt after printing the summary."""
    server = options.server
    if (server.stack is None) == (server.url is None):
        raise CommandRefusedError("Pass either --stack NAME or --url URL.")
    with open_requests(options.input) as batch, open_results(options.output, batch) as results:
        target = _target(server, options.load)
        report = BatchReport(
            input=options.input,
            output=options.output,
            requests=len(batch.lines),
            stored_before=len(results.statuses),
            refused_before=results.refused,
            usd_per_hour=target.usd_per_hour,
        )
        if report.left:
            _send_all(options, target, batch, results, report)
    _print(report, as_json=options.as_json)
    if report.stopped == "interrupted":
        raise KeyboardInterrupt
    return report.exit_code


def _print(report: BatchReport, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(json_of(report)), flush=True)
        return
    out = console(sys.stdout)
    for name, text in rows(report):
        paragraph(out, for_terminal(text), prefix=f"{name:<12}")


def _target(server: BatchServerOptions, load: BatchLoadOptions) -> BatchTarget:
    if server.stack is not None:
        outputs = stack_outputs(server.stack)
        concurrency = load.concurrency or _planned_concurrency(server.stack, outputs)
        price = outputs.plan.cost.usd_per_hour if server.usd_per_hour is None else server.usd_per_hour
        return BatchTarget(opener=lambda: open_stack_access(outputs), concurrency=concurrency, usd_per_hour=price)
    if load.max_cost is not None and server.usd_per_hour is None:
        raise CommandRefusedError("--max-cost requires a price. Add --usd-per-hour.")
    url = server.url or ""
    return BatchTarget(
        opener=lambda: open_url_access(url),
        concurrency=load.concurrency or URL_CONCURRENCY,
        usd_per_hour=server.usd_per_hour,
    )


def _planned_concurrency(stack: str, outputs: StackOutputs) -> int:
    """Return max-num-seqs of all engines of all servers: as set, as planned, or a common value if the settings file has changed."""
    given = outputs.vllm.get(_MAX_NUM_SEQS)
    if isinstance(given, int):
        return given * outputs.engines
    subject = deployed_plan(stack, outputs).subject
    return URL_CONCURRENCY if subject is None else subject.resolved.max_num_seqs * outputs.engines


def _send_all(
    options: BatchOptions, target: BatchTarget, batch: BatchFile, results: ResultsFile, report: BatchReport
) -> None:
    """Send the requests. A failure after the first response ends the run with a summary; before it, it is raised."""
    upstream = Upstream(target.opener, _report)
    _report(f"connecting to {options.server.stack or options.server.url}")
    try:
        with upstream.running():
            run_async(
                _Run(
                    options=options, target=target, batch=batch, results=results, report=report, upstream=upstream
                ).all()
            )
    except KeyboardInterrupt:
        report.stopped = "interrupted"
    except ScriptError as error:
        if report.stored == report.stored_before:
            raise
        report.stopped = "failed"
        _report(str(error))


class _Run:
    """One run on one server."""

    def __init__(
        self,
        *,
        options: BatchOptions,
        target: BatchTarget,
        batch: BatchFile,
        results: ResultsFile,
        report: BatchReport,
        upstream: Upstream,
    ) -> None:
        self._load, self._target = options.load, target
        self._batch, self._results, self._report = batch, results, report
        self._server = BatchServer(
            upstream,
            _report,
            ready_limit_s=options.server.ready_timeout,
            request_limit_s=options.server.request_timeout,
        )
        self._open = self._chosen()
        self._in_a_row = 0
        self._start_s = 0.0

    async def all(self) -> None:
        """Send all requests, `concurrency` at a time."""
        report = self._report
        async with self._server as server:
            models, report.simulated = await server.ready()
            _require_models(self._batch, [model.id for model in models])
            sending = min(report.left, self._load.limit or report.left)
            concurrency = min(self._target.concurrency, sending)
            _report(f"sending {sending:,} {'request' if sending == 1 else 'requests'}, {concurrency} at a time")
            self._start_s = time.monotonic()
            with BatchProgress(report) as progress:
                progress.update()
                workers = [asyncio.create_task(self._work(progress)) for _ in range(concurrency)]
                try:
                    await asyncio.gather(*workers)
                finally:
                    report.elapsed_s = time.monotonic() - self._start_s
                    for worker in workers:
                        worker.cancel()
                    await asyncio.gather(*workers, return_exceptions=True)
            if report.stopped is None and report.left > len(report.unanswered):
                report.stopped = "limit"

    def _chosen(self) -> Iterator[BatchLine]:
        """Return the requests to send in this run."""
        stored = frozenset(self._results.statuses)
        waiting = (line for line in self._batch.lines if line.custom_id not in stored)
        return iter(islice(waiting, self._load.limit))

    async def _work(self, progress: BatchProgress) -> None:
        for line in self._open:
            answer = await self._server.send(line.path, self._batch.body(line))
            self._report.elapsed_s = time.monotonic() - self._start_s
            self._keep(line, answer)
            progress.update()
            if self._is_spent():
                return
            if isinstance(answer, Unanswered):
                await self._server.ready()

    def _keep(self, line: BatchLine, answer: ServerAnswer | Unanswered) -> None:
        """Store a response, and count it. Raises ScriptError if the server has stopped responding to any request."""
        report = self._report
        if isinstance(answer, Unanswered):
            report.unanswered.append(FailedRequest(custom_id=line.custom_id, line=line.number, reason=answer.reason))
            self._in_a_row += 1
            if self._in_a_row >= self._target.concurrency + _FAILURES_IN_A_ROW:
                raise ScriptError(f"{self._in_a_row} requests in a row got no response, the last one: {answer.reason}")
            return
        self._in_a_row = 0
        body = cast("dict[str, object]", answer.body)
        request_id = answer.headers.get("x-request-id") or str(body.get("id") or "")
        self._results.append(line.custom_id, answer.status, request_id, body)
        if answer.status != 200:  # noqa: PLR2004 - HTTP
            reason = f"HTTP {answer.status}: {answer.message}"
            report.refused.append(FailedRequest(custom_id=line.custom_id, line=line.number, reason=reason))
            return
        report.completed += 1
        usage = answer.usage
        if usage is None:
            report.without_usage += 1
        else:
            report.prompt_tokens += usage.prompt_tokens
            report.completion_tokens += usage.completion_tokens

    def _is_spent(self) -> bool:
        """Return whether the run has cost as much as allowed. Requests in flight are still stored."""
        most, usd = self._load.max_cost, self._report.usd
        if most is None or usd is None or usd < most or not self._report.left:
            return False
        self._report.stopped = "max-cost"
        return True


def _require_models(batch: BatchFile, served: list[str]) -> None:
    """Raise CommandRefusedError for a model that the server does not have."""
    for model, line in batch.models.items():
        if model not in served:
            raise CommandRefusedError(
                f"{batch.path}, line {line}: model {model!r} is not served. The server has: {', '.join(served)}. Nothing was sent."
            )


def _report(text: str) -> None:
    say("batch", text)
