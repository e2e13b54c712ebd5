"""Cloud Run v2: services, their revisions, deployments as operations, traffic, invoker checks."""

import re
import uuid
from typing import cast

from localcloud.json_values import JsonObject, part, strings
from localcloud.rest.call import Call, Handler, check_id, masked
from localcloud.rest.errors import CloudError
from localcloud.services import networks, run_limits
from localcloud.services.checks import (
    Rules,
    check_labels,
    check_region,
    obey,
    region_documents,
    require_act_as,
)
from localcloud.services.run_deployments import (
    BY_REVISION,
    LATEST,
    NOT_OF_THE_REVISION,
    REVISIONS,
    SERVICES,
    TYPE,
    USED,
    Deployments,
    ready_since,
)
from localcloud.services.run_references import References
from localcloud.services.service import (
    ApiService,
    OperationsService,
    PolicyService,
    listing,
    method,
    name_prefix,
    visible,
)
from localcloud.world.cloud import REGIONS, Cloud, project_policy
from localcloud.world.runtime import AccessDecision, Authorize
from localcloud.world.timeline import rfc3339

_SERVICE_ID = "[a-z]([-a-z0-9]{0,47}[a-z0-9])?"
_MUTABLE = {
    "description", "labels", "annotations", "client", "clientVersion", "ingress", "launchStage", "binaryAuthorization", "template", "traffic", "scaling",
    "invokerIamDisabled", "defaultUriDisabled", "customAudiences", "iapEnabled", "buildConfig", "multiRegionSettings", "functionalType", "sshEnabled",
}  # fmt: skip
_TAG = "[a-z]([-a-z0-9]*[a-z0-9])?"
_LONGEST_TAG_AND_SERVICE = 46
"""Message and limit of Cloud Run's error: PolicyEngine/policyengine-api issue 3729, 2026."""
_MAX_WAIT_S = 300.0
GCLOUD_CLIENT = "32555940559.apps.googleusercontent.com"
"""The audience of `gcloud auth print-identity-token` for users. Cloud Run accepts it in addition to a service's URLs."""


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of services, revisions and operations."""
    return {
        **_RunLocations(cloud).handlers(),
        **_RunServices(cloud).handlers(),
        **_Operations(cloud, "run", "run.projects.locations.operations").handlers(),
    }


def authorizer(cloud: Cloud) -> Authorize:
    """Return the invoker check of the fronts."""

    def authorize(service: str, token: str | None) -> AccessDecision:
        document = cloud.store.get(SERVICES, service)
        if document is None:
            return AccessDecision.FORBIDDEN
        # Every caller counts as one from the internet, including an instance with Direct VPC egress.
        outside = document["ingress"] != "INGRESS_TRAFFIC_ALL"
        return AccessDecision.NOT_FOUND if outside else invoked(document, token)

    def invoked(document: JsonObject, token: str | None) -> AccessDecision:
        service = str(document["name"])
        resources = [f"//run.googleapis.com/{service}", project_policy(service.split("/")[1])]
        if document.get("invokerIamDisabled") or cloud.policies.allows(None, "run.routes.invoke", resources):
            return AccessDecision.ALLOWED
        if token is None:
            return AccessDecision.FORBIDDEN
        claims = cloud.tokens.id_token(token)
        named = [*strings(document, "urls"), *strings(document, "customAudiences"), GCLOUD_CLIENT]
        audiences = {url.rstrip("/") for url in named}
        if claims is None or claims.audience.rstrip("/") not in audiences:
            return AccessDecision.UNAUTHENTICATED
        if cloud.may_do_everything(claims.email) or cloud.policies.allows(claims.email, "run.routes.invoke", resources):
            return AccessDecision.ALLOWED
        return AccessDecision.FORBIDDEN

    return authorize


async def resume(cloud: Cloud) -> None:
    """Restore after a restart: open the fronts on their ports, start the serving revisions, continue deployments."""
    deployments = Deployments(cloud)
    for name, document in cloud.store.under(SERVICES):
        await deployments.open_front(name, document)
        cloud.spawn(deployments.restart(name))


class _RunLocations(ApiService):
    """The regions. Only v1 of the API lists them (discovery: run.v1 has projects.locations.list, run.v2 does not)."""

    prefix = "run.projects.locations"

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        """Return the regions."""
        return listing(call.query, "locations", region_documents(call.name.partition("/")[2], REGIONS))


class _Operations(OperationsService):
    @method("wait")
    async def wait(self, call: Call) -> JsonObject:
        limit_s = float(str(call.body.get("timeout", f"{_MAX_WAIT_S}s")).removesuffix("s"))
        return await self._cloud.operations.wait("run", call.name, limit_s=min(limit_s, _MAX_WAIT_S))


class _RunServices(PolicyService):
    prefix = "run.projects.locations.services"

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud)
        self._deployments = Deployments(cloud)

    def find(self, call: Call) -> JsonObject:
        return self.stored(SERVICES, call.name, _missing(call.name))

    @method("create")
    async def create(self, call: Call) -> JsonObject:
        check_region(call.name)
        name = f"{call.name}/services/{check_id(call.query.get('serviceId'), 'serviceId', _SERVICE_ID)}"
        if self._store.has(SERVICES, name):
            raise CloudError.already_exists(f"Resource '{name.rpartition('/')[2]}' already exists.")
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
        self._require_act_as(call, document)
        return await self._deploy_later(call, name, document)

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        check_region(call.name)
        return listing(call.query, "services", self.visible_under(SERVICES, call.name + "/services/"))

    @method("patch")
    async def patch(self, call: Call) -> JsonObject:
        name = call.name
        document = self.find(call)
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
        self._require_act_as(call, updated)
        of_template = not mask or any(
            path.strip() in {"*", "template"} or path.strip().startswith("template.") for path in mask.split(",")
        )
        updated["_new_revision"] = bool(call.query.get("forceNewRevision")) or (
            of_template and self._needs_revision(document, updated)
        )
        return await self._deploy_later(call, name, updated)

    @method("delete")
    async def delete(self, call: Call) -> JsonObject:
        document = self.find(call)
        if call.query.get("etag") and call.query["etag"] != document["etag"]:
            raise CloudError.aborted(
                f"Conflict for resource '{call.name.rpartition('/')[2]}': the etag does not match."
            )
        shown = {**visible(document), "deleteTime": self._cloud.timeline.stamp()}
        response = {"@type": f"{TYPE}.Service", **shown}
        self._store.delete(SERVICES, call.name)
        if (ready := ready_since(self._cloud, call.name)) is not None:
            now = self._cloud.timeline.stamp()
            self._store.put(USED, f"{call.name}/{now}", {"ready": rfc3339(ready), "deleted": now})
        networks.release_addresses(self._cloud, call.name)
        self._cloud.policies.forget(f"//run.googleapis.com/{call.name}")
        runtimes = self._cloud.runtimes
        runtimes.fronts.route(call.name, {})
        await runtimes.fronts.close(call.name)
        tags: dict[str, int] = document.get("_tags") or {}
        for tag in tags:
            await runtimes.fronts.close(call.name, tag=tag)
        for revision, _ in self._store.under(REVISIONS, call.name + "/revisions/"):
            self._store.delete(REVISIONS, revision)
            await runtimes.revisions.stop(revision)
        duration_s = self._cloud.duration_s(self._cloud.scenario.operations.run_s)
        return self._cloud.operations.timed(
            "run", call.location, duration_s=duration_s, response=response, metadata=response
        )

    @method("revisions.get")
    def get_revision(self, call: Call) -> JsonObject:
        return visible(self.stored(REVISIONS, call.name, _missing(call.name)))

    @method("revisions.list")
    def list_revisions(self, call: Call) -> JsonObject:
        if not call.name.endswith("/services/-"):
            self.find(call)
        found = self.visible_under(REVISIONS, name_prefix(call.name, "revisions"))
        return listing(call.query, "revisions", found)

    # Deployments

    def _complete(self, document: JsonObject, request: str) -> None:
        """Set defaults and check the request as Cloud Run does before it answers."""
        name = str(document["name"])
        _, project, _, region = name.split("/")[:4]
        template = document.get("template")
        if not template:
            raise CloudError.field("service.template", f"Violation in {request}.service.template: it must be given.")
        check_labels(document.get("labels"), "service.labels")
        check_labels(template.get("labels"), "service.template.labels")
        left = self._gpus_left(name, template, region)
        account = self._cloud.default_account(project)
        template = run_limits.with_defaults(template, default_account=account, gpu_max_instances=max(left, 0))
        run_limits.check(template, region=region, world=self._cloud.scenario.run, gpus_left=left, request=request)
        document["template"] = cast("JsonObject", _lean(template))
        document.setdefault("ingress", "INGRESS_TRAFFIC_ALL")
        if document["ingress"] == "INGRESS_TRAFFIC_UNSPECIFIED":
            document["ingress"] = "INGRESS_TRAFFIC_ALL"
        document.setdefault("launchStage", "GA")
        if not document.get("traffic"):
            document["traffic"] = [{"type": LATEST, "percent": 100}]
        path = f"Violation in {request}.service.traffic"
        rules = self._of_traffic(name, document["traffic"])
        obey((obeyed, "service.traffic", f"{path}: {sentence}") for obeyed, _, sentence in rules)
        document["traffic"] = cast("list[JsonObject]", _lean(document["traffic"]))
        References(cloud=self._cloud, service=name, template=template).account()
        document["updateTime"] = self._cloud.timeline.stamp()
        document["etag"] = f'"{uuid.uuid4().hex[:22]}"'

    def _require_act_as(self, call: Call, document: JsonObject) -> None:
        account = str(part(document, "template").get("serviceAccount", ""))
        require_act_as(self._cloud, call.caller, account, call.name.split("/")[1])

    def _of_traffic(self, name: str, traffic: list[JsonObject]) -> Rules:
        shares = [int(target.get("percent", 0)) for target in traffic]
        given = ", ".join(map(str, shares))
        whole = min(shares) >= 0 and sum(shares) == 100  # noqa: PLR2004 - percent
        yield whole, "", f"the percentages must add up to 100 and none may be negative; given {given}."
        tags = [str(target["tag"]) for target in traffic if target.get("tag")]
        short = name.rpartition("/")[2]
        for tag in tags:
            yield tags.count(tag) == 1, "", f"the tag '{tag}' is given twice."
            letters = "must consist of lower-case letters, digits and dashes, and begin with a letter."
            yield re.fullmatch(_TAG, tag) is not None, "", f"the tag '{tag}' {letters}"
            long = (
                f"traffic tag '{tag}' and service name '{short}' together are too long. "
                f"Combined traffic tag and service name cannot exceed {_LONGEST_TAG_AND_SERVICE} characters."
            )
            yield len(tag) + len(short) <= _LONGEST_TAG_AND_SERVICE, "", long
        for target in traffic:
            revision, kind = target.get("revision", ""), target.get("type")
            yield not (kind == LATEST and revision), "", f"a target of type {LATEST} cannot name a revision."
            exists = kind != BY_REVISION or self._store.has(REVISIONS, f"{name}/revisions/{revision}")
            yield exists, "", f"Revision named '{revision}' was not found."

    def _gpus_left(self, name: str, template: JsonObject, region: str) -> int:
        """Return the number of GPUs of the template's type that other services of the project and region leave free."""
        kind = run_limits.gpu_of(template)
        world = self._cloud.scenario.run
        single = bool(template.get("gpuZonalRedundancyDisabled"))
        left = world.gpus_of(region, str(kind), zonal=not single)
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
        """Return whether an update creates a revision: the template changed, or the last revision failed."""
        plain = [
            {key: value for key, value in item["template"].items() if key not in NOT_OF_THE_REVISION}
            for item in (before, after)
        ]
        return plain[0] != plain[1] or before.get("latestReadyRevision") != before.get("latestCreatedRevision")

    async def _deploy_later(self, call: Call, name: str, document: JsonObject) -> JsonObject:
        """Store the wanted state and deploy it in the background."""
        document.update(lastModifier=call.caller.email, reconciling=True)
        document["_deploying"] = document.pop("_new_revision", True)
        pending = {
            "type": "Ready",
            "state": "CONDITION_RECONCILING",
            "lastTransitionTime": self._cloud.timeline.stamp(),
        }
        if document["_deploying"] or document.get("latestReadyRevision") == document.get("latestCreatedRevision"):
            document.update(terminalCondition=pending, conditions=[])
        if document["_deploying"]:
            document["_serial"] = int(document["_serial"]) + 1
            document["latestCreatedRevision"] = self._deployments.new_revision(name, document)
        self._store.put(SERVICES, name, document)
        if "uri" not in document:
            await self._deployments.open_front(name, document)
        document = self._store.get(SERVICES, name) or document
        metadata = {"@type": f"{TYPE}.Service", **visible(document)}
        operation = self._cloud.operations.pending("run", "/".join(name.split("/")[:4]), metadata=metadata)
        document["_operation"] = operation["name"]
        self._store.put(SERVICES, name, document)
        self._cloud.spawn(self._deployments.deploy(name, document["generation"], operation["name"]))
        return operation


def _missing(name: str) -> str:
    kind = "REVISION" if "/revisions/" in name else "SERVICE"
    _, project, _, region = name.split("/")[:4]
    return f"Resource '{name.rpartition('/')[2]}' of kind '{kind}' in region '{region}' in project '{project}' does not exist."


def _lean(value: object) -> object:
    """Return the value without false and zero fields, as in protocol-buffer JSON."""
    if isinstance(value, dict):
        fields = cast("JsonObject", value)
        return {key: _lean(item) for key, item in fields.items() if item is not False and item != 0}
    if isinstance(value, list):
        return [_lean(item) for item in cast("list[object]", value)]
    return value
