"""Cloud Run services, with GPUs, volumes and Direct VPC egress, and the Artifact Registry repositories of their images."""

from collections.abc import Mapping
from functools import partial
from typing import Final, cast

from localcloud.plugins.facts import Recorded
from localcloud.plugins.lifecycle import CreatedResource, OperationContext, TypeOverlay
from localcloud.plugins.resource import Mask, OperationWait, RestResource
from localcloud.plugins.schema import Json, ResourceScope
from localcloud.plugins.values import Properties, Value, is_list, is_object

# Probes of the other kinds are sent as null.
_NULL: Final[Recorded] = {"unset": None, "send_zero": True}
_CONTAINER: Final = "template.containers"


def _policies_to_json(value: Value, _scope: ResourceScope) -> Json:
    """Return the policies by id, as the API requires."""
    members = [dict(member) for member in value if is_object(member)] if is_list(value) else []
    return {str(member.pop("id")): cast("Json", member) for member in members}


def _policies_from_json(raw: Json) -> Value:
    if not isinstance(raw, dict) or not raw:
        return None
    return [cast("Value", {"id": name, **policy}) for name, policy in sorted(raw.items()) if isinstance(policy, dict)]


class _RepositoryLifecycle(RestResource):
    """A repository. Its short name and registry address are derived from its id."""

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> CreatedResource | None:
        found = await super().read(context, resource_id, given)
        if found is not None:
            place = "{location}-{format}.pkg.dev".format_map(found.state).lower()
            # Google writes colons of domain-scoped projects as slashes in registry addresses.
            path = "{project}/{repositoryId}".format_map(found.state).replace(":", "/")
            found.state.update({"name": found.state["repositoryId"], "registryUri": f"{place}/{path}"})
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
            RestResource,
            noun="Service",
            id_template="projects/{project}/locations/{location}/services/{name}",
            create_query={"serviceId": "{name}"},
            wait=OperationWait.OPERATION,
            api="run/v2",
            keeps_failed=True,
        ),
    ),
    "gcp:artifactregistry/repository:Repository": TypeOverlay(
        message="artifactregistry.v1#Repository",
        properties={
            "format": {"same": str.upper},
            "cleanupPolicies": {"encode": _policies_to_json, "decode": _policies_from_json, "unset_update": {}},
            "remoteRepositoryConfig": {"create_only": False},
            "remoteRepositoryConfig.dockerRepository.publicRepository": {"absent": None},
            "remoteRepositoryConfig.noCache": {"unset": None, "send_zero": True},
        },
        lifecycle=partial(
            _RepositoryLifecycle,
            noun="Repository",
            id_template="projects/{project}/locations/{location}/repositories/{repositoryId}",
            create_query={"repository_id": "{repositoryId}"},
            wait=OperationWait.OPERATION,
            api="artifactregistry/v1",
            mask=Mask.CHANGED,
        ),
    ),
}
