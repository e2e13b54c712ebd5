"""Service Usage v1 and v1beta1: the enabled APIs of a project."""

import re
from functools import cache

from localcloud.json_values import JsonObject, packaged, strings
from localcloud.rest.call import Call, Handler
from localcloud.rest.errors import CloudError
from localcloud.services.iam import add_service_agent
from localcloud.services.service import ApiService, listing, method
from localcloud.world.cloud import Cloud

_KIND = "serviceusage.enabled"


@cache
def _services() -> JsonObject:
    """Return the services that can be enabled, with their titles. The local cloud models some of them."""
    return packaged("localcloud.services", "services.json")


def enable_initial(cloud: Cloud, project: str) -> None:
    """Enable the APIs that the scenario lists for a new project."""
    listed = cloud.scenario.services.enabled
    wanted = _services() if listed == "all" else {*listed, "serviceusage"}
    for name in wanted:
        service = f"{name.removesuffix('.googleapis.com')}.googleapis.com"
        cloud.store.put(_KIND, f"projects/{project}/services/{service}", {})


def answers(cloud: Cloud, project: str, api: str) -> bool:
    """Return whether an API of a project responds, because it is enabled and the propagation time has passed."""
    record = cloud.store.get(_KIND, f"projects/{project}/services/{api}.googleapis.com")
    return record is not None and record.get("from_s", 0.0) <= cloud.timeline.simulated_s()


def disabled(cloud: Cloud, title: str, api: str, project: str) -> CloudError:
    """Return the error of an API that does not respond, in the scenario's form."""
    has_errors = cloud.scenario.services.disabled_form == "errors"
    return CloudError.service_disabled(title, api, cloud.project_number(project), has_errors=has_errors)


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of services and operations."""
    return _EnabledServices(cloud).handlers()


class _EnabledServices(ApiService):
    prefix = "serviceusage"

    @method("services.get")
    def get(self, call: Call) -> JsonObject:
        return self._shown(*_checked(call.name))

    @method("services.list")
    def list_all(self, call: Call) -> JsonObject:
        given = call.query.get("filter")
        if given and re.fullmatch(r"state\s*[:=]\s*(ENABLED|DISABLED)", given) is None:
            raise CloudError.field(
                "filter", f"Invalid filter '{given}': state:ENABLED and state:DISABLED are the allowed filters."
            )
        project = call.name.split("/")[1]
        names = sorted(f"{name}.googleapis.com" for name in _services())
        every = [(name, self._shown(project, name)) for name in names]
        return listing(call.query, "services", every, default=50, maximum=200)

    @method("services.enable")
    def enable(self, call: Call) -> JsonObject:
        project, service = _checked(call.name)
        self._enable(project, service)
        return self._finished("EnableServiceResponse", {"service": self._shown(project, service)})

    @method("services.disable")
    def disable(self, call: Call) -> JsonObject:
        project, service = _checked(call.name)
        self._store.delete(_KIND, f"projects/{project}/services/{service}")
        return self._finished("DisableServiceResponse", {"service": self._shown(project, service)})

    @method("services.batchEnable")
    def batch_enable(self, call: Call) -> JsonObject:
        names = [_checked(f"{call.name}/services/{service}") for service in strings(call.body, "serviceIds")]
        for project, service in names:
            self._enable(project, service)
        return self._finished("BatchEnableServicesResponse", {"services": [self._shown(*name) for name in names]})

    @method("services.batchGet")
    def batch_get(self, call: Call) -> JsonObject:
        return {"services": [self._shown(*_checked(name)) for name in strings(call.query, "names")]}

    @method("services.generateServiceIdentity")
    def generate_service_identity(self, call: Call) -> JsonObject:
        """Create the service agent, as the first use of its API does."""
        project, service = _checked(call.name)
        email = add_service_agent(self._cloud, project, service.removesuffix(".googleapis.com"))
        if email is None:
            raise CloudError.invalid(f"Service '{service}' has no service identity.")
        duration_s = self._cloud.duration_s(self._cloud.scenario.operations.serviceusage_s)
        typed = {"@type": "type.googleapis.com/google.api.serviceusage.v1beta1.ServiceIdentity", "email": email}
        return self._cloud.operations.timed("serviceusage", "", duration_s=duration_s, response=typed)

    @method("operations.get")
    def get_operation(self, call: Call) -> JsonObject:
        return self._cloud.operations.get("serviceusage", call.name)

    def _enable(self, project: str, service: str) -> None:
        name = f"projects/{project}/services/{service}"
        if not self._store.has(_KIND, name):
            from_s = self._cloud.timeline.simulated_s() + self._cloud.scenario.services.lag_s
            self._store.put(_KIND, name, {"from_s": from_s})

    def _shown(self, project: str, service: str) -> JsonObject:
        number = self._cloud.project_number(project)
        enabled = self._store.has(_KIND, f"projects/{project}/services/{service}")
        return {
            "name": f"projects/{number}/services/{service}",
            "parent": f"projects/{number}",
            "config": {"name": service, "title": _services()[service.removesuffix(".googleapis.com")]},
            "state": "ENABLED" if enabled else "DISABLED",
        }

    def _finished(self, kind: str, response: JsonObject) -> JsonObject:
        duration_s = self._cloud.duration_s(self._cloud.scenario.operations.serviceusage_s)
        typed = {"@type": f"type.googleapis.com/google.api.serviceusage.v1.{kind}", **response}
        return self._cloud.operations.timed("serviceusage", "", duration_s=duration_s, response=typed)


def _checked(name: str) -> tuple[str, str]:
    """Return project and service of a name. Raise 403 if the service is unknown."""
    found = re.fullmatch(r"[^/]+/(?P<project>[^/]+)/services/(?P<service>[^/]+)", name)
    if found is None or found["service"].removesuffix(".googleapis.com") not in _services():
        raise CloudError.denied(f"Not found or permission denied for service(s): {name.rpartition('/')[2]}.")
    return found["project"], found["service"]
