"""Run trials one after the other and delete all that they create: after each trial, at the end, and after an interruption."""

import contextlib
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import quote

from localcloud.json_values import as_list, as_object
from localcloud.ledger.entries import AssumedAnswer
from localcloud.trials import resources
from localcloud.trials.requests_of_entries import FIXTURES, TRY, ApiRequest, LedgerTrial, Poll, TrialPause
from localcloud.trials.resources import TrialResource
from localcloud.trials.sending import ApiReply, Sender

_GONE_LIMIT_S: Final = 600
_OPERATION_LIMIT_S: Final = 900
_PAUSE_S: Final = 2.0
_POLL_S: Final = 10.0
_MISSING: Final = 404
Verdict = Literal["as assumed", "differs", "unknown"]


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
    if is_expected and matches(expected.words, reply):
        return Judgement(verdict="as assumed", answered=answered)
    cause = _other_cause(reply)
    if cause:
        return Judgement(verdict="unknown", answered=answered, why=cause)
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


def _other_cause(reply: ApiReply) -> str:
    if reply.status == 0:
        return "no response"
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
    _count: int = 0
    left: list[str] = field(default_factory=list[str])
    """URLs of resources that could not be deleted."""

    def try_all(self, trials: Sequence[LedgerTrial]) -> Iterator[tuple[LedgerTrial, Judgement]]:
        """Yield each trial with its judgement. When the iteration ends, every resource is deleted or listed in `left`."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.clean_up)
            for each in trials:
                yield each, self._try(each)

    def clean_up(self) -> None:
        """Delete every resource that this run has created and not yet deleted."""
        if self._owned:
            self.world.report(f"deleting {len(self._owned)} resources of this run")
        ordered = sorted(self._owned, key=lambda each: _turn(each.collection))
        for created in ordered:
            self.delete(created)

    def _try(self, trial: LedgerTrial) -> Judgement:
        expected = trial.entry.answer
        assert expected is not None  # noqa: S101 - an entry without an answer is not a trial
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
        before = len(self._owned)
        reply = ApiReply(status=0, message="no request was sent")
        try:
            for at, step in enumerate(trial.steps, start=1):
                if isinstance(step, TrialPause):
                    self.world.sleep(step.seconds / self.world.speed)
                    continue
                is_last = at == len(trial.steps)
                if isinstance(step, Poll):
                    last, reply = reply, self._polled(step, values, is_settled=reply.is_of_operation)
                    if not is_last and not matches(step.words, reply):
                        why = f"no answer matched '{step.words}' within {step.seconds:.0f} s"
                        why = "the queued resource failed: no quota or no capacity" if _has_failed(reply) else why
                        answered = (last if last.is_of_operation else reply).summary
                        return Judgement(verdict="unknown", answered=answered, why=why)
                    continue
                reply = self._send(step.filled(values))
                if reply.operation and (expected.operation or not is_last):
                    reply = self._ended(step.filled(values).url, reply)
                is_polled = not is_last and isinstance(trial.steps[at], Poll) and reply.is_of_operation
                if not is_last and not reply.is_accepted and not is_polled:
                    why = f"{step.method} {step.url} was rejected"
                    return Judgement(verdict="unknown", answered=reply.summary, why=why)
            return judge(expected, reply)
        finally:
            for created in self._owned[before:]:
                self.delete(created)

    def _polled(self, step: Poll, values: Mapping[str, str], *, is_settled: bool) -> ApiReply:
        """Return the first response that matches, or the last one. `is_settled`: the operation before has failed, so one response suffices."""
        request, left_s = step.request.filled(values), step.seconds
        while True:
            reply = self.world.sender.send(request.method, request.url, request.body)
            if matches(step.words, reply) or is_settled or _has_failed(reply) or left_s <= 0:
                return reply
            self.world.sleep(_POLL_S / self.world.speed)
            left_s -= _POLL_S

    def _send(self, request: ApiRequest) -> ApiReply:
        body = resources.marked(request.method, request.url, request.body, self.run)
        maybe = resources.created_by(request.method, request.url, body)
        # Recorded before it is sent because an interruption or a lost response can leave the resource behind.
        new = maybe if maybe is not None and maybe.name.startswith(resources.PREFIX) else None
        if new is not None and new not in self._owned:
            self._owned.append(new)
        else:
            new = None
        reply = self.world.sender.send(
            request.method, request.url, body, headers=request.headers, has_login=request.has_login
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
        for _ in range(int(_OPERATION_LIMIT_S / _PAUSE_S)):
            reply = self.world.sender.operation(url, name)
            if reply.is_of_operation or not reply.operation:
                return reply
            self.world.sleep(_PAUSE_S / self.world.speed)
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
        elif not self._until(created, exists=True):
            self._failed[word] = Judgement(verdict="unknown", answered="", why=f"the {word.lower()} did not appear")
        return name

    def delete(self, created: TrialResource) -> None:
        """Delete a resource and wait until it is gone."""
        if not created.is_identified:
            self._delete_by_name(created)
            return
        url = created.url + (f"?{created.kind.delete_query}" if created.kind.delete_query else "")
        for _ in range(int(_GONE_LIMIT_S / _PAUSE_S)):
            if created.collection.endswith("/b"):
                self._empty(created)
            reply = self.world.sender.send("DELETE", url)
            if reply.status == _MISSING or self._is_gone(created):
                if created in self._owned:
                    self._owned.remove(created)
                return
            if reply.status in {401, 403}:
                break
            self.world.sleep(_PAUSE_S / self.world.speed)
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
        for each in resources.own_items(created.collection, reply.body)[0]:
            if each.name == created.name:
                self.delete(each)

    def _empty(self, bucket: TrialResource) -> None:
        """Delete the objects of a bucket that a trial created."""
        listed = self.world.sender.send("GET", f"{bucket.url}/o")
        for item in map(as_object, as_list(as_object(listed.body).get("items"))):
            self.world.sender.send("DELETE", f"{bucket.url}/o/{quote(str(item.get('name')), safe='')}")

    def _is_gone(self, created: TrialResource) -> bool:
        return self.world.sender.send("GET", created.url).status == _MISSING

    def _until(self, created: TrialResource, *, exists: bool) -> bool:
        for _ in range(60):
            if self._is_gone(created) != exists:
                return True
            self.world.sleep(_PAUSE_S / self.world.speed)
        return False


def sweep(world: Surroundings, collections: Iterable[str], *, delete: bool) -> tuple[list[str], list[str]]:
    """Search collections for resources that trials created, and optionally delete them. Return the URLs of leaked resources and the failed checks."""
    runner = Runner(world=world)
    left: list[str] = []
    unknown: list[str] = []
    for url in sorted(collections, key=_turn):
        reply = world.sender.send("GET", url)
        if not reply.is_accepted:
            if reply.status != _MISSING:
                unknown.append(f"{resources.collection_of(url)}: {reply.summary}")
            continue
        own, foreign = resources.own_items(url, reply.body)
        unknown += [f"{each}: named like a trial's resource but without its label; check it" for each in foreign]
        if as_object(reply.body).get("nextPageToken"):
            unknown.append(f"{resources.collection_of(url)}: only the first page was read")
        for each in own:
            if delete:
                world.report(f"deleting {each.url}")
                runner.delete(each)
            else:
                left.append(each.url)
    return left + runner.left, unknown


def _has_failed(reply: ApiReply) -> bool:
    """Return whether a queued resource got no quota or no capacity. This state is final."""
    return as_object(as_object(reply.body).get("state")).get("state") == "FAILED"


def _turn(url: str) -> int:
    return resources.FIRST_TO_GO.index(resources.collection_of(url).rpartition("/")[2])
