"""The data sources that the `gcp` stand-in supports."""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from localcloud.plugins.coding import decode_body
from localcloud.plugins.lifecycle import OperationContext
from localcloud.plugins.overlay import resource_type
from localcloud.plugins.rest import PluginError, RestError
from localcloud.plugins.schema import PropertySpecs, last_segment, relative
from localcloud.plugins.values import Properties, text_of

Function: TypeAlias = Callable[[OperationContext, Properties], Awaitable[Properties]]

_COMPUTE: Final = "compute/compute/beta"
_FORBIDDEN: Final = 403
_NOT_ENABLED: Final = "accessNotConfigured"
"""The only reason that the real provider tolerates (IsApiNotEnabledError of google/transport/transport.go, hashicorp/terraform-provider-google):
that of an entry of `errors`, which Google does not send with every SERVICE_DISABLED."""


def _refuse_others(function: str, arguments: Properties, *known: str) -> None:
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise PluginError(
            f"the local gcp stand-in does not support the argument {unknown[0]!r} of {function}. Supported: {', '.join(known)}"
        )


async def _client_config(context: OperationContext, arguments: Properties) -> Properties:
    _refuse_others("gcp:organizations/getClientConfig:getClientConfig", arguments)
    settings = context.settings
    return {
        "id": settings.project,
        "project": settings.project,
        "region": settings.region,
        "zone": "",
        "defaultLabels": dict(settings.default_labels),
    }


async def _project(context: OperationContext, arguments: Properties) -> Properties:
    _refuse_others("gcp:organizations/getProject:getProject", arguments, "projectId")
    project = text_of(arguments, "projectId") or context.settings.project
    body = await context.rest.get(f"cloudresourcemanager/v1/projects/{project}")
    await _read_billing(context, project)
    found = {
        "projectId": str(body.get("projectId", project)),
        "number": str(body.get("projectNumber", "")),
        "name": str(body.get("name", "")),
    }
    return {**found, "id": f"projects/{found['projectId']}"}


async def _read_billing(context: OperationContext, project: str) -> None:
    """Request the billing account of a project, as the real provider does after reading it."""
    try:
        await context.rest.get(f"cloudbilling/v1/projects/{project}/billingInfo")
    except RestError as error:
        if error.status != _FORBIDDEN or error.reason != _NOT_ENABLED:
            raise


async def _network(context: OperationContext, arguments: Properties) -> Properties:
    function = "gcp:compute/getNetwork:getNetwork"
    _refuse_others(function, arguments, "name", "project")
    project = text_of(arguments, "project") or context.settings.project
    path = f"projects/{project}/global/networks/{text_of(arguments, 'name')}"
    return await _compute(context, function, path, resource_type("gcp:compute/network:Network").fields)


async def _subnetwork(context: OperationContext, arguments: Properties) -> Properties:
    function = "gcp:compute/getSubnetwork:getSubnetwork"
    _refuse_others(function, arguments, "name", "project", "region", "selfLink")
    link = text_of(arguments, "selfLink")
    project = text_of(arguments, "project") or context.settings.project
    region = text_of(arguments, "region") or context.settings.region
    path = relative(link) if link else f"projects/{project}/regions/{region}/subnetworks/{text_of(arguments, 'name')}"
    found = await _compute(context, function, path, resource_type("gcp:compute/subnetwork:Subnetwork").fields)
    return {**found, "region": last_segment(text_of(found, "region"))}


async def _compute(context: OperationContext, function: str, path: str, fields: PropertySpecs) -> Properties:
    body = await context.rest.find(f"{_COMPUTE}/{path}")
    if body is None:
        raise PluginError(f"{function}: {path} was not found")
    return {**decode_body(fields, body, {}), "id": path, "project": path.split("/")[1]}


FUNCTIONS: Final[Mapping[str, Function]] = MappingProxyType(
    {
        "gcp:organizations/getClientConfig:getClientConfig": _client_config,
        "gcp:organizations/getProject:getProject": _project,
        "gcp:compute/getNetwork:getNetwork": _network,
        "gcp:compute/getSubnetwork:getSubnetwork": _subnetwork,
    }
)
