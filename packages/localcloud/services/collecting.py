"""What deployed collectors scrape: each target with its address, and the labels under which Google stores it. No collector, no data.

A Cloud Run revision has a collector if one of its containers is one; it shares the instance's network, and stops with the instance. On a
machine it is a container beside the server, and it scrapes while the server is down.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from localcloud.json_values import JsonObject, as_list, as_object, part
from localcloud.rules.evaluator import Scrape
from localcloud.services.collector_config import Target, targets
from localcloud.services.serviceusage import answers
from localcloud.world.cloud import Cloud, project_policy
from localcloud.world.collector import CollectorConfigError, config_text, is_collector
from localcloud.world.run_messages import container_port, serving_container
from localcloud.world.runtime import RevisionFailedError, RunningInstance

_LOCAL: Final = {"localhost", "127.0.0.1", "0.0.0.0", "[::1]"}
_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)
"""Real seconds for one scrape. Prometheus' default is 10 s."""
_FRESH_S: Final = 0.5
"""Real seconds for which the rounds of one catch-up use the same exposition: within them a server cannot have changed much."""
_MACHINES: Final = ("tpu.nodes", "compute.instances")
_WRITE: Final = "monitoring.timeSeries.create"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """One target of a deployed collector. `url` None: nothing listens."""

    owner: str
    """Full name of the revision or machine."""
    target: Target
    url: str | None
    account: str
    """Service account that writes the samples."""
    waits_for: str = ""
    """URL of the server whose first response starts the collector. Empty: it does not wait."""
    identity: str = ""

    @property
    def project(self) -> str:
        """Return the project that stores the samples."""
        return self.target.resource["project_id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Response:
    """Response of a target: its status, 0 for none, and its text."""

    status: int = 0
    text: str = ""


class Expositions:
    """The responses of one catch-up, by URL and token."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._known: dict[tuple[str, str], tuple[float, _Response]] = {}

    async def read(self, url: str, token: str = "") -> str | None:
        """Return the exposition at a URL, or None if it does not answer 200 in time."""
        response = await self._response(url, token)
        return response.text if response.status == HTTPStatus.OK else None

    async def has_started(self, url: str) -> bool:
        """Return whether a server answers there, with any status that is not its own failure."""
        return 0 < (await self._response(url)).status < HTTPStatus.INTERNAL_SERVER_ERROR

    async def _response(self, url: str, token: str = "") -> _Response:
        known = self._known.get((url, token))
        if known is None or monotonic() - known[0] > _FRESH_S:
            found = await self._get(url, token)
            known = self._known[url, token] = (monotonic(), found)
        return known[1]

    async def _get(self, url: str, token: str) -> _Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            async with self._session.get(url, headers=headers, timeout=_TIMEOUT, allow_redirects=False) as response:
                return _Response(status=response.status, text=await response.text())
        except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError):
            return _Response()


class Collecting:
    """The collectors of a cloud."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._started: set[str] = set()
        self.problems: dict[str, str] = {}
        """Why a collector stores nothing, by the revision or machine."""

    def targets(self) -> list[Collected]:
        """Return the targets of all running collectors whose samples Google would store."""
        self.problems = {}
        found = list(self._of_revisions())
        for kind in _MACHINES:
            for name, document in self._cloud.store.under(kind):
                found += self._of_machine(name, document)
        return [each for each in found if not self._is_denied(each)]

    async def scrape(self, each: Collected, expositions: Expositions) -> Scrape | None:
        """Return a scrape of a target, or None while its collector has not started."""
        if each.waits_for and each.identity not in self._started:
            if not await expositions.has_started(each.waits_for):
                return None
            self._started.add(each.identity)
        text = None if each.url is None else await expositions.read(each.url, each.target.token)
        target = each.target
        return Scrape(
            text=text or "",
            labels=target.labels,
            resource=target.resource,
            relabel=target.relabel,
            up=text is not None,
        )

    def _is_denied(self, each: Collected) -> bool:
        """Return whether Google rejects the samples, and record why."""
        problem = ""
        if not answers(self._cloud, each.project, "monitoring"):
            problem = f"The Cloud Monitoring API of {each.project} is not enabled."
        elif not self._cloud.policies.allows(each.account, _WRITE, [project_policy(each.project)]):
            problem = f"{each.account} lacks {_WRITE} (roles/monitoring.metricWriter)."
        if problem:
            self.problems[each.owner] = problem
        return bool(problem)

    def _of_revisions(self) -> Iterator[Collected]:
        for instance in self._cloud.runtimes.revisions.instances():
            template = dict(instance.revision.template)
            for container in map(as_object, as_list(template.get("containers"))):
                if is_collector(str(container.get("image", ""))):
                    yield from self._of_sidecar(instance, template, container)

    def _of_sidecar(self, instance: RunningInstance, template: JsonObject, sidecar: JsonObject) -> Iterator[Collected]:
        server = serving_container(template)
        port = container_port(server)
        waits = bool(server.get("name")) and server["name"] in as_list(sidecar.get("dependsOn"))
        words = [str(word) for word in (*as_list(sidecar.get("command")), *as_list(sidecar.get("args")))]
        try:
            text = config_text(words, _variables(instance, sidecar), _no_file)
            found = targets(text, _detected_on_run(instance))
        except CollectorConfigError as error:
            self.problems[instance.revision.name] = str(error)
            return
        for target in found:
            reached = target.host in _LOCAL and target.port == port
            yield Collected(
                owner=instance.revision.name,
                target=target,
                url=f"{instance.url}{target.path}" if reached else None,
                account=str(
                    template.get("serviceAccount") or self._cloud.default_account(target.resource["project_id"])
                ),
                waits_for=f"{instance.url}{target.path}" if waits else "",
                identity=instance.identity,
            )

    def _of_machine(self, name: str, document: JsonObject) -> Iterator[Collected]:
        machines, project = self._cloud.runtimes.machines, name.split("/")[1]
        given = as_object(document.get("_request")).get("account") or as_object(document.get("serviceAccount")).get(
            "email"
        )
        account = str(given or self._cloud.default_account(project))
        for text in machines.collectors(name):
            try:
                found = targets(text, _detected_on_machine(name, document))
            except CollectorConfigError as error:
                self.problems[name] = str(error)
                continue
            for target in found:
                at = machines.address(name, target.port) if target.host in _LOCAL else None
                yield Collected(
                    owner=name,
                    target=target,
                    url=None if at is None else f"http://{at[0]}:{at[1]}{target.path}",
                    account=account,
                )


def address_of(url: str) -> str:
    """Return host and port of a URL."""
    return urlsplit(url).netloc


def _no_file(path: str) -> str:
    raise CollectorConfigError(
        f"The local cloud reads a sidecar's configuration from --config=env:NAME or --config=yaml:TEXT, not from {path}."
    )


def _variables(instance: RunningInstance, container: JsonObject) -> dict[str, str]:
    service = instance.revision.service.rpartition("/")[2]
    own = {str(item.get("name")): _value(instance, item) for item in map(as_object, as_list(container.get("env")))}
    revision = instance.revision.name.rpartition("/")[2]
    return {**own, "K_SERVICE": service, "K_REVISION": revision, "K_CONFIGURATION": service}


def _value(instance: RunningInstance, variable: JsonObject) -> str:
    """Return a variable's value, or its secret's. Raises CollectorConfigError if the account cannot read the secret."""
    reference = part(part(variable, "valueSource"), "secretKeyRef")
    if not reference:
        return str(variable.get("value") or "")
    try:
        return instance.read_secret(str(reference["secret"]), str(reference.get("version") or "latest"))
    except RevisionFailedError as error:
        raise CollectorConfigError(str(error)) from None


def _detected_on_run(instance: RunningInstance) -> Mapping[str, str]:
    """Return the attributes of the detector gcp in a Cloud Run container (opentelemetry-operations-go, detectors/gcp)."""
    _, project, _, region, *_ = instance.revision.name.split("/")
    return {
        "cloud.provider": "gcp",
        "cloud.platform": "gcp_cloud_run",
        "cloud.account.id": project,
        "cloud.region": region,
        "faas.name": instance.revision.service.rpartition("/")[2],
        "faas.version": instance.revision.name.rpartition("/")[2],
        "faas.instance": instance.identity,
    }


def _detected_on_machine(name: str, document: JsonObject) -> Mapping[str, str]:
    """Return the attributes of the detector gcp on a virtual machine. `name` is projects/P/locations/ZONE/nodes/N or projects/P/zones/ZONE/instances/N."""
    _, project, _, zone, *_ = name.split("/")
    return {
        "cloud.provider": "gcp",
        "cloud.platform": "gcp_compute_engine",
        "cloud.account.id": project,
        "cloud.availability_zone": zone,
        "cloud.region": re.sub(r"-[a-z]$", "", zone),
        "host.id": str(document.get("id") or ""),
        "host.name": name.rpartition("/")[2],
    }


def described(found: Sequence[Collected], problems: Mapping[str, str]) -> JsonObject:
    """Return targets and problems for the admin API."""
    rows = [
        {
            "owner": each.owner,
            "address": None if each.url is None else address_of(each.url),
            "path": each.target.path,
            "intervalS": each.target.interval_s,
            "labels": {**each.target.labels, **each.target.resource},
        }
        for each in found
    ]
    return {"targets": rows, "problems": dict(problems)}
