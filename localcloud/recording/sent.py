"""Compares what two commands sent: the changes that two recordings ask for, without their answers."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from localcloud.json_values import JsonObject, as_list, as_object
from localcloud.recording.differences import ABSENT, Difference, RecordingComparison, Report, shown
from localcloud.recording.recordings import Content, RecordedExchange, Recording
from localcloud.recording.replay import method_of
from localcloud.recording.states import is_read


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """A part of a request that may differ. `name` is a query parameter or a field of a body."""

    name: str
    reason: str
    methods: str = ".*"

    def covers(self, method: str, name: str) -> bool:
        """Tell if a part of a method's request is this one."""
        return name == self.name and re.fullmatch(self.methods, method) is not None


IGNORED: Final = (
    Ignored(name="etag", reason="Each cloud gives its own; the clients send back what they read."),
    Ignored(name="fingerprint", reason="As `etag`, in Compute Engine."),
    Ignored(name="requestId", reason="The clients make it up."),
    Ignored(
        name="generation",
        reason="Cloud Storage counts generations from the time; the clients send back what they read.",
        methods=r"storage\..*",
    ),
    Ignored(name="alt", reason="Google's Go clients ask for JSON, which is the default."),
    Ignored(name="prettyPrint", reason="Google's Go clients ask for no indentation, which is the default for them."),
)
_FAILED_FROM: Final = 400
_REPEATED: Final = frozenset({0, 409, 412, 429, 500, 502, 503, 504})


def compare_sent(first: Recording, second: Recording) -> Report:
    """Return how the changes differ: for each resource those that were sent, in their order.

    `recorded` is the first recording and `here` the second. Refusals that a client answers by trying again are left out, because they
    depend on the moment. Of policies, the grants are compared that were added and removed: members are granted in any order.
    """
    report = Report()
    left, right = _by_resource(first), _by_resource(second)
    for resource in dict.fromkeys([*left, *right]):
        ours, theirs = left.get(resource, []), right.get(resource, [])
        for each in ours:
            report.count(method_of(each))
        for difference in _of_resource(resource, ours, theirs):
            report.add(difference)
    granted, others = _grants(first), _grants(second)
    for path in dict.fromkeys([*granted, *others]):
        for difference in _of_policy(path, granted.get(path, []), others.get(path, [])):
            report.add(difference)
    return report


def _by_resource(recording: Recording) -> dict[str, list[RecordedExchange]]:
    """Return the changes of each resource but those of policies."""
    found: dict[str, list[RecordedExchange]] = {}
    for exchange in recording.exchanges:
        if not is_read(exchange) and not _is_policy(exchange) and exchange.status not in _REPEATED:
            found.setdefault(_resource(exchange), []).append(exchange)
    return found


def _resource(exchange: RecordedExchange) -> str:
    """Return the path of the resource that a request changes; a creation names it in its query or its body."""
    path = exchange.path.partition(":")[0]
    if exchange.method != "POST" or ":" in exchange.path:
        return path
    body = as_object(exchange.request)
    ids = [value for key, value in sorted(exchange.query.items()) if key.endswith("Id") and key != "requestId"]
    names = [*ids, exchange.query.get("name"), *(body.get(key) for key in ("name", "accountId", "displayName"))]
    name = next((each for each in names if isinstance(each, str)), "")
    return f"{path}/{name}" if name else path


def _of_resource(
    resource: str, ours: Sequence[RecordedExchange], theirs: Sequence[RecordedExchange]
) -> Iterator[Difference]:
    left, right = ([_step(each) for each in steps] for steps in (ours, theirs))
    method = method_of((*ours, *theirs)[0])
    if left != right and sorted(left) == sorted(right):
        yield Difference(method=method, what="order", where=resource, recorded=" > ".join(left), here=" > ".join(right))
        return
    rest = list(theirs)
    for one in ours:
        other = next((each for each in rest if _step(each) == _step(one)), None)
        if other is None:
            yield _missing(resource, one, recorded=True)
            continue
        rest.remove(other)
        yield from _of_requests(method_of(one), one, other)
    for each in rest:
        yield _missing(resource, each, recorded=False)


