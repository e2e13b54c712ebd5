"""Cloud Run v1, which gcloud uses: the services of version 2 in Knative form. They can be read and deleted.

Requests to `REGION-run.googleapis.com` name a namespace (a project) and no region. gcloud puts the region before its endpoint variable's
host too, so a regional request here has a host such as `us-east4-127.0.0.1`.
"""

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from localcloud.json_values import JsonObject, part, parts, strings
from localcloud.rest.call import Call, Handler
from localcloud.rest.errors import CloudError
from localcloud.services.checks import check_region
from localcloud.services.run_deployments import SERVICES
from localcloud.services.service import ApiService, method, name_prefix
from localcloud.world.cloud import Cloud

_REGIONAL_HOST: Final = re.compile(r"(?P<region>[a-z]+-[a-z]+\d+)-\d")
_STATUS: Final = {"CONDITION_SUCCEEDED": "True", "CONDITION_FAILED": "False"}
_CONTAINER_FIELDS: Final = ("name", "image", "command", "args", "workingDir", "ports", "volumeMounts", "resources")


def handlers(cloud: Cloud, delete: Callable[[Call], Awaitable[JsonObject]]) -> dict[str, Handler]:
    """Return the methods of services in version 1. `delete` deletes a service of version 2."""
    return {**_Global(cloud, delete).handlers(), **_Regional(cloud, delete).handlers()}


class _V1(ApiService):
    def __init__(self, cloud: Cloud, delete: Callable[[Call], Awaitable[JsonObject]]) -> None:
        super().__init__(cloud)
        self._delete = delete

    def full_name(self, call: Call) -> str:
        """Return the name of the service or of its parent in version 2."""
        return call.name

    @method("get")
    def get(self, call: Call) -> JsonObject:
        return knative(self._cloud, self._found(call))

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        parent = self.full_name(call)
        if not parent.endswith("/-"):
            check_region(parent)
        # Unlike in version 2, `-` means all regions here: gcloud lists with it.
        found = [knative(self._cloud, item) for _, item in self._store.under(SERVICES, name_prefix(parent, "services"))]
        return {"apiVersion": "serving.knative.dev/v1", "kind": "ServiceList", "metadata": {}, "items": found}

    @method("delete")
    async def delete(self, call: Call) -> JsonObject:
        document = self._found(call)
        await self._delete(replace(call, path={"name": str(document["name"])}, query={}))
        return {"status": "Success", "details": {"name": _short(document["name"]), "kind": "services"}}

    def _found(self, call: Call) -> JsonObject:
        name = self.full_name(call)
        document = self._store.get(SERVICES, name)
        if document is None:
            raise CloudError.not_found(f"Resource '{_short(name)}' of kind 'SERVICE' in region was not found.")
        return document


class _Global(_V1):
    prefix = "run.v1.projects.locations.services"


class _Regional(_V1):
    prefix = "run.v1.namespaces.services"

    def full_name(self, call: Call) -> str:
        _, namespace, *rest = call.name.split("/")
        found = _REGIONAL_HOST.match(call.http.host)
        if found is None:
            raise CloudError.not_found("The requested URL was not found: namespaces are served by regional endpoints.")
        project = self._cloud.project_id(namespace) or namespace
        return "/".join(["projects", project, "locations", found["region"], *rest])


def knative(cloud: Cloud, document: JsonObject) -> JsonObject:
    """Return a service of version 2 in the form of version 1."""
    _, project, _, region, _, name = str(document["name"]).split("/")
    number, template = cloud.project_number(project), part(document, "template")
    ingress = str(document.get("ingress", "")).removeprefix("INGRESS_TRAFFIC_").lower()
    annotations = {
        **part(document, "annotations"),
        "serving.knative.dev/creator": document.get("creator", ""),
        "serving.knative.dev/lastModifier": document.get("lastModifier") or document.get("creator", ""),
        "run.googleapis.com/ingress": ingress,
        "run.googleapis.com/ingress-status": ingress,
        "run.googleapis.com/urls": json.dumps(strings(document, "urls")),
    }
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": number,
            "selfLink": f"/apis/serving.knative.dev/v1/namespaces/{number}/services/{name}",
            "uid": document["uid"],
            "resourceVersion": str(document["etag"]).strip('"'),
            "generation": int(document["generation"]),
            "creationTimestamp": document["createTime"],
            "labels": {**part(document, "labels"), "cloud.googleapis.com/location": region},
            "annotations": annotations,
        },
        "spec": {
            "template": {
                "metadata": {"labels": part(template, "labels"), "annotations": part(template, "annotations")},
                "spec": _revision_spec(template),
            },
            "traffic": [_traffic(target) for target in parts(document, "traffic")],
        },
        "status": _status(document),
    }


def _revision_spec(template: JsonObject) -> JsonObject:
    containers = [
        {
            **{key: container[key] for key in _CONTAINER_FIELDS if key in container and key != "resources"},
            "resources": {"limits": part(part(container, "resources"), "limits")},
            "env": [_variable(variable) for variable in parts(container, "env")],
        }
        for container in parts(template, "containers")
    ]
    timeout = str(template.get("timeout", "")).removesuffix("s")
    return {
        "containers": containers,
        "serviceAccountName": template.get("serviceAccount", ""),
        **({"containerConcurrency": template["maxInstanceRequestConcurrency"]} if "maxInstanceRequestConcurrency" in template else {}),
        **({"timeoutSeconds": int(float(timeout))} if timeout else {}),
    }  # fmt: skip


def _variable(variable: JsonObject) -> JsonObject:
    secret = part(part(variable, "valueSource"), "secretKeyRef")
    if not secret:
        return {"name": variable["name"], "value": variable.get("value", "")}
    reference = {"name": _short(secret.get("secret", "")), "key": secret.get("version") or "latest"}
    return {"name": variable["name"], "valueFrom": {"secretKeyRef": reference}}


def _traffic(target: JsonObject) -> JsonObject:
    latest = target.get("type") == "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST"
    chosen: JsonObject = {"latestRevision": True} if latest else {"revisionName": _short(target.get("revision", ""))}
    tag: JsonObject = {"tag": target["tag"], "url": target.get("uri", "")} if target.get("tag") else {}
    return {"percent": int(target.get("percent", 0)), **chosen, **tag}


def _status(document: JsonObject) -> JsonObject:
    conditions = [_condition(found) for found in [part(document, "terminalCondition"), *parts(document, "conditions")]]
    revisions = {
        f"{key}Name": _short(document[key])
        for key in ("latestReadyRevision", "latestCreatedRevision")
        if key in document
    }
    uri = document.get("uri", "")
    return {
        "observedGeneration": int(document.get("observedGeneration") or 0),
        "conditions": [found for found in conditions if found["type"]],
        **revisions,
        "traffic": [_traffic(target) for target in parts(document, "trafficStatuses")],
        **({"url": uri, "address": {"url": uri}} if uri else {}),
    }


def _condition(condition: JsonObject) -> JsonObject:
    found: JsonObject = {
        "type": condition.get("type", ""),
        "status": _STATUS.get(str(condition.get("state", "")), "Unknown"),
        "lastTransitionTime": condition.get("lastTransitionTime", ""),
    }
    if condition.get("message"):
        found["message"] = condition["message"]
    return found


def _short(name: object) -> str:
    return str(name).rpartition("/")[2]
