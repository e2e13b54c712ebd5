"""Cloud Run services, with GPUs, volumes and Direct VPC egress."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from localcloud.plugins.facts import Recorded
from localcloud.plugins.lifecycle import Created, OperationContext, TypeOverlay
from localcloud.plugins.resource import RestResource, Wait
from localcloud.plugins.values import Properties

_API: Final = "run/v2"
_ITEM: Final = "projects/{project}/locations/{location}/services/{name}"
# Probes of the other kinds are sent as null.
_NULL: Final[Recorded] = {"unset": None, "send_zero": True}
_CONTAINER: Final = "template.containers"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLifecycle(RestResource):
    """A service: an ordinary resource, but for the properties that are part of its id."""

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> Created | None:
        """GET, and the properties that are part of the id."""
        found = await RestResource.read(self, context, resource_id, given)
        if found is not None:
            _, project, _, location, _, name = resource_id.split("/")
            found.state.update({"project": project, "location": location, "name": name})
        return found


RUN: Final[Mapping[str, TypeOverlay]] = {
    "gcp:cloudrunv2/service:Service": TypeOverlay(
        message="run.v2#GoogleCloudRunV2Service",
        properties={
            "annotations": {"absent": {}},
            "name": {"local": True, "create_only": False},
            f"{_CONTAINER}.livenessProbe.grpc": _NULL,
            f"{_CONTAINER}.livenessProbe.httpGet": _NULL,
            f"{_CONTAINER}.readinessProbe.grpc": _NULL,
            f"{_CONTAINER}.readinessProbe.httpGet": _NULL,
            f"{_CONTAINER}.startupProbe.grpc": _NULL,
            f"{_CONTAINER}.startupProbe.httpGet": _NULL,
            f"{_CONTAINER}.startupProbe.tcpSocket": _NULL,
        },
        lifecycle=partial(
            ServiceLifecycle,
            noun="Service",
            collection=f"{_API}/projects/{{project}}/locations/{{location}}/services",
            item=f"{_API}/{_ITEM}",
            id_template=_ITEM,
            create_query={"serviceId": "{name}"},
            wait=Wait.OPERATION,
            operations=_API,
            keeps_failed=True,
        ),
    )
}
