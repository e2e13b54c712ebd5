"""One attempt to try an assumption: the requests and commands of a trial, and what it created.

Methods with the prefix `must_` end the trial as `unknown` if their step fails; all of them end it as `differs` if a poll or a command
before the deciding one shows that the assumption is false.
"""

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from localcloud.json_values import as_list, as_object
from localcloud.trials.judging import Expected, Judgement, judge, matches, refuting
from localcloud.trials.product import Product
from localcloud.trials.resources import KINDS, PREFIX, OwnResource, TrialResource, own_items
from localcloud.trials.sending import ApiReply, Sender

_OPERATION_LIMIT_S: Final = 900
_APPEARS_LIMIT_S: Final = 120
_PAUSE_S: Final = 2.0
_POLL_S: Final = 10.0
_MISSING: Final = 404
_RUN: Final = "run.googleapis.com"
"""The only API that a trial disables."""


class TrialEnded(Exception):  # noqa: N818 - not an error: a trial that can say no more
    """The trial ended before the request that decides."""

    def __init__(self, judgement: Judgement) -> None:
        """Keep the verdict."""
        super().__init__(judgement.verdict)
        self.judgement = judgement


@dataclass(frozen=True, slots=True)
class Trial:
    """How an assumption is tried."""

    run: Callable[["Attempt"], ApiReply]
    """Send the requests, and return the response that decides."""
    seconds: float
    """Approximate duration without its stack, with the deletion of what it creates."""
    expected: Expected
    second_run: Callable[["Attempt", Mapping[str, str]], ApiReply] | None = None
    """The part that needs another day; it decides. It gets the words that the first part left in `Attempt.words`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Environment of the trials. `speed`: simulated seconds per real second; 1 for Google."""

    sender: Sender
    project: str
    report: Callable[[str], None]
    product: Product
    speed: float = 1.0
    sleep: Callable[[float], None] = time.sleep

    def looks(self, limit_s: float) -> Iterator[None]:
        """Yield now and after each pause, until the limit, in seconds of the cloud's clock."""
        for _ in range(int(limit_s / _PAUSE_S)):
            yield
            self.sleep(_PAUSE_S / self.speed)

    def finished(self, url: str, reply: ApiReply) -> ApiReply:
        """Return a response, or the end of the operation that the request to `url` started."""
        name = reply.operation
        if not name:
            return reply
        for _ in self.looks(_OPERATION_LIMIT_S):
            reply = self.sender.operation(url, name)
            if reply.is_of_operation or not reply.operation:
                return reply
        return ApiReply(status=0, message=f"the operation did not finish within {_OPERATION_LIMIT_S} s")

    def is_gone(self, resource: TrialResource) -> bool:
        """Return whether Google says that a resource does not exist."""
        return self.sender.send("GET", resource.url).status == _MISSING


