"""Artifact Registry repositories: standard, remote and virtual ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from localcloud.plugins.lifecycle import Created, OperationContext, TypeOverlay
from localcloud.plugins.resource import Mask, RestResource, Wait
from localcloud.plugins.schema import Json, ResourceScope
from localcloud.plugins.values import Properties, Value, is_list, is_object

_API: Final = "artifactregistry/v1"
_ITEM: Final = "projects/{project}/locations/{location}/repositories/{repositoryId}"


def _policies_to_json(value: Value, _scope: ResourceScope) -> Json:
    """Return the policies by id, as the API wants them."""
    members = [dict(member) for member in value if is_object(member)] if is_list(value) else []
    return {str(member.pop("id")): cast("Json", member) for member in members}


def _policies_from_json(raw: Json) -> Value:
    if not isinstance(raw, dict) or not raw:
        return None
    return [cast("Value", {"id": name, **policy}) for name, policy in sorted(raw.items()) if isinstance(policy, dict)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryLifecycle(RestResource):
    """A repository: an ordinary resource whose short name and registry address are worked out here."""

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> Created | None:
        """GET, and the outputs that follow from the id."""
        found = await RestResource.read(self, context, resource_id, given)
        if found is None:
            return None
        _, project, _, location, _, name = resource_id.split("/")
        kind = str(found.state.get("format", "")).lower()
        # Google writes colons of domain-scoped projects as slashes in registry addresses.
        address = f"{location}-{kind}.pkg.dev/{project.replace(':', '/')}/{name}"
        found.state.update({"name": name, "repositoryId": name, "location": location, "registryUri": address})
        return found


ARTIFACTREGISTRY: Final[Mapping[str, TypeOverlay]] = {
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
            RepositoryLifecycle,
            noun="Repository",
            collection=f"{_API}/projects/{{project}}/locations/{{location}}/repositories",
            item=f"{_API}/{_ITEM}",
            id_template=_ITEM,
            create_query={"repository_id": "{repositoryId}"},
            wait=Wait.OPERATION,
            operations=_API,
            mask=Mask.CHANGED,
        ),
    )
}
