"""Run trials one after the other and delete all that they create: after each trial, at the end, and after an interruption."""

import contextlib
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal
from urllib.parse import quote, urlsplit

from localcloud.json_values import as_list, as_object
from localcloud.ledger.entries import AssumedAnswer
from localcloud.trials import resources
from localcloud.trials.product import Product, left_stacks
from localcloud.trials.requests_of_entries import (
    FIXTURES,
    TRY,
    ApiRequest,
    ChildCommand,
    LedgerTrial,
    Poll,
    Step,
    Tomorrow,
    TrialPause,
)
from localcloud.trials.resources import OwnResource, TrialResource
from localcloud.trials.sending import ApiReply, Sender

_GONE_LIMIT_S: Final = 600
_OPERATION_LIMIT_S: Final = 900
_APPEARS_LIMIT_S: Final = 120
_PAUSE_S: Final = 2.0
_POLL_S: Final = 10.0
_MISSING: Final = 404
_LONGEST: Final = 300
_AROUND: Final = 30
"""Characters of a line that are shown before and after its decisive part."""
_NOTHING: Final = "(?!)"
"""A regular expression that matches nothing."""
_OFF_WORD: Final = "SERVICE_DISABLED"
_MAY_BE_OFF: Final = "run.googleapis.com"
"""The only API that a trial may disable."""
Verdict = Literal["as assumed", "differs", "unknown", "tomorrow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict, and the answer on one line. `why` explains an unknown verdict."""

    verdict: Verdict
    answered: str
    why: str = ""


def judge(expected: AssumedAnswer, reply: ApiReply) -> Judgement:
    """Return the verdict on an answer. An error with a cause other than the request is unknown."""
    answered = reply.summary
    is_expected = reply.status == expected.status
    refuted = shown(expected.refuted or _NOTHING, reply)
    # An error's words are sought in its message alone, so they can be there although its body refutes the entry.
    is_error = reply.status >= 400  # noqa: PLR2004 - HTTP's errors
    if is_expected and matches(expected.words, reply) and not (refuted and is_error):
        return Judgement(verdict="as assumed", answered=shown(expected.words, reply) if expected.refuted else answered)
    if refuted:
        return Judgement(verdict="differs", answered=refuted)
    cause = _other_cause(reply)
    if cause:
        return Judgement(verdict="unknown", answered=answered, why=cause)
    if expected.refuted and not is_expected:
        why = f"expected the status {expected.status} and no other cause. Read the answer"
        return Judgement(verdict="unknown", answered=answered, why=why)
    if is_expected:
        return Judgement(
            verdict="unknown",
            answered=answered,
            why=f"the status is as expected, but nothing in the answer matches '{expected.words}'. Read the answer",
        )
    return Judgement(verdict="differs", answered=answered)


def matches(words: str, reply: ApiReply) -> bool:
    """Return whether a response's body, or an error's message, matches a regular expression."""
    text = reply.message if reply.status >= 400 else f"{reply.body}"  # noqa: PLR2004 - HTTP's errors
    return re.search(words, text, re.IGNORECASE) is not None


def shown(words: str, reply: ApiReply) -> str:
    """Return the line of a response's body or message that matches a regular expression, or an empty text."""
    for text in (reply.message, f"{reply.body}"):
        found = re.search(words, text, re.IGNORECASE)
        if found is not None:
            begin, end = text.rfind("\n", 0, found.start()) + 1, text.find("\n", found.end())
            line = text[max(begin, found.start() - _AROUND) : len(text) if end < 0 else min(end, found.end() + _AROUND)]
            return " ".join(line.split())[:_LONGEST]
    return ""


def _other_cause(reply: ApiReply) -> str:
    if reply.status == 0:
        return "the command failed" if reply.body else "no response"
    if reply.is_api_off:
        return "the API is disabled in this project; run `gcloud services enable`"
    if reply.status == 401:  # noqa: PLR2004 - HTTP
        return "the login was rejected"
    if reply.status == 403:  # noqa: PLR2004 - HTTP
        return "a permission, a quota or a policy of this project stopped the request first"
    if reply.status == 429 or reply.status >= 500:  # noqa: PLR2004 - HTTP
        return "the server was busy or the quota is used up; retry later"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Environment of the trials. `speed`: simulated seconds per real second; 1 for Google."""

    sender: Sender
    project: str
    number: str
    report: Callable[[str], None]
    product: Product
    speed: float = 1.0
    sleep: Callable[[float], None] = time.sleep


@dataclass(slots=True)
class Runner:
    """Runs trials. `run` identifies this run in each name and ownership marker."""

    world: Surroundings
    run: str = field(default_factory=lambda: secrets.token_hex(3))
    _owned: list[TrialResource] = field(default_factory=list[TrialResource])
    _fixtures: dict[str, str] = field(default_factory=dict[str, str])
    _failed: dict[str, Judgement] = field(default_factory=dict[str, Judgement])
    _stacks: dict[str, ApiReply] = field(default_factory=dict[str, ApiReply])
    _count: int = 0
    left: list[str] = field(default_factory=list[str])
    """URLs of resources that could not be deleted."""

    def try_all(
        self, trials: Sequence[LedgerTrial], before: Callable[[LedgerTrial], None] = lambda _: None
    ) -> Iterator[tuple[LedgerTrial, Judgement]]:
        """Yield each trial with its judgement, after a call of `before`. When the iteration ends, everything is deleted or listed in `left`."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.clean_up)
            for at, each in enumerate(trials):
                before(each)
                yield each, self._try(each)
                used = each.entry.stack
                if used and all(other.entry.stack != used for other in trials[at + 1 :]):
                    self._tear_down(used)

    def clean_up(self) -> None:
        """Delete every resource that this run has created and not yet deleted, and each stack. Enable disabled APIs again."""
        self.enable_again()
        if self._owned:
            self.world.report(f"deleting {len(self._owned)} resources of this run")
        ordered = sorted(self._owned, key=lambda each: _turn(each.collection))
        for created in ordered:
            self.delete(OwnResource(created))
        for stack in left_stacks(self.world.product.journal):
            self._tear_down(stack)

    def _tear_down(self, stack: str) -> None:
        problem = self.world.product.tear_down(stack)
        if problem:
            self.left.append(f"stack {stack}: {problem}")
            self.world.report(f"NOT torn down: stack {stack}: {problem}")

    def enable_again(self) -> None:
        """Enable the APIs that a trial has disabled, and wait until they are."""
        for api in list(self.world.product.journal.apis_off):
            url = f"https://serviceusage.googleapis.com/v1/projects/{self.world.project}/services/{api}:enable"
            reply = self.world.sender.send("POST", url, "{}")
            if reply.operation:
                reply = self._ended(url, reply)
            if reply.is_accepted:
                self.world.product.journal.set("apis_off", api, exists=False)
            else:
                self.left.append(f"disabled API {api}: {reply.summary}")

    def second_run(self, trial: LedgerTrial, values: Mapping[str, str]) -> Judgement:
        """Run the steps after `tomorrow`, with the words of the first run."""
        at = next(at for at, step in enumerate(trial.steps) if isinstance(step, Tomorrow))
        return self._steps(trial, trial.steps[at + 1 :], dict(values))

    def _try(self, trial: LedgerTrial) -> Judgement:
        self._count += 1
        values = {
            TRY: f"{resources.PREFIX}{self.run}{self._count}",
            "PROJECT": self.world.project,
            "PROJECT_NUMBER": self.world.number,
        }
        for word in sorted(trial.words & set(FIXTURES)):
            values[word] = self._fixture(word)
            if word in self._failed:
                return self._failed[word]
        stack = trial.entry.stack
        if stack and stack not in self._stacks:
            self._stacks[stack] = self.world.product.deploy(stack)
        if stack and not self._stacks[stack].is_accepted:
            return judge(trial.expected, self._stacks[stack])
        before = len(self._owned)
        try:
            return self._steps(trial, trial.steps, values)
        finally:
            self.enable_again()
            for created in self._owned[before:]:
                self.delete(OwnResource(created))

    def _steps(self, trial: LedgerTrial, steps: Sequence[Step], values: dict[str, str]) -> Judgement:
        expected = trial.expected
        reply = ApiReply(status=0, message="no request was sent")
        for at, step in enumerate(steps, start=1):
            if isinstance(step, TrialPause):
                values["START"] = _now()
                self.world.sleep(step.seconds / self.world.speed)
                values["END"] = _now()
                continue
            if isinstance(step, Tomorrow):
                self.world.product.journal.later[trial.entry.id] = values
                self.world.product.journal.write()
                why = "only the second run can show it: from tomorrow on, run `try --second-run`"
                return Judgement(verdict="tomorrow", answered=reply.summary, why=why)
            if isinstance(step, ChildCommand):
                reply = self.world.product.run(step.filled(values).words)
                problem = None if reply.is_accepted else judge(expected, reply)
            elif isinstance(step, Poll):
                reply, problem = self._after_poll(step, values, reply)
            else:
                reply, problem = self._after_request(expected, step, values, steps[at:])
            refuted = shown(expected.refuted or _NOTHING, reply)
            if at < len(steps) and not isinstance(step, ApiRequest) and refuted:
                return Judgement(verdict="differs", answered=refuted)  # the words are sought in the last answer
            if problem is not None and (at < len(steps) or not reply.status):
                return problem
        return judge(expected, reply)

    def _after_poll(self, step: Poll, values: Mapping[str, str], last: ApiReply) -> tuple[ApiReply, Judgement | None]:
        """Return the last response of a poll, and the judgement if it does not match, in case steps follow."""
        reply = self._polled(step, values, is_settled=last.is_of_operation)
        if matches(step.words, reply):
            return reply, None
        why = f"no answer matched '{step.words}' within {step.seconds:.0f} s"
        why = "the queued resource failed: no quota or no capacity" if _has_failed(reply) else why
        answered = (last if last.is_of_operation else reply).summary
        return reply, Judgement(verdict="unknown", answered=answered, why=why)

    def _after_request(
        self, expected: AssumedAnswer, step: ApiRequest, values: Mapping[str, str], rest: Sequence[Step]
    ) -> tuple[ApiReply, Judgement | None]:
        """Return the response to a request, and the judgement if it was rejected, in case steps follow."""
        request = step.filled(values)
        if problem := self._before(request):
            return ApiReply(status=0), Judgement(verdict="unknown", answered="", why=problem)
        reply = self._send(request, waits=_OFF_WORD not in expected.words)
        if reply.operation and (expected.operation or rest):
            reply = self._ended(request.url, reply)
        is_polled = bool(rest) and isinstance(rest[0], Poll) and reply.is_of_operation
        if reply.is_accepted or is_polled:
            return reply, None
        why = f"{step.method} {step.url} was rejected"
        return reply, Judgement(verdict="unknown", answered=reply.summary, why=why)

    def _before(self, request: ApiRequest) -> str:
        """Return why a request must not be sent, or an empty text. Before an API is disabled, record it.

        Disabling an API breaks everything that uses it: only Cloud Run's is disabled, and only in a project that has no other service or job.
        """
        api, _, verb = request.url.rpartition("/")[2].rpartition(":")
        if verb != "disable" or urlsplit(request.url).netloc != "serviceusage.googleapis.com":
            return ""
        if api != _MAY_BE_OFF:
            return f"only {_MAY_BE_OFF} may be disabled, not {api}"
        root, project = f"https://{api}", f"projects/{self.world.project}"
        regions = self.world.sender.send("GET", f"{root}/v1/{project}/locations?pageSize=200")
        names = [str(as_object(each).get("locationId")) for each in as_list(as_object(regions.body).get("locations"))]
        if not regions.is_accepted or not names:
            return f"{api} was not disabled: the regions could not be listed ({regions.summary})"
        for name, kind in ((name, kind) for name in names for kind in ("services", "jobs")):
            listed = self.world.sender.send("GET", f"{root}/v2/{project}/locations/{name}/{kind}")
            own, foreign = resources.own_items(f"{root}/{kind}", listed.body, self.runs)
            found = as_list(as_object(listed.body).get(kind))
            if (
                not listed.is_accepted
                or foreign
                or len(found) > len(own)
                or as_object(listed.body).get("nextPageToken")
            ):
                reason = f"the project has {kind} in {name}" if listed.is_accepted else listed.summary
                return f"{api} was not disabled, because the project must be empty: {reason}"
        self.world.product.journal.set("apis_off", api, exists=True)
        return ""

    def _polled(self, step: Poll, values: Mapping[str, str], *, is_settled: bool) -> ApiReply:
        """Return the first response that matches, or the last one. `is_settled`: the operation before has failed, so one response suffices."""
        left_s = step.seconds
        while True:
            if isinstance(step.request, ChildCommand):
                reply = self.world.product.run(step.request.filled(values).words)
            else:
                request = step.request.filled(values)
                reply = self.world.sender.send(request.method, request.url, request.body)
            if matches(step.words, reply) or is_settled or _has_failed(reply) or left_s <= 0:
                return reply
            self.world.sleep(_POLL_S / self.world.speed)
            left_s -= _POLL_S

    def _send(self, request: ApiRequest, *, waits: bool) -> ApiReply:
        body = resources.marked(request.method, request.url, request.body, self.run)
        maybe = resources.created_by(request.method, request.url, body)
        # Recorded before it is sent because an interruption or a lost response can leave the resource behind.
        new = maybe if maybe is not None and maybe.name.startswith(resources.PREFIX) else None
        if new is not None and new not in self._owned:
            self._owned.append(new)
        else:
            new = None
        reply = self.world.sender.send(
            request.method, request.url, body, headers=request.headers, has_login=request.has_login, waits=waits
        )
        if new is not None and 400 <= reply.status < 500:  # noqa: PLR2004 - HTTP's client errors
            self._owned.remove(new)
        if reply.is_accepted:
            found = resources.created_by(request.method, request.url, body, reply.body)
            if found is not None and found not in self._owned:
                self._owned = [each for each in self._owned if each is not new or not found.is_identified]
                self._owned.append(found)
        return reply

    def _ended(self, url: str, reply: ApiReply) -> ApiReply:
        name = reply.operation
        for _ in self._looks(_OPERATION_LIMIT_S):
            reply = self.world.sender.operation(url, name)
            if reply.is_of_operation or not reply.operation:
                return reply
        return ApiReply(status=0, message=f"the operation did not finish within {_OPERATION_LIMIT_S} s")

    def _fixture(self, word: str) -> str:
        if word in self._fixtures:
            return self._fixtures[word]
        name = f"{resources.PREFIX}{self.run}-{word.lower()[:4]}"
        self._fixtures[word] = name
        url, body = resources.fixture(word, project=self.world.project, name=name, run=self.run)
        created = resources.created_by("POST", url, body)
        assert created is not None  # noqa: S101 - every fixture has a kind
        self._owned.append(created)
        reply = self.world.sender.send("POST", url, body)
        if reply.operation:
            reply = self._ended(url, reply)
        if not reply.is_accepted:
            if 400 <= reply.status < 500 and not reply.is_of_operation:  # noqa: PLR2004 - HTTP's client errors
                self._owned.remove(created)
            self._failed[word] = Judgement(
                verdict="unknown", answered=reply.summary, why=f"the required {word.lower()} was not created"
            )
        elif all(self._is_gone(created) for _ in self._looks(_APPEARS_LIMIT_S)):
            self._failed[word] = Judgement(verdict="unknown", answered="", why=f"the {word.lower()} did not appear")
        return name

    @property
    def runs(self) -> Collection[str]:
        """Return the ids of the evening's runs, with this one's."""
        return {self.run, *self.world.product.journal.runs}

    def delete(self, own: OwnResource) -> None:
        """Delete a resource and wait until it is gone."""
        created = own.resource
        if not created.is_identified:
            self._delete_by_name(created)
            return
        for _ in self._looks(_GONE_LIMIT_S):
            if created.collection.endswith("/b"):
                self._empty(own)
            reply = self.world.sender.send("DELETE", created.delete_url)
            if reply.status == _MISSING or self._is_gone(created):
                if created in self._owned:
                    self._owned.remove(created)
                return
            if reply.status in {401, 403}:
                break
        self.left.append(created.url)
        self.world.report(f"NOT deleted: {created.url}")

    def _delete_by_name(self, created: TrialResource) -> None:
        """Delete the resources of this run that a listing shows with a display name, because the response with the id was lost."""
        reply = self.world.sender.send("GET", created.collection)
        self._owned.remove(created)
        if not reply.is_accepted or as_object(reply.body).get("nextPageToken"):
            self.left.append(created.url)
            self.world.report(f"NOT found, so not deleted: {created.url}")
            return
        for own in resources.own_items(created.collection, reply.body, self.runs)[0]:
            if own.resource.name == created.name:
                self.delete(own)

    def _empty(self, own: OwnResource) -> None:
        """Delete the objects of a bucket that a trial created."""
        bucket = own.resource
        listed = self.world.sender.send("GET", f"{bucket.url}/o")
        for item in map(as_object, as_list(as_object(listed.body).get("items"))):
            self.world.sender.send("DELETE", f"{bucket.url}/o/{quote(str(item.get('name')), safe='')}")

    def _is_gone(self, created: TrialResource) -> bool:
        return self.world.sender.send("GET", created.url).status == _MISSING

    def _looks(self, limit_s: float) -> Iterator[None]:
        """Yield now and after each pause, until the limit, in seconds of the cloud's clock."""
        for _ in range(int(limit_s / _PAUSE_S)):
            yield
            self.world.sleep(_PAUSE_S / self.world.speed)


def sweep(world: Surroundings, collections: Iterable[str], *, delete: bool) -> tuple[list[str], list[str]]:
    """Search collections for resources that runs of the journal created, and optionally delete them.

    Return the URLs of leaked resources, and the failed checks with the resources of other runs.
    """
    runner = Runner(world=world)
    left: list[str] = []
    unknown: list[str] = []
    for url in sorted(collections, key=_turn):
        reply = world.sender.send("GET", url)
        if not reply.is_accepted:
            if reply.status != _MISSING:
                unknown.append(f"{resources.collection_of(url)}: {reply.summary}")
            continue
        found, foreign = resources.own_items(url, reply.body, runner.runs)
        unknown += foreign
        if as_object(reply.body).get("nextPageToken"):
            unknown.append(f"{resources.collection_of(url)}: only the first page was read")
        for own in found:
            if delete:
                world.report(f"deleting {own.resource.url}")
                runner.delete(own)
            else:
                left.append(own.resource.url)
    return left + runner.left, unknown


def _now() -> str:
    """Return the time as RFC 3339 text."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _has_failed(reply: ApiReply) -> bool:
    """Return whether a queued resource got no quota or no capacity. This state is final."""
    return as_object(as_object(reply.body).get("state")).get("state") == "FAILED"


def _turn(url: str) -> int:
    return resources.FIRST_TO_GO.index(resources.collection_of(url).rpartition("/")[2])