@dataclass(slots=True, kw_only=True)
class Attempt:
    """What a trial can do."""

    world: Surroundings
    run_id: str
    """Identifies the run in each name and ownership marker."""
    name: str
    """Name of what this trial creates."""
    expected: Expected
    owned: list[TrialResource]
    """What the run created and did not delete yet."""
    words: dict[str, str] = field(default_factory=dict[str, str])
    """What the second run needs."""

    @property
    def project(self) -> str:
        """Return the project's id."""
        return self.world.project

    @property
    def runs(self) -> Collection[str]:
        """Return the ids of the evening's runs, with this one's."""
        return {self.run_id, *self.world.product.journal.runs}

    def resource(self, kind: str, suffix: str = "") -> TrialResource:
        """Return a resource that this trial can create; `suffix` for one that it only needs."""
        name = f"{PREFIX}{self.run_id}-{suffix}" if suffix else self.name
        return TrialResource(kind=KINDS[kind], project=self.project, name=name)

    def send(
        self,
        method: str,
        url: str,
        body: Mapping[str, object] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        has_login: bool = True,
        waits: bool = True,
    ) -> ApiReply:
        """Return the response to a request, whatever it is. `waits` False: a disabled API is an answer."""
        text = None if body is None else json.dumps(body)
        return self.world.sender.send(method, url, text, headers=headers, has_login=has_login, waits=waits)

    def start(self, method: str, url: str, body: Mapping[str, object]) -> ApiReply:
        """Send a request that must be accepted, and return its end, which can be an operation's error: a poll shows what came of it."""
        return self._started(method, url, self.send(method, url, body))

    def must_send(
        self, method: str, url: str, body: Mapping[str, object] | None = None, *, has_login: bool = True
    ) -> ApiReply:
        """Return the response to a request that must succeed."""
        return self._succeeded(method, url, self.send(method, url, body, has_login=has_login))

    def create(self, resource: TrialResource, body: Mapping[str, object]) -> ApiReply:
        """Create a resource as `start` sends a request."""
        return self._started("POST", resource.create_url, self.create_again(resource, body))

    def must_create(self, resource: TrialResource, body: Mapping[str, object]) -> ApiReply:
        """Create a resource, which must succeed."""
        return self._succeeded("POST", resource.create_url, self.create_again(resource, body))

    def must_have(self, resource: TrialResource, body: Mapping[str, object]) -> None:
        """Create a resource that the trial needs, and wait until it can be read."""
        self.must_create(resource, body)
        if all(self.world.is_gone(resource) for _ in self.world.looks(_APPEARS_LIMIT_S)):
            raise _unknown(ApiReply(status=0), f"{resource.url} did not appear")

    def create_again(self, resource: TrialResource, body: Mapping[str, object]) -> ApiReply:
        """Return the response to a creation, whatever it is."""
        # Recorded before it is sent because an interruption or a lost response can leave the resource behind.
        is_new = resource not in self.owned
        if is_new:
            self.owned.append(resource)
        reply = self.send("POST", resource.create_url, resource.body(body, self.run_id))
        if is_new and 400 <= reply.status < 500:  # noqa: PLR2004 - HTTP's client errors
            self.owned.remove(resource)
        return reply

    def delete_without_force(self, own: OwnResource) -> ApiReply:
        """Return the response to the deletion of a resource of this trial, without the query that forces it."""
        return self.send("DELETE", own.resource.url)

    def pause(self, seconds: float) -> tuple[str, str]:
        """Wait for seconds of the cloud's clock. Return the times of begin and end, in RFC 3339."""
        begin = _now()
        self.world.sleep(seconds / self.world.speed)
        return begin, _now()

    def poll(self, seconds: float, words: str, ask: Callable[[], ApiReply], after: ApiReply | None = None) -> ApiReply:
        """Ask until a response matches a regular expression, and return the last response. `after`: what `start` or `create` returned."""
        reply = self._polled(seconds, words, ask, after)
        if not reply.status and not matches(words, reply):
            raise _unmatched(reply, seconds, words, after)
        return reply

    def must_poll(
        self, seconds: float, words: str, ask: Callable[[], ApiReply], after: ApiReply | None = None
    ) -> ApiReply:
        """Poll, and return the response, which must match."""
        reply = self._polled(seconds, words, ask, after)
        self._stop_if_refuted(reply)
        if not matches(words, reply):
            raise _unmatched(reply, seconds, words, after)
        return reply

    def run(self, *command: str) -> ApiReply:
        """Run a command of the product, `gemma` or `pulumi`, in the project's folder, and return its output."""
        return self.world.product.run(command)

    def must_run(self, *command: str) -> None:
        """Run a command of the product, which must succeed."""
        reply = self.run(*command)
        self._stop_if_refuted(reply)
        if not reply.is_accepted:
            raise TrialEnded(judge(self.expected, reply))

    def must_disable_run(self) -> None:
        """Disable Cloud Run's API, after it is recorded. That breaks everything that uses it, so the project may have no other service or job."""
        if problem := self._why_not_to_disable():
            raise _unknown(ApiReply(status=0), f"{_RUN} was not disabled{problem}")
        self.world.product.journal.set("apis_off", _RUN, exists=True)
        url = f"https://serviceusage.googleapis.com/v1/projects/{self.project}/services/{_RUN}:disable"
        self.must_send("POST", url, {})

    def _why_not_to_disable(self) -> str:
        root, project = f"https://{_RUN}", f"projects/{self.project}"
        regions = self.send("GET", f"{root}/v1/{project}/locations?pageSize=200")
        names = [str(as_object(each).get("locationId")) for each in as_list(as_object(regions.body).get("locations"))]
        if not regions.is_accepted or not names:
            return f": the regions could not be listed ({regions.summary})"
        for name, kind in ((name, kind) for name in names for kind in ("services", "jobs")):
            listed = self.send("GET", f"{root}/v2/{project}/locations/{name}/{kind}")
            if not listed.is_accepted:
                return f", because the project must be empty: {listed.summary}"
            own, _ = own_items(KINDS[kind], self.project, listed.body, self.runs)
            found = as_object(listed.body)
            if len(as_list(found.get(kind))) > len(own) or found.get("nextPageToken"):
                return f", because the project must be empty: the project has {kind} in {name}"
        return ""

    def _started(self, method: str, url: str, reply: ApiReply) -> ApiReply:
        reply = self.world.finished(url, reply)
        if not reply.is_accepted and not reply.is_of_operation:
            raise _unknown(reply, f"{method} {url} was rejected")
        return reply

    def _succeeded(self, method: str, url: str, reply: ApiReply) -> ApiReply:
        reply = self._started(method, url, reply)
        if not reply.is_accepted:
            raise _unknown(reply, f"{method} {url} was rejected")
        return reply

    def _polled(self, seconds: float, words: str, ask: Callable[[], ApiReply], after: ApiReply | None) -> ApiReply:
        """Return the first response that matches, or the last one. If the operation before has failed, one response suffices."""
        left_s = 0 if after is not None and after.is_of_operation else seconds
        while True:
            reply = ask()
            if matches(words, reply) or _has_failed(reply) or left_s <= 0:
                return reply
            self.world.sleep(_POLL_S / self.world.speed)
            left_s -= _POLL_S

    def _stop_if_refuted(self, reply: ApiReply) -> None:
        if refuted := refuting(self.expected, reply):
            raise TrialEnded(Judgement(verdict="differs", answered=refuted))


def _unmatched(reply: ApiReply, seconds: float, words: str, after: ApiReply | None) -> TrialEnded:
    why = f"no answer matched '{words}' within {seconds:.0f} s"
    why = "the queued resource failed: no quota or no capacity" if _has_failed(reply) else why
    return _unknown(after if after is not None and after.is_of_operation else reply, why)


def _unknown(reply: ApiReply, why: str) -> TrialEnded:
    return TrialEnded(Judgement(verdict="unknown", answered=reply.summary, why=why))


def _has_failed(reply: ApiReply) -> bool:
    """Return whether a queued resource got no quota or no capacity. This state is final."""
    return as_object(as_object(reply.body).get("state")).get("state") == "FAILED"


def _now() -> str:
    """Return the time as RFC 3339 text."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
