"""Cloud Run v2: services, their revisions, deployments as operations, traffic, invoker checks."""

import copy
import random
import re
import string
import uuid
from typing import cast

from localcloud.call import Call, Handler, check_id, masked, page
from localcloud.cloud import Cloud, project_policy
from localcloud.errors import CloudError, JsonObject
from localcloud.runtime import Access, Authorize, RevisionFailedError, RevisionSpec
from localcloud.services import run_limits
from localcloud.services.common import (
    check_labels,
    check_region,
    operation_handlers,
    policy_handlers,
    visible,
    with_token,
)
from localcloud.services.run_references import DeploymentFailedError, References

SERVICES, REVISIONS = "run.services", "run.revisions"
_TYPE = "type.googleapis.com/google.cloud.run.v2"
_LATEST = "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST"
_BY_REVISION = "TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION"
_SERVICE_ID = "[a-z]([-a-z0-9]{0,47}[a-z0-9])?"
_MUTABLE = {
    "description", "labels", "annotations", "client", "clientVersion", "ingress", "launchStage", "binaryAuthorization", "template", "traffic", "scaling",
    "invokerIamDisabled", "defaultUriDisabled", "customAudiences", "iapEnabled", "buildConfig", "multiRegionSettings", "functionalType", "sshEnabled",
}  # fmt: skip
_NOT_OF_THE_REVISION = ("revision", "client", "clientVersion")
_MAX_WAIT_S = 300.0
GCLOUD_CLIENT = "32555940559.apps.googleusercontent.com"
"""The audience of `gcloud auth print-identity-token` for people, which Cloud Run takes beside a service's own URLs."""


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Methods of services, revisions and operations."""
    service = _Services(cloud)
    prefix = "run.projects.locations.services"
    return {
        f"{prefix}.create": service.create,
        f"{prefix}.get": service.read,
        f"{prefix}.list": service.listed,
        f"{prefix}.patch": service.patch,
        f"{prefix}.delete": service.delete,
        f"{prefix}.revisions.get": service.read_revision,
        f"{prefix}.revisions.list": service.list_revisions,
        f"{prefix}.revisions.delete": service.delete_revision,
        **policy_handlers(cloud, prefix, service.exists),
        **operation_handlers(cloud, "run", "run.projects.locations.operations"),
        "run.projects.locations.operations.wait": service.wait,
    }


def authorizer(cloud: Cloud) -> Authorize:
    """Who may call a service: the invoker check that stands before each front."""

    def authorize(service: str, token: str | None) -> Access:
        document = cloud.store.get(SERVICES, service)
        if document is None:
            return Access.FORBIDDEN
        resources = [f"//run.googleapis.com/{service}", project_policy(service.split("/")[1])]
        if document.get("invokerIamDisabled") or cloud.policies.allows(None, "run.routes.invoke", resources):
            return Access.ALLOWED
        if token is None:
            return Access.FORBIDDEN
        claims = cloud.tokens.id_token(token)
        audiences = {
            url.rstrip("/") for url in [*document.get("urls", []), *document.get("customAudiences", []), GCLOUD_CLIENT]
        }
        if claims is None or claims.audience.rstrip("/") not in audiences:
            return Access.UNAUTHENTICATED
        if claims.email == cloud.operator or cloud.policies.allows(claims.email, "run.routes.invoke", resources):
            return Access.ALLOWED
        return Access.FORBIDDEN

    return authorize


async def resume(cloud: Cloud) -> None:
    """After a restart: open the fronts where they were, start what served, go on with deployments that were under way."""
    service = _Services(cloud)
    for name, document in cloud.store.under(SERVICES):
        await service.open_front(name, document)
        cloud.spawn(service.restart(name))


class _Services:
    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._store = cloud.store

    def exists(self, call: Call) -> None:
        self._found(call.name)

    async def create(self, call: Call) -> JsonObject:
        check_region(call.name)
        name = f"{call.name}/services/{check_id(call.query.get('serviceId'), 'serviceId', _SERVICE_ID)}"
        if self._store.has(SERVICES, name):
            raise CloudError.already_exists(f"Resource '{name.rpartition('/')[2]}' already exists.")
        return await self._create(call, name)

    async def _create(self, call: Call, name: str) -> JsonObject:
        now = self._cloud.timeline.stamp()
        document: JsonObject = {
            "name": name,
            **{key: value for key, value in call.body.items() if key in _MUTABLE},
            "uid": str(uuid.uuid4()),
            "generation": "1",
            "createTime": now,
            "creator": call.caller.email,
            "_serial": 0,
        }
        self._complete(document, "CreateServiceRequest")
        if call.query.get("validateOnly"):
            return self._validated(name, document)
        return await self._deploy_later(call, name, document)

    def read(self, call: Call) -> JsonObject:
        return self._shown(self._found(call.name))

    def listed(self, call: Call) -> JsonObject:
        parent = call.name
        prefix = parent + "/services/" if not parent.endswith("/locations/-") else parent.removesuffix("-")
        found = [(name, self._shown(document)) for name, document in self._store.under(SERVICES, prefix)]
        services, following = page(found, size=call.query.get("pageSize"), token=call.query.get("pageToken"))
        return with_token({"services": services}, following)

    async def patch(self, call: Call) -> JsonObject:
        name = call.name
        document = self._store.get(SERVICES, name)
        if document is None:
            if not call.query.get("allowMissing"):
                raise self._missing(name)
            return await self._create(call, name)
        given = call.body.get("etag")
        if given and given != document["etag"]:
            raise CloudError.aborted(
                f"Conflict for resource '{name.rpartition('/')[2]}': version '{given}' was specified but current version is '{document['etag']}'."
            )
        mask = call.query.get("updateMask")
        body = {key: value for key, value in call.body.items() if key in _MUTABLE}
        updated = (
            masked(document, body, mask, allowed=_MUTABLE)
            if mask
            else {**{key: value for key, value in document.items() if key not in _MUTABLE}, **body}
        )
        if "template" in body and "revision" not in body["template"]:
            updated["template"].pop("revision", None)
        updated["generation"] = str(int(document["generation"]) + 1)
        self._complete(updated, "UpdateServiceRequest")
        if call.query.get("validateOnly"):
            return self._validated(name, updated)
        updated["_new_revision"] = bool(call.query.get("forceNewRevision")) or self._needs_revision(document, updated)
        return await self._deploy_later(call, name, updated)

    async def delete(self, call: Call) -> JsonObject:
        document = self._found(call.name)
        if call.query.get("etag") and call.query["etag"] != document["etag"]:
            raise CloudError.aborted(
                f"Conflict for resource '{call.name.rpartition('/')[2]}': the etag does not match."
            )
        shown = {**self._shown(document), "deleteTime": self._cloud.timeline.stamp()}
        response = {"@type": f"{_TYPE}.Service", **shown}
        if not call.query.get("validateOnly"):
            self._store.delete(SERVICES, call.name)
            self._cloud.policies.forget(f"//run.googleapis.com/{call.name}")
            runtimes = self._cloud.runtimes
            runtimes.fronts.route(call.name, None)
            await runtimes.fronts.close(call.name)
            for revision, _ in self._store.under(REVISIONS, call.name + "/revisions/"):
                self._store.delete(REVISIONS, revision)
                await runtimes.revisions.stop(revision)
        duration_s = self._cloud.duration_s(self._cloud.scenario.operations.run_s)
        return self._cloud.operations.timed(
            "run", "/".join(call.name.split("/")[:4]), duration_s=duration_s, response=response, metadata=response
        )

    def read_revision(self, call: Call) -> JsonObject:
        document = self._store.get(REVISIONS, call.name)
        if document is None:
            raise self._missing(call.name)
        return visible(document)

    def list_revisions(self, call: Call) -> JsonObject:
        if not call.name.endswith("/services/-"):
            self._found(call.name)
        prefix = call.name + "/revisions/" if not call.name.endswith("/services/-") else call.name.removesuffix("-")
        found = [(name, visible(document)) for name, document in self._store.under(REVISIONS, prefix)]
        revisions, following = page(found, size=call.query.get("pageSize"), token=call.query.get("pageToken"))
        return with_token({"revisions": revisions}, following)

    async def delete_revision(self, call: Call) -> JsonObject:
        document = self.read_revision(call)
        service = self._found(document["service"])
        if call.name in {service.get("latestCreatedRevision"), *self._serving(service)}:
            raise CloudError.precondition(
                f"Revision '{call.name.rpartition('/')[2]}' cannot be deleted: it is the latest one or receives traffic."
            )
        self._store.delete(REVISIONS, call.name)
        await self._cloud.runtimes.revisions.stop(call.name)
        response = {"@type": f"{_TYPE}.Revision", **document}
        return self._cloud.operations.timed("run", "/".join(call.name.split("/")[:4]), duration_s=0, response=response)

    async def wait(self, call: Call) -> JsonObject:
        limit_s = float(str(call.body.get("timeout", f"{_MAX_WAIT_S}s")).removesuffix("s"))
        return await self._cloud.operations.wait("run", call.name, limit_s=min(limit_s, _MAX_WAIT_S))

    # Deployments

    def _complete(self, document: JsonObject, request: str) -> None:
        """Fill in defaults and refuse what Cloud Run refuses at once."""
        name = str(document["name"])
        _, project, _, region = name.split("/")[:4]
        template = document.get("template")
        if not template:
            raise CloudError.field("service.template", f"Violation in {request}.service.template: it must be given.")
        check_labels(document.get("labels"), "service.labels")
        check_labels(template.get("labels"), "service.template.labels")
        left = self._gpus_left(name, template, region)
        account = f"{self._cloud.project_number(project)}-compute@developer.gserviceaccount.com"
        template = run_limits.with_defaults(template, default_account=account, gpu_max_instances=max(left, 0))
        run_limits.check(template, region=region, world=self._cloud.scenario.run, gpus_left=left, request=request)
        document["template"] = cast("JsonObject", _lean(template))
        document.setdefault("ingress", "INGRESS_TRAFFIC_ALL")
        document.setdefault("launchStage", "GA")
        if not document.get("traffic"):
            document["traffic"] = [{"type": _LATEST, "percent": 100}]
        self._check_traffic(name, document["traffic"], request)
        References(cloud=self._cloud, service=name, template=template).account()
        document["updateTime"] = self._cloud.timeline.stamp()
        document["etag"] = f'"{uuid.uuid4().hex[:22]}"'

    def _check_traffic(self, name: str, traffic: list[JsonObject], request: str) -> None:
        total = sum(int(target.get("percent", 0)) for target in traffic)
        if total != 100:  # noqa: PLR2004 - percent
            raise CloudError.field(
                "service.traffic",
                f"Violation in {request}.service.traffic: the percentages must add up to 100; they add up to {total}.",
            )
        for target in traffic:
            if target.get("type") == _BY_REVISION and not self._store.has(
                REVISIONS, f"{name}/revisions/{target.get('revision', '')}"
            ):
                raise CloudError.field(
                    "service.traffic",
                    f"Violation in {request}.service.traffic: Revision named '{target.get('revision', '')}' was not found.",
                )

    def _gpus_left(self, name: str, template: JsonObject, region: str) -> int:
        """GPUs of the template's type that other services of the project and region leave."""
        kind = run_limits.gpu_of(template)
        world = self._cloud.scenario.run
        single = bool(template.get("gpuZonalRedundancyDisabled"))
        default = world.gpu_quota if single else world.gpu_quota_zonal_redundancy
        left = world.gpu_quota_overrides.get(f"{region}/{kind}" + ("" if single else "/zonal"), default)
        for other, document in self._store.under(SERVICES, "/".join(name.split("/")[:4]) + "/services/"):
            used = document["template"]
            if (
                other != name
                and run_limits.gpu_of(used) == kind
                and bool(used.get("gpuZonalRedundancyDisabled")) == single
            ):
                left -= int(used["scaling"]["maxInstanceCount"])
        return left

    def _needs_revision(self, before: JsonObject, after: JsonObject) -> bool:
        """A changed template makes a revision; so does any update after one that failed."""
        plain = [
            {key: value for key, value in item["template"].items() if key not in _NOT_OF_THE_REVISION}
            for item in (before, after)
        ]
        return plain[0] != plain[1] or before.get("latestReadyRevision") != before.get("latestCreatedRevision")

    def _validated(self, name: str, document: JsonObject) -> JsonObject:
        response = {"@type": f"{_TYPE}.Service", **self._shown(document)}
        return self._cloud.operations.timed("run", "/".join(name.split("/")[:4]), duration_s=0, response=response)

    async def _deploy_later(self, call: Call, name: str, document: JsonObject) -> JsonObject:
        """Store the wanted state, and bring it about beside the request."""
        document.update(lastModifier=call.caller.email, reconciling=True)
        pending = {
            "type": "Ready",
            "state": "CONDITION_RECONCILING",
            "lastTransitionTime": self._cloud.timeline.stamp(),
        }
        document.update(terminalCondition=pending, conditions=[])
        if document.pop("_new_revision", True):
            document["_serial"] = int(document["_serial"]) + 1
            document["latestCreatedRevision"] = self._new_revision(name, document)
        self._store.put(SERVICES, name, document)
        if "uri" not in document:
            await self.open_front(name, document)
        document = self._store.get(SERVICES, name) or document
        metadata = {"@type": f"{_TYPE}.Service", **self._shown(document)}
        operation = self._cloud.operations.pending("run", "/".join(name.split("/")[:4]), metadata=metadata)
        document["_operation"] = operation["name"]
        self._store.put(SERVICES, name, document)
        self._cloud.spawn(self._deploy(name, document["generation"], operation["name"]))
        return operation

    def _new_revision(self, name: str, document: JsonObject) -> str:
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
        template = {key: value for key, value in document["template"].items() if key not in _NOT_OF_THE_REVISION}
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
                "conditions": [_condition("Ready", "CONDITION_RECONCILING", now)],
                "observedGeneration": "1",
                "_template": template,
            },
        )
        return full

    async def open_front(self, name: str, document: JsonObject) -> None:
        """Open the service's front, where it was before if it can be, and note its URL."""
        known = document.get("_port")
        port = await self._cloud.runtimes.fronts.open(name, port=known)
        url = f"http://127.0.0.1:{port}"
        document.update(_port=port, uri=url, urls=[url])
        self._store.put(SERVICES, name, document)

    async def _deploy(self, name: str, generation: str, operation: str) -> None:
        """Make the wanted state real; ends the operation in every case."""
        document = self._store.get(SERVICES, name)
        if document is None:
            return
        revision = str(document["latestCreatedRevision"])
        await self._cloud.timeline.clock.sleep(self._cloud.duration_s(self._cloud.scenario.operations.run_s))
        try:
            if not self._ready(revision):
                await self._start(name, revision)
            await self._serve(name, revision, generation, operation)
        except DeploymentFailedError as error:
            self._failed(name, revision, generation, error, operation)
        except Exception as error:  # noqa: BLE001 - whatever the runtime raises, the operation must end
            self._failed(
                name,
                revision,
                generation,
                DeploymentFailedError(f"Internal error: {error!r}", reason="INTERNAL", code=13),
                operation,
            )

    async def _serve(self, name: str, revision: str, generation: str, operation: str) -> None:
        """The revision is ready: send the traffic where the service wants it, end the operation."""
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
        response = {"@type": f"{_TYPE}.Service", **self._shown(self._store.get(SERVICES, name) or document)}
        self._cloud.operations.finish("run", operation, response=response, metadata=response)

    async def _start(self, name: str, revision: str) -> None:
        """Check what the revision refers to, and start it."""
        record = self._store.get(REVISIONS, revision) or {}
        template: JsonObject = record["_template"]
        references = References(cloud=self._cloud, service=name, template=template)
        document = self._store.get(SERVICES, name)
        names = references.networks()
        if document is not None:
            self._store.put(SERVICES, name, {**document, "_networks": names})
        references.images()
        references.secrets()
        references.buckets()
        spec = RevisionSpec(name=revision, service=name, template=copy.deepcopy(template))
        try:
            url = await self._cloud.runtimes.revisions.start(spec)
        except RevisionFailedError as error:
            raise DeploymentFailedError(str(error), reason="HEALTH_CHECK_CONTAINER_ERROR", code=9) from None
        record = self._store.get(REVISIONS, revision)
        if record is not None:
            conditions = [
                _condition(kind, "CONDITION_SUCCEEDED", self._cloud.timeline.stamp())
                for kind in ("Ready", "Active", "ContainerHealthy", "ContainerReady", "ResourcesAvailable")
            ]
            record.update(conditions=conditions, _url=url)
            record.pop("reconciling", None)
            self._store.put(REVISIONS, revision, record)

    def _failed(self, name: str, revision: str, generation: str, error: DeploymentFailedError, operation: str) -> None:
        now = self._cloud.timeline.stamp()
        message = f"Revision '{revision.rpartition('/')[2]}' is not ready and cannot serve traffic. {error}"
        record = self._store.get(REVISIONS, revision)
        if record is not None:
            reason = (
                {"revisionReason": error.reason}
                if error.reason == "HEALTH_CHECK_CONTAINER_ERROR"
                else {"reason": error.reason}
            )
            record["conditions"] = [{**_condition("Ready", "CONDITION_FAILED", now), "message": str(error), **reason}]
            record.pop("reconciling", None)
            self._store.put(REVISIONS, revision, record)
        document = self._store.get(SERVICES, name)
        if document is not None and document["generation"] == generation:
            failed = {**_condition("Ready", "CONDITION_FAILED", now), "message": message, "reason": "REVISION_FAILED"}
            document.update(
                terminalCondition=failed,
                conditions=[{**failed, "type": "ConfigurationsReady"}],
                reconciling=False,
                observedGeneration=generation,
            )
            document["trafficStatuses"] = self._statuses(document)
            self._store.put(SERVICES, name, document)
        self._cloud.operations.finish("run", operation, error={"code": error.code, "message": message})

    def _settle(self, document: JsonObject, now: str) -> None:
        ready = _condition("Ready", "CONDITION_SUCCEEDED", now)
        others = [_condition(kind, "CONDITION_SUCCEEDED", now) for kind in ("RoutesReady", "ConfigurationsReady")]
        document.update(
            terminalCondition=ready, conditions=others, reconciling=False, observedGeneration=document["generation"]
        )
        document["trafficStatuses"] = self._statuses(document)

    def _statuses(self, document: JsonObject) -> list[JsonObject]:
        ready = document.get("latestReadyRevision")
        statuses: list[JsonObject] = []
        for target in document["traffic"]:
            if target.get("type") == _BY_REVISION:
                statuses.append(dict(target))
            elif ready:
                statuses.append({**target, "revision": str(ready).rpartition("/")[2]})
        return statuses

    def _serving(self, document: JsonObject) -> list[str]:
        """Revisions that get traffic, the largest share first."""
        shares = sorted(self._statuses(document), key=lambda status: -int(status.get("percent", 0)))
        return [
            f"{document['name']}/revisions/{status['revision']}"
            for status in shares
            if int(status.get("percent", 0)) > 0 or status.get("tag")
        ]

    def _ready(self, revision: str) -> bool:
        return "_url" in (self._store.get(REVISIONS, revision) or {})

    async def _route(self, name: str) -> None:
        """Send traffic to the revision with the largest share and stop those that get none."""
        document = self._store.get(SERVICES, name)
        if document is None:
            return
        serving = self._serving(document)
        for revision in serving:
            if not self._ready(revision):
                await self._start(name, revision)
        urls = [(self._store.get(REVISIONS, revision) or {}).get("_url") for revision in serving]
        self._cloud.runtimes.fronts.route(name, urls[0] if urls else None)
        for revision, record in self._store.under(REVISIONS, name + "/revisions/"):
            if "_url" in record and revision not in serving:
                record.pop("_url")
                record["conditions"] = [
                    *record["conditions"][:1],
                    {
                        **_condition("Active", "CONDITION_FAILED", self._cloud.timeline.stamp()),
                        "revisionReason": "RETIRED",
                    },
                ]
                self._store.put(REVISIONS, revision, record)
                await self._cloud.runtimes.revisions.stop(revision)

    async def restart(self, name: str) -> None:
        """After a restart of the cloud: start what serves, then go on with what was under way."""
        for revision, record in self._store.under(REVISIONS, name + "/revisions/"):
            record.pop("_url", None)
            self._store.put(REVISIONS, revision, record)
        document = self._store.get(SERVICES, name)
        if document is None:
            return
        try:
            await self._route(name)
        except DeploymentFailedError as error:
            document["terminalCondition"] = {
                **_condition("Ready", "CONDITION_FAILED", self._cloud.timeline.stamp()),
                "message": str(error),
            }
            self._store.put(SERVICES, name, document)
        if document["reconciling"]:
            await self._deploy(name, document["generation"], document["_operation"])

    def _found(self, name: str) -> JsonObject:
        document = self._store.get(SERVICES, name)
        if document is None:
            raise self._missing(name)
        return document

    def _missing(self, name: str) -> CloudError:
        return CloudError.not_found(
            f"Resource '{name.rpartition('/')[2]}' of kind '{'REVISION' if '/revisions/' in name else 'SERVICE'}' in region '{name.split('/')[3]}' in project '{name.split('/')[1]}' does not exist."
        )

    def _shown(self, document: JsonObject) -> JsonObject:
        return visible(document)


def _condition(kind: str, state: str, now: str) -> JsonObject:
    return {"type": kind, "state": state, "lastTransitionTime": now}


def _lean(value: object) -> object:
    """The value without false and zero fields, which protocol-buffer JSON leaves out."""
    if isinstance(value, dict):
        fields = cast("JsonObject", value)
        return {
            key: _lean(item)
            for key, item in fields.items()
            if item is not False and not (item == 0 and isinstance(item, int))
        }
    if isinstance(value, list):
        return [_lean(item) for item in cast("list[object]", value)]
    return value
