"""Cloud Run v2: deployments. Revisions start in the revision runtime; the front runtime routes the traffic."""

import copy
import random
import re
import string
import uuid
from datetime import datetime

from localcloud.json_values import JsonObject, part
from localcloud.rest.errors import CloudError
from localcloud.services import networks
from localcloud.services.run_limits import COMPUTE_QUOTAS, gpu_of, max_instances
from localcloud.services.run_references import DeploymentFailedError, References
from localcloud.services.service import visible
from localcloud.world import run_messages
from localcloud.world.cloud import Cloud
from localcloud.world.runtime import Egress, RevisionFailedError, RevisionSpec

SERVICES, REVISIONS = "run.services", "run.revisions"
USED = "run.used"
"""Kind of the records of deleted services, with their times in use: Cloud Monitoring keeps their metrics."""
TYPE = "type.googleapis.com/google.cloud.run.v2"
LATEST = "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST"
BY_REVISION = "TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION"
_CONTAINER_ERROR = "HEALTH_CHECK_CONTAINER_ERROR"
NOT_OF_THE_REVISION = ("revision", "client", "clientVersion")
"""Template fields that do not cause a new revision and are not stored with it."""


class Deployments:
    """Revisions and traffic of all services."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._store = cloud.store

    def new_revision(self, name: str, document: JsonObject) -> str:
        """Store a revision of the wanted template and return its full name."""
        short = name.rpartition("/")[2]
        letters = "".join(random.choices(string.ascii_lowercase + string.digits, k=3))  # noqa: S311 - a name, not a secret
        chosen = document["template"].get("revision") or f"{short}-{document['_serial']:05d}-{letters}"
        if not re.fullmatch(f"{short}-[a-z0-9-]*[a-z0-9]", chosen):
            raise CloudError.field(
                "service.template.revision",
                f"Revision name '{chosen}' must begin with the service's name and a dash, '{short}-'.",
            )
        full = f"{name}/revisions/{chosen}"
        if self._store.has(REVISIONS, full):
            raise CloudError.already_exists(f"Revision named '{chosen}' already exists.")
        template = {key: value for key, value in document["template"].items() if key not in NOT_OF_THE_REVISION}
        now = self._cloud.timeline.stamp()
        self._store.put(
            REVISIONS,
            full,
            {
                **template,
                "name": full,
                "uid": str(uuid.uuid4()),
                "service": name,
                "generation": "1",
                "createTime": now,
                "updateTime": now,
                "launchStage": document["launchStage"],
                "reconciling": True,
                "conditions": [condition("Ready", "CONDITION_RECONCILING", now)],
                "observedGeneration": "1",
                "_template": template,
            },
        )
        return full

    async def open_front(self, name: str, document: JsonObject) -> None:
        """Open the service's front, on its previous port if that is free, and store its URL."""
        known = document.get("_port")
        port = await self._cloud.runtimes.fronts.open(name, port=known)
        url = f"http://127.0.0.1:{port}"
        document.update(_port=port, uri=url, urls=[url])
        self._store.put(SERVICES, name, document)

    async def deploy(self, name: str, generation: str, operation: str) -> None:
        """Deploy the wanted state: a new revision if needed, then the traffic. The operation always finishes."""
        document = self._store.get(SERVICES, name)
        if document is None:
            return
        revision = str(document["latestCreatedRevision"])
        await self._cloud.timeline.clock.sleep(self._cloud.duration_s(self._cloud.scenario.operations.run_s))
        try:
            if document.get("_deploying", True):
                if not self._ready(revision):
                    await self._start(name, revision)
                await self._serve(name, revision, generation, operation)
            else:
                await self._shift(name, revision, generation, operation)
        except DeploymentFailedError as error:
            self._failed(name, revision, generation, error, operation)
        except Exception as error:  # noqa: BLE001 - the operation must finish after any error of the runtime
            self._failed(
                name,
                revision,
                generation,
                DeploymentFailedError(f"Internal error: {error!r}", reason="INTERNAL", code=13),
                operation,
            )

    async def _serve(self, name: str, revision: str, generation: str, operation: str) -> None:
        """Route the traffic to the ready revision and finish the operation."""
        await self._open_tags(name)
        document = self._store.get(SERVICES, name)
        if document is None or not self._store.has(REVISIONS, revision):
            await self._cloud.runtimes.revisions.stop(revision)
            self._cloud.operations.finish(
                "run",
                operation,
                error={
                    "code": 10,
                    "message": f"The service '{name.rpartition('/')[2]}' was deleted while it was being deployed.",
                },
            )
            return
        now = self._cloud.timeline.stamp()
        document["latestReadyRevision"] = revision
        if document["generation"] == generation:
            self._settle(document, now)
        self._store.put(SERVICES, name, document)
        await self._route(name)
        response = {"@type": f"{TYPE}.Service", **visible(self._store.get(SERVICES, name) or document)}
        self._cloud.operations.finish("run", operation, response=response, metadata=response)

    async def _shift(self, name: str, revision: str, generation: str, operation: str) -> None:
        """Start revisions that get traffic but have no instance, route the traffic, and finish the operation. No revision is created.

        A failed latest revision stays failed, and so does the service. The operation reports it although the routes have changed.
        """
        for serving in self.serving(self._store.get(SERVICES, name) or {}):
            if not self._ready(serving):
                try:
                    await self._start(name, serving)
                except DeploymentFailedError as error:
                    self._failed(name, serving, generation, error, operation)
                    return
        if (self._store.get(SERVICES, name) or {}).get("latestReadyRevision") == revision:
            await self._serve(name, revision, generation, operation)
            return
        await self._open_tags(name)
        document = self._store.get(SERVICES, name)
        if document is not None and document["generation"] == generation:
            document.update(reconciling=False, observedGeneration=generation)
            document["trafficStatuses"] = self.statuses(document)
            self._store.put(SERVICES, name, document)
        await self._route(name)
        message = str(part(document or {}, "terminalCondition").get("message", "The latest revision is not ready."))
        self._cloud.operations.finish("run", operation, error={"code": 9, "message": message})

    async def _start(self, name: str, revision: str) -> None:
        """Check the revision's references and the remaining quotas, then start it."""
        record = self._store.get(REVISIONS, revision)
        if record is None:
            return
        template: JsonObject = record["_template"]
        self._require_gpus(revision, template)
        self._require_cpus_and_memory(name, revision, template)
        references = References(cloud=self._cloud, service=name, template=template)
        used = references.networks()
        networks.reserve_addresses(self._cloud, name, used)
        egress = references.egress(used)
        references.images()
        references.secrets()
        self._mounted(references, revision, egress)
        spec = RevisionSpec(name=revision, service=name, template=copy.deepcopy(template), egress=egress)
        try:
            url = await self._cloud.runtimes.revisions.start(spec)
        except RevisionFailedError as error:
            raise _container_failed(str(error)) from None
        record = self._store.get(REVISIONS, revision)
        if record is not None:
            conditions = [
                condition(kind, "CONDITION_SUCCEEDED", self._cloud.timeline.stamp())
                for kind in ("Ready", "Active", "ContainerHealthy", "ContainerReady", "ResourcesAvailable")
            ]
            record.update(conditions=conditions, _url=url)
            record.pop("reconciling", None)
            self._store.put(REVISIONS, revision, record)

    def _mounted(self, references: References, revision: str, egress: Egress) -> None:
        """Raise DeploymentFailedError if a Cloud Storage volume cannot be mounted. Only the log contains the reason."""
        found = references.unmountable(egress)
        if found is None:
            return
        volume, reason = found
        service = references.service
        for line in run_messages.not_mounted(volume, reason, references.template, service=service):
            self._cloud.logs.write(run_messages.entry(line, revision))
        raise _container_failed(run_messages.not_started(references.template))

    def _failed(self, name: str, revision: str, generation: str, error: DeploymentFailedError, operation: str) -> None:
        now = self._cloud.timeline.stamp()
        if error.reason == _CONTAINER_ERROR:
            message = run_messages.with_logs_url(str(error), revision)
            self._cloud.logs.write(run_messages.not_ready_event(message, revision, creating=generation == "1"))
            why = {"message": message, "revisionReason": error.reason}
            # The image was found; the container was not healthy.
            others = [
                condition("ContainerReady", "CONDITION_SUCCEEDED", now),
                {**condition("ContainerHealthy", "CONDITION_FAILED", now), **why},
                condition("ResourcesAvailable", "CONDITION_SUCCEEDED", now),
            ]
            self._revision_failed(revision, [{**condition("Ready", "CONDITION_FAILED", now), **why}, *others])
        else:
            message = f"Revision '{revision.rpartition('/')[2]}' is not ready and cannot serve traffic. {error}"
            why = {"message": message, "reason": "REVISION_FAILED"}
            of_revision = {"message": str(error), "reason": error.reason}
            self._revision_failed(revision, [{**condition("Ready", "CONDITION_FAILED", now), **of_revision}])
        self._service_failed(name, generation, {**condition("Ready", "CONDITION_FAILED", now), **why})
        self._cloud.operations.finish("run", operation, error={"code": error.code, "message": message})

    def _revision_failed(self, revision: str, conditions: list[JsonObject]) -> None:
        record = self._store.get(REVISIONS, revision)
        if record is not None:
            record["conditions"] = conditions
            record.pop("reconciling", None)
            self._store.put(REVISIONS, revision, record)

    def _service_failed(self, name: str, generation: str, failed: JsonObject) -> None:
        document = self._store.get(SERVICES, name)
        if document is None or document["generation"] != generation:
            return
        # The routes keep serving the last ready revision, if one exists.
        serving = condition("RoutesReady", "CONDITION_SUCCEEDED", failed["lastTransitionTime"])
        routes = serving if document.get("latestReadyRevision") else {**failed, "type": "RoutesReady"}
        document.update(
            terminalCondition=failed,
            conditions=[routes, {**failed, "type": "ConfigurationsReady"}],
            reconciling=False,
            observedGeneration=generation,
        )
        document["trafficStatuses"] = self.statuses(document)
        document["_deploying"] = False
        self._store.put(SERVICES, name, document)

    def _settle(self, document: JsonObject, now: str) -> None:
        ready = condition("Ready", "CONDITION_SUCCEEDED", now)
        others = [condition(kind, "CONDITION_SUCCEEDED", now) for kind in ("RoutesReady", "ConfigurationsReady")]
        document.update(
            terminalCondition=ready, conditions=others, reconciling=False, observedGeneration=document["generation"]
        )
        document["trafficStatuses"] = self.statuses(document)

    def statuses(self, document: JsonObject) -> list[JsonObject]:
        """Return the traffic targets with the URLs of their tags. A target that follows the latest revision names no revision."""
        ports: dict[str, int] = document.get("_tags") or {}
        statuses: list[JsonObject] = []
        for target in document.get("traffic") or ():
            status = dict(target)
            if target.get("tag") in ports:
                status["uri"] = f"http://127.0.0.1:{ports[target['tag']]}"
            if target.get("type") == BY_REVISION or document.get("latestReadyRevision"):
                statuses.append(status)
        return statuses

    def _resolved(self, document: JsonObject) -> list[JsonObject]:
        """Return the statuses with the revisions that they refer to now."""
        ready = str(document.get("latestReadyRevision") or "").rpartition("/")[2]
        return [{"revision": ready, **status} for status in self.statuses(document)]

    async def _open_tags(self, name: str) -> None:
        """Open the fronts of the service's tags and close the others. On Google Cloud, tags have the URL https://TAG---SERVICE...run.app."""
        fronts, document = self._cloud.runtimes.fronts, self._store.get(SERVICES, name)
        if document is None:
            return
        known: dict[str, int] = document.get("_tags") or {}
        wanted = [str(target["tag"]) for target in document["traffic"] if target.get("tag")]
        for tag in known.keys() - set(wanted):
            await fronts.close(name, tag=tag)
        opened = {tag: await fronts.open(name, port=known.get(tag), tag=tag) for tag in wanted}
        document = self._store.get(SERVICES, name)
        if document is None:
            for tag in opened:
                await fronts.close(name, tag=tag)
            return
        if opened != known:
            self._store.put(SERVICES, name, {**document, "_tags": opened})

    def serving(self, document: JsonObject) -> list[str]:
        """Return the revisions that receive traffic, largest percentage first."""
        shares = sorted(self._resolved(document), key=lambda status: -int(status.get("percent", 0)))
        return [
            f"{document['name']}/revisions/{status['revision']}"
            for status in shares
            if int(status.get("percent", 0)) > 0 or status.get("tag")
        ]

    def _require_gpus(self, revision: str, template: JsonObject) -> None:
        """Raise DeploymentFailedError if running instances use all GPUs of the region.

        A revision with requests or a tag keeps its minimum number of instances, and here at least one because nothing scales to zero.
        """
        kind, single = gpu_of(template), bool(template.get("gpuZonalRedundancyDisabled"))
        if kind is None:
            return
        region = revision.partition("/services/")[0]
        running = [
            record["_template"]
            for other, record in self._store.under(REVISIONS, region + "/services/")
            if other != revision and "_url" in record
        ]
        alike = [
            used for used in running if gpu_of(used) == kind and bool(used.get("gpuZonalRedundancyDisabled")) == single
        ]
        held, needed = sum(map(_least_instances, alike)), _least_instances(template)
        allowed = self._cloud.scenario.run.gpus_of(region.rpartition("/")[2], kind, zonal=not single)
        if held + needed > allowed:
            raise DeploymentFailedError(
                f"Quota exceeded for GPUs of type {kind} in {region.rpartition('/')[2]}: {held} of {allowed} are in use by running instances, "
                f"and this revision needs {needed}.",
                reason="RESOURCE_EXHAUSTED",
                code=8,
            )

    def _require_cpus_and_memory(self, name: str, revision: str, template: JsonObject) -> None:
        """Raise DeploymentFailedError if all instances of the old and the new revision together exceed a CPU or memory quota.

        Google reports it when the new revision starts (public logs of 2025 and 2026). Public notes disagree on whether it counts the maximum
        instances of both or the running ones. This is the strict reading.
        """
        region = name.split("/")[3]
        beside = [
            record["_template"]
            for other, record in self._store.under(REVISIONS, f"{name}/revisions/")
            if other != revision and "_url" in record
        ]
        for quota in COMPUTE_QUOTAS:
            total = sum(quota.of(each) * max_instances(each) for each in (*beside, template))
            if total > quota.limit(self._cloud.scenario.run, region):
                raise DeploymentFailedError(
                    f"Quota exceeded for total allowable {quota.what} per project per region.",
                    reason="RESOURCE_EXHAUSTED",
                    code=8,
                )

    def _ready(self, revision: str) -> bool:
        return "_url" in (self._store.get(REVISIONS, revision) or {})

    async def _route(self, name: str) -> None:
        """Divide the traffic between the serving revisions, and stop the others after their last requests."""
        document = self._store.get(SERVICES, name)
        if document is None:
            return
        serving = self.serving(document)
        for revision in serving:
            if not self._ready(revision):
                await self._start(name, revision)
        self._divide(name, document)
        for revision, record in self._store.under(REVISIONS, name + "/revisions/"):
            if "_url" in record and revision not in serving:
                url = str(record.pop("_url"))
                record["conditions"] = [
                    *record["conditions"][:1],
                    {
                        **condition("Active", "CONDITION_FAILED", self._cloud.timeline.stamp()),
                        "revisionReason": "RETIRED",
                    },
                ]
                self._store.put(REVISIONS, revision, record)
                self._cloud.spawn(self._stop_drained(revision, url))

    def _divide(self, name: str, document: JsonObject) -> None:
        shares: dict[str, int] = {}
        for status in self._resolved(document):
            record = self._store.get(REVISIONS, f"{name}/revisions/{status['revision']}") or {}
            if "_url" not in record:
                continue
            url = str(record["_url"])
            shares[url] = shares.get(url, 0) + int(status.get("percent", 0))
            if status.get("tag"):
                self._cloud.runtimes.fronts.route(name, {url: 100}, tag=str(status["tag"]))
        self._cloud.runtimes.fronts.route(name, shares)

    async def _stop_drained(self, revision: str, url: str) -> None:
        """Stop an instance after its requests: requests in progress when the traffic changes are completed."""
        await self._cloud.runtimes.fronts.drained(url)
        await self._cloud.runtimes.revisions.stop(revision, url=url)

    async def restart(self, name: str) -> None:
        """Start the serving revisions after a restart of the cloud, then resume the deployment."""
        for revision, record in self._store.under(REVISIONS, name + "/revisions/"):
            record.pop("_url", None)
            self._store.put(REVISIONS, revision, record)
        await self._open_tags(name)
        document = self._store.get(SERVICES, name)
        if document is None:
            return
        document["trafficStatuses"] = self.statuses(document)
        self._store.put(SERVICES, name, document)
        try:
            await self._route(name)
        except DeploymentFailedError as error:
            failed = condition("Ready", "CONDITION_FAILED", self._cloud.timeline.stamp())
            self._failed_again(name, {**failed, "message": str(error)})
        document = self._store.get(SERVICES, name)
        if document is not None and document["reconciling"]:
            await self.deploy(name, document["generation"], document["_operation"])

    def _failed_again(self, name: str, failed: JsonObject) -> None:
        """Store why a service that was ready does not start again. The service may have been deleted in the meantime."""
        document = self._store.get(SERVICES, name)
        if document is not None:
            self._store.put(SERVICES, name, {**document, "terminalCondition": failed})


def condition(kind: str, state: str, now: str) -> JsonObject:
    """Return a Condition of Cloud Run."""
    return {"type": kind, "state": state, "lastTransitionTime": now}


def _least_instances(template: JsonObject) -> int:
    return max(int(part(template, "scaling").get("minInstanceCount", 0)), 1)


def _container_failed(sentence: str) -> DeploymentFailedError:
    """Return the failure of a container that did not start. Its code is 9 (acceptance tests and public logs of 2025 and 2026; 13 before)."""
    return DeploymentFailedError(sentence, reason=_CONTAINER_ERROR, code=9)


def ready_since(cloud: Cloud, service: str) -> datetime | None:
    """Return when the first revision of a service became ready, or None."""
    moments = [
        datetime.fromisoformat(str(condition["lastTransitionTime"]))
        for _, revision in cloud.store.under(REVISIONS, f"{service}/revisions/")
        for condition in revision.get("conditions") or ()
        if condition.get("type") == "Ready" and condition.get("state") == "CONDITION_SUCCEEDED"
    ]
    return min(moments, default=None)
