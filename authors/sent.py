"""Comparison of the changes that two runs sent to a local cloud, from its request log, without the responses.

`python -m authors.sent FILE` saves the log of the local cloud of the environment.
"""

import json
import os
import re
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

Request = Mapping[str, Any]
"""An entry of the request log (GET /admin/requests)."""
_MOST: Final = 5000
"""Maximum number of requests that the local cloud stores."""
_ABSENT: Final = "(absent)"
_LONGEST: Final = 160
_IDENTITIES: Final = ("name", "role", "key", "id", "port", "zone", "selector")
"""Fields that identify the items of a list. Without one, items are compared by position."""
_READING: Final = re.compile(r":(?:get|list|test|fetch|search|query)[A-Z]\w*$|/wait$|:wait$|:access$")
_FAILED_FROM: Final = 400
_REPEATED: Final = frozenset({None, 409, 412, 429, 500, 502, 503, 504})
"""Statuses after which a client retries, which depend on timing."""
_CHANCE: Final = (
    (re.compile(r"https?://[^/\s]+/(?:compute/(?=compute/)|storage/(?=storage/))?"), "//"),
    (re.compile(r"(?<=-\d{5}-)[a-z0-9]{3}\b"), "..."),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "..."),
)
"""Parts of texts that differ between two local clouds: ports, random suffixes of revisions, operation ids."""
IGNORED: Final = {
    "etag": "Each cloud returns its own; the clients send it back.",
    "fingerprint": "As `etag`, in Compute Engine.",
    "requestId": "Chosen by the clients.",
    "generation": "Cloud Storage counts generations from the time.",
    "ifGenerationMatch": "As `generation`.",
    "alt": "Google's Go clients request JSON, which is the default.",
    "prettyPrint": "Google's Go clients request no indentation.",
    "upload_id": "Each cloud returns its own.",
}
"""Query parameters and fields that may differ, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentDifference:
    """One difference. `first` and `second` are the two sides."""

    method: str
    where: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.method}: {self.where}: {self.first} | {self.second}"


def changes(log: Sequence[Request]) -> list[Request]:
    """Return the changes in a log that the operator's programs sent and did not have to repeat."""
    return [
        entry
        for entry in log
        if entry["method"] != "GET"
        and entry.get("id")
        and not _READING.search(entry["path"])
        and entry.get("status") not in _REPEATED
        and entry.get("operator", True)
    ]


def compare(first: Sequence[Request], second: Sequence[Request]) -> tuple[int, list[SentDifference]]:
    """Return the number of compared changes, and the differences for each resource, in order."""
    left, right = _by_resource(first), _by_resource(second)
    found: list[SentDifference] = []
    for resource in dict.fromkeys([*left, *right]):
        found += _of_resource(resource, left.get(resource, []), right.get(resource, []))
    ours, theirs = _grants(first), _grants(second)
    for path in dict.fromkeys([*ours, *theirs]):
        one, two = ours.get(path, set()), theirs.get(path, set())
        found += [SentDifference(method="setIamPolicy", where=path, first=each, second=_ABSENT) for each in one - two]
        found += [SentDifference(method="setIamPolicy", where=path, first=_ABSENT, second=each) for each in two - one]
    return len(changes(first)), found


def _by_resource(log: Sequence[Request]) -> dict[str, list[Request]]:
    found: dict[str, list[Request]] = {}
    for entry in changes(log):
        if not _is_policy(entry):
            found.setdefault(_resource(entry), []).append(entry)
    return found


def _resource(entry: Request) -> str:
    """Return the path of the resource that a request changes. A creation has its name in the query or the body."""
    path = str(entry["path"]).partition(":")[0]
    if entry["method"] != "POST" or ":" in entry["path"]:
        return path
    query, body = _object(entry.get("query")), _object(entry.get("body"))
    ids = [value for key, value in sorted(query.items()) if key.endswith("Id") and key != "requestId"]
    names = [*ids, query.get("name"), *(body.get(key) for key in ("name", "accountId", "displayName"))]
    return "/".join([path, *[each for each in names if isinstance(each, str)][:1]])


