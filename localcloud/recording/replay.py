"""Sends the requests of a recording to a local cloud, at the recorded times on its clock, and compares the answers."""

import asyncio
import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, cast
from urllib.parse import parse_qs, urlencode, urlsplit

import aiohttp
from yarl import URL

from localcloud.json_values import JsonObject, as_object
from localcloud.recording.differences import Difference, RecordingComparison, Report, shown
from localcloud.recording.recordings import RecordedExchange, Recording
from localcloud.recording.states import (
    RUNNING,
    STATE_FIELDS,
    is_operation,
    is_order_within,
    is_read,
    order_of,
    polls,
    state_of,
)
from localcloud.rest.discovery import document_for
from localcloud.world.cloud import Cloud

_STEP_S: Final = 2.0
"""Simulated seconds between two reads of what changes its state; the shortest state of the local cloud lasts 5 s."""
_MOST_STEPS: Final = 2000
"""Steps for one gap between two recorded requests; in a longer one the steps are longer."""
_MOST_CONTENT_BYTES: Final = 1 << 16
"""An upload is replayed with at most so many zero bytes."""
_ANSWER_LIMIT_S: Final = 120.0
_ERRORS_FROM: Final = 400
_LEAST_LEARNED: Final = 4
"""Characters. A shorter value that the server chose would match by chance."""
_TOKEN_LIFE_S: Final = 24 * 3600
_SPLIT: Final = re.compile(r"([/:?&=@, ])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long to wait for a state that the recording shows: simulated seconds, and real ones for processes that start."""

    simulated_s: float = 900.0
    real_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the local cloud answered."""

    status: int
    body: Any
    location: str = ""

    @property
    def state(self) -> str:
        """Return the state that the answer shows."""
        return state_of(self.status, self.body)


@dataclass(slots=True, kw_only=True)
class _Watch:
    """A group of reads: the states that were seen here, and the last answer in each."""

    last: int
    states: list[str] = field(default_factory=list[str])
    answers: dict[str, Answer] = field(default_factory=dict[str, Answer])
    is_open: bool = False

    def see(self, answer: Answer) -> None:
        self.states.append(answer.state)
        self.answers[answer.state] = answer


class Replay:
    """One replay of a recording."""

    def __init__(self, cloud: Cloud, recording: Recording, session: aiohttp.ClientSession, limits: Limits) -> None:
        self._cloud = cloud
        self._session = session
        self._token = cloud.tokens.issue_access_token(cloud.operator, lifetime_s=_TOKEN_LIFE_S)
        self._limits = limits
        self._exchanges = recording.exchanges
        self._speed = recording.speed
        self._begun_s = cloud.timeline.simulated_s()
        self._first = recording.exchanges[0].time if recording.exchanges else None
        self._map: dict[str, str] = {}
        self._written: list[str] = []
        self.report = Report()
        self._group_of = polls(recording.exchanges)
        self._groups: dict[int, _Watch] = {}
        for number, first in self._group_of.items():
            self._groups.setdefault(first, _Watch(last=number)).last = number
        self._changing = {first for first in self._groups if len(order_of(self._recorded_states(first))) > 1}

    async def run(self) -> Report:
        """Replay everything and return the report."""
        for number, exchange in enumerate(self._exchanges):
            await self._advance_to(number, exchange)
            reason = self._left_out(exchange)
            if reason is not None:
                self.report.leave_out(reason)
                continue
            answer = await self._send(exchange)
            self.report.count(method_of(exchange))
            if is_read(exchange):
                await self._read(number, exchange, answer)
            else:
                await self._changed(exchange, answer)
                self._open_watches(number)
        return self.report

    # Time

    async def _advance_to(self, number: int, exchange: RecordedExchange) -> None:
        """Bring the clock to the time of a request; on the way, read what changes its state."""
        if self._first is None:
            return
        waits = exchange.duration_s if exchange.path.endswith("/wait") or exchange.path.endswith(":wait") else 0.0
        due_s = ((exchange.time - self._first).total_seconds() + waits) * self._speed
        gap_s = self._begun_s + due_s - self._cloud.timeline.simulated_s()
        watched = [first for first, watch in self._groups.items() if watch.is_open and watch.last >= number]
        if not watched:
            self._advance(gap_s)
            return
        step_s = max(_STEP_S, gap_s / _MOST_STEPS)
        while gap_s > 0:
            self._advance(min(step_s, gap_s))
            for first in watched:
                self._groups[first].see(await self._send(self._exchanges[first]))
            gap_s = self._begun_s + due_s - self._cloud.timeline.simulated_s()

    def _advance(self, seconds: float) -> None:
        if seconds > 0:
            self._cloud.timeline.advance(seconds)
            self._cloud.changed.set()

    def _open_watches(self, number: int) -> None:
        """Begin to read what changes its state from now on: groups of reads whose first one comes before the next change of the same path."""
        changed = self._exchanges[number].path.partition(":")[0]
        for first in self._changing:
            watch = self._groups[first]
            if first > number and not watch.is_open and self._exchanges[first].path.startswith(changed):
                between = self._exchanges[number + 1 : first]
                watch.is_open = not any(
                    not is_read(each) and self._exchanges[first].path.startswith(each.path.partition(":")[0])
                    for each in between
                )

    # Reads

    def _recorded_states(self, first: int) -> list[str]:
        members = [number for number, group in self._group_of.items() if group == first]
        return [state_of(self._exchanges[number].status, self._exchanges[number].response) for number in members]

    async def _read(self, number: int, exchange: RecordedExchange, answer: Answer) -> None:
        first = self._group_of[number]
        watch = self._groups[first]
        watch.is_open = first in self._changing
        watch.see(answer)
        wanted = state_of(exchange.status, exchange.response)
        if exchange.response is None and exchange.response_content is None and answer.status == exchange.status:
            self._compare(exchange, answer)
            return
        if watch.states[-1] != wanted and self._existed_before(exchange, watch.states[-1]):
            self.report.leave_out("reads of what existed before the recording began")
            return
        if number == watch.last:
            await self._await_state(exchange, watch, wanted)
            self._compare_states(exchange, watch, wanted, self._recorded_states(first))
        if wanted in watch.answers:
            self._compare(exchange, watch.answers[wanted])

    async def _await_state(self, exchange: RecordedExchange, watch: _Watch, wanted: str) -> None:
        """Read until the local cloud shows the recorded state or the limits are over."""
        began, begun_s = monotonic(), self._cloud.timeline.simulated_s()
        while watch.states[-1] != wanted and monotonic() - began < self._limits.real_s:
            passed_s = self._cloud.timeline.simulated_s() - begun_s
            if passed_s < self._limits.simulated_s:
                self._advance(_STEP_S)
            elif watch.states[-1] not in _MOVING and not _is_moving(watch.states[-1]):
                return
            await asyncio.sleep(0.01)
            watch.see(await self._send(exchange))

    def _existed_before(self, exchange: RecordedExchange, here: str) -> bool:
        """Tell if something was read that no earlier change names, neither in its request nor in its answer."""
        if not 0 < exchange.status < _ERRORS_FROM or here != "404":
            return False
        name = re.escape(exchange.path.rpartition("/")[2].partition(":")[0])
        return not any(re.search(rf"(?<![\w-]){name}(?![\w-])", text) for text in self._written)

    def _compare_states(self, exchange: RecordedExchange, watch: _Watch, wanted: str, recorded: list[str]) -> None:
        method, where = method_of(exchange), exchange.path
        left, right = order_of(recorded), order_of(watch.states)
        if watch.states[-1] != wanted:
            what = "status" if exchange.status >= _ERRORS_FROM or watch.states[-1].isdigit() else "state"
            self.report.add(
                Difference(
                    method=method, what=what, where=where, recorded=wanted or "200", here=watch.states[-1] or "200"
                )
            )
        elif not is_order_within(left, right):
            what = "order" if set(left) <= set(right) else "state"
            self.report.add(
                Difference(method=method, what=what, where=where, recorded=" > ".join(left), here=" > ".join(right))
            )

    # Changes

    async def _changed(self, exchange: RecordedExchange, answer: Answer) -> None:
        if exchange.status < _ERRORS_FROM:
            parts = (exchange.path, exchange.query, exchange.request, exchange.response)
            self._written.append(json.dumps(parts, default=dict))
        self._compare(exchange, answer)
        recorded = as_object(exchange.response)
        if is_operation(recorded) and state_of(exchange.status, recorded) != RUNNING and answer.state == RUNNING:
            # Nobody polls an operation that was done at once; later requests rely on it.
            name = str(as_object(answer.body).get("selfLink") or as_object(answer.body).get("name"))
            await self._await_operation(exchange, name)

    async def _await_operation(self, exchange: RecordedExchange, name: str) -> None:
        api, _, version = exchange.path.lstrip("/").partition("/")
        path = f"/{api}/{urlsplit(name).path.lstrip('/').removeprefix(f'{api}/{api}/')}"
        if "://" not in name:
            path = f"/{api}/{version.partition('/')[0]}/{name}"
        elif api == "compute":
            path = "/compute/compute/" + urlsplit(name).path.partition("/compute/")[2].removeprefix("compute/")
        began, begun_s = monotonic(), self._cloud.timeline.simulated_s()
        while monotonic() - began < self._limits.real_s:
            answer = await self._request("GET", path, {}, None, {})
            if answer.state != RUNNING:
                return
            if self._cloud.timeline.simulated_s() - begun_s < self._limits.simulated_s:
                self._advance(_STEP_S)
            await asyncio.sleep(0.01)

    def _compare(self, exchange: RecordedExchange, answer: Answer) -> None:
        """Compare status and body of one answer. Of a change, what follows the state is compared by the reads."""
        method = method_of(exchange)
        if exchange.status != answer.status:
            recorded = str(exchange.status) if exchange.status else "no answer"
            detail = shown(as_object(as_object(answer.body).get("error")).get("message", ""))
            here = f"{answer.status} {detail}".strip()
            self.report.add(Difference(method=method, what="status", where=exchange.path, recorded=recorded, here=here))
            return
        if exchange.response_content is not None:
            return
        if exchange.location and answer.location:
            self._learn_upload(exchange.location, answer.location)
        body = as_object(answer.body)
        timed = (
            STATE_FIELDS
            if not is_read(exchange) and (is_operation(body) or body.get("reconciling"))
            else frozenset[str]()
        )
        comparison = RecordingComparison(method=method, translate=self._translate, learn=self._learn)
        for difference in comparison.answers(exchange.response, answer.body, timed):
            self.report.add(difference)

    # Requests

    def _left_out(self, exchange: RecordedExchange) -> str | None:
        if exchange.range is not None and exchange.status == 308:  # noqa: PLR2004 - HTTP: the upload goes on
            return "parts of uploads, whose content is not kept"
        if "/batch/" in exchange.path:
            return "batches of requests, which are not kept"
        return None

    async def _send(self, exchange: RecordedExchange) -> Answer:
        query = {key: self._translated(value) for key, value in exchange.query.items()}
        headers: dict[str, str] = {}
        data: bytes | None = None
        if exchange.request_content is not None:
            content = bytes(min(exchange.request_content.bytes, _MOST_CONTENT_BYTES))
            headers["Content-Type"] = "application/octet-stream"
            data = content
            if query.get("uploadType") == "multipart":
                headers["Content-Type"] = "multipart/related; boundary=replay"
                data = _multipart(_without_checksums(self._translated(exchange.request)), content)
        elif exchange.request is not None:
            headers["Content-Type"] = "application/json"
            body = self._translated(exchange.request)
            data = json.dumps(_without_checksums(body) if "/upload/" in exchange.path else body).encode()
        return await self._request(exchange.method, self._translate(exchange.path), query, data, headers)

    async def _request(
        self, method: str, path: str, query: Mapping[str, Any], data: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        url = f"{self._cloud.base_url}{path}"
        if query:
            url += "?" + urlencode(query, doseq=True)
        timeout = aiohttp.ClientTimeout(total=_ANSWER_LIMIT_S)
        try:
            async with self._session.request(
                method,
                URL(url, encoded=True),
                data=data,
                headers={"Authorization": f"Bearer {self._token}", **headers},
                allow_redirects=False,
                timeout=timeout,
            ) as response:
                text = await response.read()
                body: Any = None
                with contextlib.suppress(ValueError):
                    body = json.loads(text)
                return Answer(status=response.status, body=body, location=response.headers.get("Location", ""))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return Answer(status=0, body=None)

    # What the servers chose

    def _learn(self, recorded: str, here: str) -> None:
        if len(recorded) < _LEAST_LEARNED:
            return
        self._map[recorded] = here
        if "/" in recorded and "/" in here and "://" not in recorded:
            self._map[recorded.rpartition("/")[2]] = here.rpartition("/")[2]

    def _learn_upload(self, recorded: str, here: str) -> None:
        left, right = (parse_qs(urlsplit(text).query).get("upload_id", [""])[0] for text in (recorded, here))
        if left and right:
            self._map[left] = right

    def _translate(self, text: str) -> str:
        """Return a text with what the recorded server chose replaced by what this one chose."""
        if text in self._map:
            return self._map[text]
        return "".join(self._map.get(part, part) for part in _SPLIT.split(text))

    def _translated(self, value: object) -> Any:  # noqa: ANN401 - any JSON value
        if isinstance(value, dict):
            return {key: self._translated(item) for key, item in cast("JsonObject", value).items()}
        if isinstance(value, list):
            return [self._translated(item) for item in cast("list[object]", value)]
        return self._translate(value) if isinstance(value, str) else value


_MOVING: Final = frozenset({RUNNING, "reconciling", "404", "403"})


def _is_moving(state: str) -> bool:
    """Tell if a state is on the way to another, as its name says."""
    return state.endswith("ING") or state == "WAITING_FOR_RESOURCES"


def _without_checksums(metadata: JsonObject) -> JsonObject:
    """Return an object's metadata for content that is not the recorded one."""
    return {key: value for key, value in as_object(metadata).items() if key not in {"crc32c", "md5Hash", "size"}}


def _multipart(metadata: object, content: bytes) -> bytes:
    head = b"--replay\r\nContent-Type: application/json\r\n\r\n" + json.dumps(metadata).encode()
    return head + b"\r\n--replay\r\nContent-Type: application/octet-stream\r\n\r\n" + content + b"\r\n--replay--\r\n"


def method_of(exchange: RecordedExchange) -> str:
    """Return the id of the method that a request calls, such as `run.projects.locations.services.create`; else verb and path."""
    api, _, path = exchange.path.lstrip("/").partition("/")
    verb = exchange.method
    for prefix in ("upload/", "resumable/upload/", "download/"):
        if api == "storage" and path.startswith(prefix):
            path = path.removeprefix(prefix)
            verb = "POST" if "upload" in prefix else "GET"
    document = document_for(api, path)
    found = None if document is None else document.match(verb, path)
    return f"{exchange.method} {exchange.path}" if found is None else found[0].id