def _step(exchange: RecordedExchange) -> str:
    """Return what is done to the resource: the verb, and the custom method if there is one."""
    return f"{exchange.method} {exchange.path.partition(':')[2]}".strip()


def _missing(resource: str, exchange: RecordedExchange, *, recorded: bool) -> Difference:
    text = shown(f"{_step(exchange)} {shown(exchange.request)}")
    sides = (text, ABSENT) if recorded else (ABSENT, text)
    return Difference(method=method_of(exchange), what="sent", where=resource, recorded=sides[0], here=sides[1])


def _of_requests(method: str, one: RecordedExchange, other: RecordedExchange) -> Iterator[Difference]:
    comparison = RecordingComparison(method=method, translate=str, learn=_forget, is_request=True)
    for part, left, right in (("query", one.query, other.query), ("body", one.request, other.request)):
        for found in comparison.answers(_kept(method, left), _kept(method, right)):
            where = part if found.where == "(body)" else f"{part}.{found.where}"
            yield replace(found, what="sent", where=where)
    if _content(one.request_content) != _content(other.request_content):
        sides = (_content(each.request_content) for each in (one, other))
        yield Difference(method=method, what="sent", where="content", recorded=next(sides), here=next(sides))
    if (one.status < _FAILED_FROM) != (other.status < _FAILED_FROM):
        yield Difference(method=method, what="status", where=one.path, recorded=str(one.status), here=str(other.status))


def _content(content: Content | None) -> str:
    """Return length and media type of a content. Each client makes up the boundary of its parts, and so their length."""
    if content is None:
        return ABSENT
    kind = content.type.partition(";")[0]
    return kind if kind.startswith("multipart/") else f"{kind}, {content.bytes} bytes"


def _kept(method: str, value: object) -> Any:  # noqa: ANN401 - any JSON value
    """Return a value without what is ignored, at any depth."""
    if isinstance(value, dict):
        items = cast("JsonObject", value).items()
        return {
            key: _kept(method, item) for key, item in items if not any(each.covers(method, key) for each in IGNORED)
        }
    if isinstance(value, list):
        return [_kept(method, item) for item in cast("list[object]", value)]
    return value


def _forget(_recorded: str, _here: str) -> None:
    """Learn nothing: a request holds what the client chose."""


# Policies


def _is_policy(exchange: RecordedExchange) -> bool:
    return exchange.path.endswith(":setIamPolicy") or (exchange.method == "PUT" and exchange.path.endswith("/iam"))


def _policy_path(exchange: RecordedExchange) -> str:
    return exchange.path.partition(":")[0]


def _grants(recording: Recording) -> dict[str, list[str]]:
    """Return, for each resource with a policy, the grants that were added and removed, sorted."""
    found: dict[str, list[str]] = {}
    known: dict[str, set[str]] = {}
    for exchange in recording.exchanges:
        path = _policy_path(exchange)
        if exchange.status in _REPEATED or exchange.status >= _FAILED_FROM:
            continue
        if _is_policy(exchange):
            body = as_object(exchange.request)
            after = _members(as_object(body.get("policy")) or body)
            before = known.get(path, set())
            found.setdefault(path, []).extend(f"+ {each}" for each in after - before)
            found[path].extend(f"- {each}" for each in before - after)
            known[path] = after
        elif exchange.path.endswith((":getIamPolicy", "/iam")):
            known[path] = _members(as_object(exchange.response))
    return {path: sorted(changes) for path, changes in found.items()}


def _members(policy: JsonObject) -> set[str]:
    return {
        f"{as_object(binding).get('role')} {member}" + (f" if {shown(condition)}" if condition else "")
        for binding in as_list(policy.get("bindings"))
        for member in as_list(as_object(binding).get("members"))
        for condition in [as_object(binding).get("condition")]
    }


def _of_policy(path: str, ours: list[str], theirs: list[str]) -> Iterator[Difference]:
    rest = list(theirs)
    for change in ours:
        if change in rest:
            rest.remove(change)
        else:
            yield Difference(method="setIamPolicy", what="sent", where=path, recorded=change, here=ABSENT)
    for change in rest:
        yield Difference(method="setIamPolicy", what="sent", where=path, recorded=ABSENT, here=change)