def _of_resource(resource: str, ours: Sequence[Request], theirs: Sequence[Request]) -> Iterator[SentDifference]:
    left, right = ([_step(each) for each in steps] for steps in (ours, theirs))
    method = str((*ours, *theirs)[0]["id"])
    if left != right:
        yield SentDifference(
            method=method, where=resource, first=" > ".join(left) or _ABSENT, second=" > ".join(right) or _ABSENT
        )
        return
    for one, other in zip(ours, theirs, strict=True):
        for part in ("query", "body", "content"):
            yield from _values(str(one["id"]), part, one.get(part), other.get(part))
        if (one["status"] < _FAILED_FROM) != (other["status"] < _FAILED_FROM):
            sides = str(one["status"]), str(other["status"])
            yield SentDifference(method=str(one["id"]), where=f"{resource} status", first=sides[0], second=sides[1])


def _step(entry: Request) -> str:
    """Return the operation on the resource: the verb, and the custom method if there is one."""
    return f"{entry['method']} {str(entry['path']).partition(':')[2]}".strip()


def _values(method: str, at: str, one: object, two: object) -> Iterator[SentDifference]:
    if isinstance(one, dict) and isinstance(two, dict):
        left, right = _object(cast("object", one)), _object(cast("object", two))
        for key in sorted({*left, *right} - set(IGNORED)):
            yield from _values(method, f"{at}.{key}", left.get(key, _ABSENT), right.get(key, _ABSENT))
    elif isinstance(one, list) and isinstance(two, list):
        yield from _values(method, at, _keyed(cast("list[object]", one)), _keyed(cast("list[object]", two)))
    else:
        yield from _leaves(method, at, cast("object", one), two)


def _leaves(method: str, at: str, one: object, two: object) -> Iterator[SentDifference]:
    if _plain(one) != _plain(two):
        yield SentDifference(method=method, where=at, first=_shown(one), second=_shown(two))


def _object(value: object) -> dict[str, Any]:
    """Return a JSON object unchanged and anything else as an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _keyed(items: list[object]) -> dict[str, object]:
    """Return the items of a list by their identifying field, or by position."""
    objects = [cast("dict[str, object]", item) for item in items if isinstance(item, dict)]
    for name in _IDENTITIES:
        keys = [str(item[name]) for item in objects if isinstance(item.get(name), str | int)]
        if keys and len(keys) == len(set(keys)) == len(items):
            return dict(zip(keys, items, strict=True))
    return {str(number): item for number, item in enumerate(items)}


def _plain(value: object) -> object:
    if not isinstance(value, str):
        return value
    for form, replacement in _CHANCE:
        value = form.sub(replacement, value)
    return value


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _is_policy(entry: Request) -> bool:
    return str(entry["path"]).endswith(":setIamPolicy") or (
        entry["method"] == "PUT" and str(entry["path"]).endswith("/iam")
    )


def _grants(log: Sequence[Request]) -> dict[str, set[str]]:
    """Return, for each resource with a policy, all grants that it had at any time, because their order varies."""
    found: dict[str, set[str]] = {}
    for entry in filter(_is_policy, changes(log)):
        body = _object(entry.get("body"))
        path = str(entry["path"]).partition(":")[0]
        bindings: list[dict[str, Any]] = _object(body.get("policy") or body).get("bindings", [])
        for binding in bindings:
            condition = f" if {_shown(binding['condition'])}" if binding.get("condition") else ""
            for member in binding.get("members", []):
                found.setdefault(path, set()).add(f"{binding.get('role')} {member}{condition}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the request log of the local cloud of the environment to a file. Return 1 if it may be incomplete."""
    (target,) = sys.argv[1:] if arguments is None else arguments
    request = urllib.request.Request(  # noqa: S310 - this machine
        f"{os.environ['LOCALCLOUD_URL']}/admin/requests",
        headers={"Authorization": f"Bearer {os.environ['LOCALCLOUD_TOKEN']}"},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - this machine
        log = json.load(answer)["requests"]
    Path(target).write_text(json.dumps(log), encoding="utf-8")
    if len(log) >= _MOST:
        print(f"sent: the local cloud stores {_MOST} requests, but the run sent more.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
