"""Resources that trials can create: how each kind is named, labeled, listed and deleted.

Every name starts with PREFIX. Kinds that have labels or a description also have an ownership marker. A resource of such a kind
without the marker is not owned and is left alone. If the server chooses the id, the display name is the name.
"""

import json
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import parse_qs, urlsplit, urlunsplit

from localcloud.json_values import JsonObject, as_list, as_object, packaged, part

PREFIX: Final = "localcloud-try-"
MARK: Final = "localcloud-try"
"""A label's key, and the first word of a description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A collection of an API. `name_at`: a query parameter, or a field of the body. `mark_at`: path of the labels or description."""

    items: str
    name_at: str
    is_in_query: bool = False
    mark_at: Sequence[str] = ()
    delete_query: str = ""
    has_server_id: bool = False
    """True if the server chooses the id, so `name_at` is the display name."""
    seconds: float = 4
    """Approximate duration of its creation and deletion on Google, in seconds (assumed)."""


_TABLES: Final = packaged("localcloud.trials", "resources.json")
KINDS: Final = {name: Kind(**row) for name, row in part(_TABLES, "kinds").items()}
"""By the last segment of the collection's path."""
FIRST_TO_GO: Final = tuple(reversed(("networks", "subnetworks", *(name for name in KINDS if "network" not in name))))
"""The deletion order: users of a network before the network."""
_FIXTURES: Final = part(_TABLES, "fixtures")
_LOGIN: Final = '"Authorization: Bearer $(gcloud auth print-access-token)"'


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResource:
    """A resource that a request creates: its collection's URL without a query, its kind and its name.

    `id`: the id that the server chose; empty if the server does not choose it, or has not answered.
    """

    collection: str
    kind: Kind
    name: str
    id: str = ""

    @property
    def is_identified(self) -> bool:
        """Return whether its URL is known. Otherwise a listing must show it."""
        return not self.kind.has_server_id or bool(self.id)

    @property
    def delete_url(self) -> str:
        """Return the URL of its deletion."""
        return self.url + (f"?{self.kind.delete_query}" if self.kind.delete_query else "")

    @property
    def url(self) -> str:
        """Return its own URL, or its collection's with its display name if its id is unknown."""
        if not self.is_identified:
            return f"{self.collection}?displayName={self.name}"
        name = self.id or self.name
        if self.collection.endswith("/serviceAccounts"):
            project = self.collection.split("/projects/")[1].split("/")[0]
            name = f"{name}@{project}.iam.gserviceaccount.com"
        return f"{self.collection}/{name}"


@dataclass(frozen=True, slots=True)
class OwnResource:
    """A resource that a run of this journal created, by its own request, or by the run's id in name and mark. Each deletion takes one."""

    resource: TrialResource


def created_by(method: str, url: str, body: str | None, answer: object = None) -> TrialResource | None:
    """Return the resource that a request creates if it is accepted, or None. The response contains the name if the server chose it."""
    parts = urlsplit(url)
    last = parts.path.rpartition("/")[2]
    kind = KINDS.get(last)
    if method != "POST" or kind is None:
        return None
    given = parse_qs(parts.query).get(kind.name_at, [""])[0] if kind.is_in_query else None
    name = str(as_object(parsed(body)).get(kind.name_at) or "") if given is None else given
    shown = as_object(answer)
    shown_name = "" if "metadata" in shown else _last(shown)
    if kind.has_server_id:
        return TrialResource(collection=collection_of(url), kind=kind, name=name, id=shown_name)
    name = name or shown_name or str(as_object(shown.get("metadata")).get("target") or "").rpartition("/")[2]
    return TrialResource(collection=collection_of(url), kind=kind, name=name)


def _last(item: Mapping[str, object]) -> str:
    """Return the last segment of a resource's name, or the first part of an account's email address."""
    return str(item.get("email") or item.get("name") or "").rpartition("/")[2].partition("@")[0]


def collection_of(url: str) -> str:
    """Return a URL without its query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))


def marked(method: str, url: str, body: str | None, run: str) -> str | None:
    """Return the request body with this run's ownership marker, if the request creates a resource that can have one."""
    created = created_by(method, url, body)
    value = parsed(body)
    if created is None or not created.kind.mark_at or not isinstance(value, dict):
        return body
    *path, last = created.kind.mark_at
    at: JsonObject = cast("JsonObject", value)
    for step in path:
        at = at.setdefault(step, {})
    if last in {"labels", "userLabels"}:
        labels = at.setdefault(last, {})
        if isinstance(labels, dict):
            labels[MARK] = run
    else:
        at.setdefault(last, f"{MARK} {run}")
    return json.dumps(value)


def fixture(word: str, *, project: str, name: str, run: str) -> tuple[str, str]:
    """Return the URL and the body of the request that creates a fixture."""
    url = str(_FIXTURES[word]["url"]).replace("PROJECT", project)
    kind = KINDS[urlsplit(url).path.rpartition("/")[2]]
    wanted = {**part(_FIXTURES[word], "body")}
    if kind.is_in_query:
        url += f"?{kind.name_at}={name}"
    else:
        wanted[kind.name_at] = name
    text = json.dumps(wanted)
    return url, marked("POST", url, text, run) or text


def fixture_seconds(words: Iterable[str]) -> float:
    """Return the approximate duration of the creation and deletion of fixtures, in seconds."""
    return sum(KINDS[urlsplit(str(_FIXTURES[word]["url"])).path.rpartition("/")[2]].seconds for word in words)


def fixture_collections(project: str) -> frozenset[str]:
    """Return the URLs of all collections in which fixtures are created, with the query that their lists need."""
    return frozenset(str(row["url"]).replace("PROJECT", project) for row in _FIXTURES.values())


def own_items(url: str, answer: object, runs: Collection[str]) -> tuple[list[OwnResource], list[str]]:
    """Return the resources of a listing that these runs created, and a sentence about each that only looks like theirs."""
    collection = collection_of(url)
    kind = KINDS[urlsplit(url).path.rpartition("/")[2]]
    own: list[OwnResource] = []
    foreign: list[str] = []
    for item in map(as_object, as_list(as_object(answer).get(kind.items))):
        chosen = _last(item)
        name = str(item.get(kind.name_at) or "") if kind.has_server_id else chosen
        if not name.startswith(PREFIX):
            continue
        found = TrialResource(collection=collection, kind=kind, name=name, id=chosen if kind.has_server_id else "")
        is_named = any(name.startswith(PREFIX + run) for run in runs)
        if is_named and (not kind.mark_at or _mark(kind, item) in runs):
            own.append(OwnResource(found))
        else:
            command = f"curl -X DELETE -H {_LOGIN} {shlex.quote(found.delete_url)}"
            foreign.append(
                f"{found.url}: no run of this journal has its name and label. If no run uses it, run `{command}`"
            )
    return own, foreign


def _mark(kind: Kind, item: Mapping[str, object]) -> str:
    """Return the id of the run in a resource's label or description; empty without one."""
    if kind.mark_at[-1] in {"labels", "userLabels"}:
        return str(as_object(item.get(kind.mark_at[-1])).get(MARK) or "")
    word, _, run = str(item.get("description") or "").partition(" ")
    return run if word == MARK else ""


def parsed(body: str | None) -> object:
    """Return the JSON value of a body, or None if it is not JSON."""
    try:
        return json.loads(body or "")
    except ValueError:
        return None
