"""Artifact Registry repositories: standard, remote and virtual ones."""

from collections.abc import Mapping
from typing import Final, cast

from localcloud.plugins.labels import LABEL_FIELDS
from localcloud.plugins.lifecycle import Created, OperationContext, ResourceType
from localcloud.plugins.resource import Mask, RestResource, Wait
from localcloud.plugins.schema import (
    Json,
    PropertySpec,
    ResourceScope,
    block,
    choice,
    flag,
    listing,
    outputs,
    text,
    whole,
)
from localcloud.plugins.table.common import COMMON
from localcloud.plugins.values import Properties, Value, is_list, is_object

_API: Final = "artifactregistry/v1"
_ITEM: Final = "projects/{project}/locations/{location}/repositories/{repositoryId}"

_NAME_PREFIXES: Final[Mapping[str, PropertySpec]] = {"packageNamePrefixes": listing(text())}
_POLICY: Final = block(
    {
        "id": text(required=True),
        "action": text(),
        "condition": block(
            {
                "tagState": text(),
                "tagPrefixes": listing(text()),
                "versionNamePrefixes": listing(text()),
                "olderThan": text(),
                "newerThan": text(),
                **_NAME_PREFIXES,
            }
        ),
        "mostRecentVersions": block({"keepCount": whole(), **_NAME_PREFIXES}),
    }
)


def _policies_to_json(value: Value, _scope: ResourceScope) -> Json:
    """The API wants the policies by id."""
    members = value if is_list(value) else []
    return {str(member.get("id")): cast("Json", dict(member)) for member in members if is_object(member)}


def _policies_from_json(raw: Json) -> Value:
    if not isinstance(raw, dict) or not raw:
        return None
    return [cast("Value", {"id": name, **policy}) for name, policy in sorted(raw.items()) if isinstance(policy, dict)]


def _upstream() -> PropertySpec:
    return block({"publicRepository": text(sparse=True), "customRepository": block({"uri": text()})})


_REPOSITORY_FIELDS: Final[Mapping[str, PropertySpec]] = {
    **COMMON,
    **LABEL_FIELDS,
    "repositoryId": text(required=True, force_new=True, local=True),
    "location": text(computed=True, force_new=True, local=True),
    "format": text(required=True, force_new=True, create_only=True, same=str.upper),
    "mode": text(force_new=True, create_only=True, default="STANDARD_REPOSITORY"),
    "description": text(),
    "kmsKeyName": text(force_new=True, create_only=True),
    "dockerConfig": block({"immutableTags": flag()}),
    "cleanupPolicies": choice(_POLICY, encode=_policies_to_json, decode=_policies_from_json, unset_update={}),
    "cleanupPolicyDryRun": flag(default=False),
    "remoteRepositoryConfig": block(
        {
            "description": text(),
            "dockerRepository": _upstream(),
            "mavenRepository": _upstream(),
            "npmRepository": _upstream(),
            "pythonRepository": _upstream(),
            "commonRepository": block({"uri": text(required=True)}),
            "disableUpstreamValidation": flag(local=True),
            "noCache": block({}, computed=True, unset=None, send_zero=True),
            "upstreamCredentials": block(
                {"usernamePasswordCredentials": block({"username": text(), "passwordSecretVersion": text()})}
            ),
        },
        force_new=True,
    ),
    "virtualRepositoryConfig": block(
        {"upstreamPolicies": listing(block({"id": text(), "repository": text(), "priority": whole()}))}
    ),
    "vulnerabilityScanningConfig": block(
        {"enablementConfig": text(), **outputs(enablementState=text(), enablementStateReason=text())}, computed=True
    ),
    **outputs(name=text(), createTime=text(), updateTime=text(), registryUri=text()),
}


class Repository(RestResource):
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
        found.state.update(
            {"name": name, "repositoryId": name, "location": location, "project": project, "registryUri": address}
        )
        return found


ARTIFACTREGISTRY: Final = (
    ResourceType(
        type_name="gcp:artifactregistry/repository:Repository",
        fields=_REPOSITORY_FIELDS,
        lifecycle=Repository(
            noun="Repository",
            fields=_REPOSITORY_FIELDS,
            collection=f"{_API}/projects/{{project}}/locations/{{location}}/repositories",
            item=f"{_API}/{_ITEM}",
            id_template=_ITEM,
            create_query={"repository_id": "{repositoryId}"},
            wait=Wait.OPERATION,
            operations=_API,
            mask=Mask.CHANGED,
        ),
    ),
)
