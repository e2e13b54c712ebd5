"""The world before a recording began, as far as its answers show it: projects, enabled APIs, accounts, policies."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from localcloud.json_values import JsonObject, as_list, as_object
from localcloud.recording.recordings import RecordedExchange
from localcloud.services import iam
from localcloud.services.projects import ensure_project
from localcloud.world.cloud import Cloud, project_policy

_PROJECT = re.compile(r"/projects/(?P<project>[a-z][^/:?]*)")
_NUMBER = re.compile(r"projects/(?P<number>\d+)(?:/|$)")
_ACCOUNT = re.compile(r"(?P<id>[a-z][a-z0-9-]*)@(?P<project>[a-z][a-z0-9-]*)\.iam\.gserviceaccount\.com")
_FIRST_ERROR = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Projects with their numbers, the enabled APIs (None: unknown), service accounts as (id, project), policies of projects."""

    projects: dict[str, str | None]
    services: tuple[str, ...] | None
    accounts: tuple[tuple[str, str], ...]
    policies: dict[str, list[JsonObject]]


def beginning(exchanges: Sequence[RecordedExchange]) -> Beginning:
    """Return what the recording shows of the time before it."""
    projects: dict[str, str | None] = {}
    policies: dict[str, list[JsonObject]] = {}
    written: set[str] = set()
    for exchange in exchanges:
        found = _PROJECT.search(exchange.path)
        if found is None or not 0 < exchange.status < _FIRST_ERROR:
            continue
        project = found["project"]
        projects[project] = projects.get(project) or _number(exchange)
        if "/cloudresourcemanager/" in exchange.path:
            if exchange.path.endswith(":setIamPolicy"):
                written.add(project)
            if exchange.path.endswith(":getIamPolicy") and project not in written:
                policies.setdefault(project, as_list(as_object(exchange.response).get("bindings")))
    return Beginning(
        projects=projects,
        services=_services(exchanges),
        accounts=tuple(_accounts(exchanges, projects)),
        policies=policies,
    )


def prepare(cloud: Cloud, found: Beginning) -> None:
    """Make the projects, accounts and policies in a local cloud. Its scenario says which APIs are enabled."""
    for project, number in found.projects.items():
        ensure_project(cloud, project, number)
    for account, project in found.accounts:
        iam.add_account(cloud, project, account)
    for project, bindings in found.policies.items():
        cloud.policies.seed(project_policy(project), bindings)


def _number(exchange: RecordedExchange) -> str | None:
    answer = as_object(exchange.response)
    if answer.get("projectNumber"):
        return str(answer["projectNumber"])
    names = [answer.get("name"), *(as_object(item).get("name") for item in as_list(answer.get("services")))]
    for name in names:
        found = _NUMBER.match(name) if isinstance(name, str) else None
        if found is not None:
            return found["number"]
    return None


def _services(exchanges: Sequence[RecordedExchange]) -> tuple[str, ...] | None:
    """Return the APIs that the lists show before the first one is enabled or disabled."""
    names: set[str] = set()
    listed = False
    for exchange in exchanges:
        if not exchange.path.startswith("/serviceusage/"):
            continue
        if exchange.method == "POST":
            break
        enabled = "ENABLED" in str(exchange.query.get("filter", ""))
        if exchange.path.endswith("/services") and exchange.status < _FIRST_ERROR and enabled:
            listed = True
            names.update(_service_names(as_list(as_object(exchange.response).get("services"))))
    return tuple(sorted(names)) if listed else None


def _service_names(services: Iterable[object]) -> Iterable[str]:
    for item in services:
        yield str(as_object(item).get("name", "")).rpartition("/")[2]


def _accounts(exchanges: Sequence[RecordedExchange], projects: dict[str, str | None]) -> Iterable[tuple[str, str]]:
    """Yield the service accounts that the recording names and does not create."""
    named: dict[tuple[str, str], None] = {}
    created: set[tuple[str, str]] = set()
    for exchange in exchanges:
        for found in _ACCOUNT.finditer(f"{exchange.path} {exchange.request!r} {exchange.response!r}"):
            if found["project"] in projects:
                named[found["id"], found["project"]] = None
        project = _PROJECT.search(exchange.path)
        if exchange.method == "POST" and exchange.path.endswith("/serviceAccounts") and project is not None:
            created.add((str(as_object(exchange.request).get("accountId")), project["project"]))
    return [each for each in named if each not in created]
