"""Service Usage v1 and v1beta1: which APIs a project has enabled."""

import re

from localcloud.json_values import JsonObject, strings
from localcloud.rest.call import Call, Handler, page
from localcloud.rest.errors import CloudError
from localcloud.services.common import with_token
from localcloud.world.cloud import Cloud

_KIND = "serviceusage.enabled"
SERVICES: dict[str, str] = {
    "artifactregistry": "Artifact Registry API",
    "cloudbuild": "Cloud Build API",
    "cloudquotas": "Cloud Quotas API",
    "cloudresourcemanager": "Cloud Resource Manager API",
    "compute": "Compute Engine API",
    "iam": "Identity and Access Management (IAM) API",
    "iamcredentials": "IAM Service Account Credentials API",
    "iap": "Cloud Identity-Aware Proxy API",
    "logging": "Cloud Logging API",
    "monitoring": "Cloud Monitoring API",
    "oslogin": "Cloud OS Login API",
    "run": "Cloud Run Admin API",
    "secretmanager": "Secret Manager API",
    "servicenetworking": "Service Networking API",
    "serviceusage": "Service Usage API",
    "storage": "Cloud Storage API",
    "storage-api": "Google Cloud Storage JSON API",
    "storage-component": "Cloud Storage",
    "sts": "Security Token Service API",
    "tpu": "Cloud TPU API",
    "vpcaccess": "Serverless VPC Access API",
}
"""Services that can be enabled; the local cloud models a part of them."""


def enable_initial(cloud: Cloud, project: str) -> None:
    """What a new project has enabled, by the scenario."""
    wanted = (
        SERVICES
        if cloud.scenario.apis == "enabled"
        else [name.removesuffix(".googleapis.com") for name in cloud.scenario.apis]
    )
    for name in wanted:
        cloud.store.put(_KIND, f"projects/{project}/services/{name}.googleapis.com", {})


def handlers(cloud: Cloud) -> dict[str, Handler]:  # noqa: C901 - small functions side by side, one a method
    """Methods of services and operations."""

    def shown(project: str, service: str) -> JsonObject:
        number = cloud.project_number(project)
        enabled = cloud.store.has(_KIND, f"projects/{project}/services/{service}")
        return {
            "name": f"projects/{number}/services/{service}",
            "parent": f"projects/{number}",
            "config": {"name": service, "title": SERVICES[service.removesuffix(".googleapis.com")]},
            "state": "ENABLED" if enabled else "DISABLED",
        }

    def checked(name: str) -> tuple[str, str]:
        parts = name.split("/")
        service = parts[3]
        if service.removesuffix(".googleapis.com") not in SERVICES:
            raise CloudError.denied(f"Not found or permission denied for service(s): {service}.")
        return parts[1], service

    def read(call: Call) -> JsonObject:
        return shown(*checked(call.name))

    def listed(call: Call) -> JsonObject:
        project = call.name.split("/")[1]
        wanted = re.fullmatch(r"state\s*[:=]\s*(ENABLED|DISABLED)", call.query.get("filter") or "state:ENABLED")
        if wanted is None:
            raise CloudError.field(
                "filter",
                f"Invalid filter '{call.query['filter']}': state:ENABLED and state:DISABLED are the allowed filters.",
            )
        names = sorted(f"{name}.googleapis.com" for name in SERVICES)
        every = [(name, shown(project, name)) for name in names]
        found = [(name, item) for name, item in every if not call.query.get("filter") or item["state"] == wanted[1]]
        services, following = page(
            found, size=call.query.get("pageSize"), token=call.query.get("pageToken"), default=50, maximum=200
        )
        return with_token({"services": services}, following)

    def enable(call: Call) -> JsonObject:
        project, service = checked(call.name)
        cloud.store.put(_KIND, f"projects/{project}/services/{service}", {})
        return finished("EnableServiceResponse", {"service": shown(project, service)})

    def disable(call: Call) -> JsonObject:
        project, service = checked(call.name)
        cloud.store.delete(_KIND, f"projects/{project}/services/{service}")
        return finished("DisableServiceResponse", {"service": shown(project, service)})

    def batch_enable(call: Call) -> JsonObject:
        names = [checked(f"{call.name}/services/{service}") for service in strings(call.body, "serviceIds")]
        for project, service in names:
            cloud.store.put(_KIND, f"projects/{project}/services/{service}", {})
        return finished("BatchEnableServicesResponse", {"services": [shown(*name) for name in names]})

    def batch_get(call: Call) -> JsonObject:
        return {"services": [shown(*checked(name)) for name in strings(call.query, "names")]}

    def finished(kind: str, response: JsonObject) -> JsonObject:
        typed = {"@type": f"type.googleapis.com/google.api.serviceusage.v1.{kind}", **response}
        return cloud.operations.timed(
            "serviceusage", "", duration_s=cloud.duration_s(cloud.scenario.operations.serviceusage_s), response=typed
        )

    def operation(call: Call) -> JsonObject:
        return cloud.operations.get("serviceusage", call.name)

    return {
        "serviceusage.services.get": read,
        "serviceusage.services.list": listed,
        "serviceusage.services.enable": enable,
        "serviceusage.services.disable": disable,
        "serviceusage.services.batchEnable": batch_enable,
        "serviceusage.services.batchGet": batch_get,
        "serviceusage.operations.get": operation,
    }
