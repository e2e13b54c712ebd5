"""APIs that a project has enabled, and its service accounts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from localcloud.plugins.diffing import Detail, Details, PropertyChange
from localcloud.plugins.lifecycle import Created, OperationContext, ResourceType, UpdateRequest, settled
from localcloud.plugins.resource import Wait, follow, known_project, parse_id
from localcloud.plugins.rest import GoogleApiError, OperationError, PluginError
from localcloud.plugins.schema import Object, PropertySpec, flag, last_segment, outputs, text
from localcloud.plugins.table.common import COMMON
from localcloud.plugins.values import Properties, Value, text_of

_API: Final = "serviceusage/v1"
_ENABLED_QUERY: Final[Mapping[str, str]] = {
    "fields": "services/name,nextPageToken",
    "filter": "state:ENABLED",
    "pageSize": "200",
}

_SERVICE_FIELDS: Final[Mapping[str, PropertySpec]] = {
    **COMMON,
    "service": text(required=True, force_new=True),
    "disableOnDestroy": flag(local=True, default=False),
    "disableDependentServices": flag(local=True),
    "checkIfServiceHasUsageOnDestroy": flag(local=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnabledService:
    """An API of a project: enabled, listed, and disabled at the end only where the program asks for it."""

    async def create(self, context: OperationContext, inputs: Properties) -> Created:
        """Enable the API unless it is enabled."""
        service = text_of(inputs, "service")
        project = known_project(context, inputs).project
        async with context.locks.of(f"{_API}/projects/{project}"):
            if service not in await _enabled(context, project):
                await _change(context, project, f"{service}:enable", {}, "enable")
        found = await self.read(context, f"{project}/{service}", inputs)
        if found is None:
            raise PluginError(
                f"Error reading Project Service: {service} is not enabled right after it was enabled in {project}"
            )
        return found

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> Created | None:
        """Look the API up among those that are enabled."""
        values = given or parse_id("{project}/{service}", resource_id, "Project Service")
        project = known_project(context, values).project
        # The real provider lists, looks at the project, and lists again.
        if text_of(values, "service") not in await _enabled(context, project):
            return None
        await context.rest.find(f"cloudresourcemanager/v1/projects/{project}")
        if text_of(values, "service") not in await _enabled(context, project):
            return None
        local = {name: value for name, value in values.items() if name in _SERVICE_FIELDS}
        return Created(id=resource_id, state={**local, "project": project})

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> Created:
        """Only what the provider keeps for itself can change."""
        del context
        return Created(id=wanted.id, state={**wanted.inputs, "project": text_of(wanted.state, "project")})

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """Disable the API where `disableOnDestroy` says so; else leave it, since others may use it."""
        del resource_id
        if state.get("disableOnDestroy") is not True:
            return
        project = known_project(context, state).project
        body: Object = {"disableDependentServices": state.get("disableDependentServices") is True}
        if state.get("checkIfServiceHasUsageOnDestroy") is True:
            body["checkIfServiceHasUsage"] = "CHECK"
        try:
            await _change(context, project, f"{text_of(state, 'service')}:disable", body, "disable")
        except GoogleApiError as error:
            if not error.is_missing:
                raise


async def _enabled(context: OperationContext, project: str) -> set[str]:
    names: set[str] = set()
    query = dict(_ENABLED_QUERY)
    while True:
        page = await context.rest.get(f"{_API}/projects/{project}/services", query)
        listed = page.get("services")
        for each in listed if isinstance(listed, list) else []:
            if isinstance(each, dict):
                names.add(last_segment(str(each.get("name", ""))))
        token = page.get("nextPageToken")
        if not isinstance(token, str) or not token:
            return names
        query["pageToken"] = token


async def _change(context: OperationContext, project: str, action: str, body: Object, verb: str) -> None:
    path = f"{_API}/projects/{project}/services/{action}"
    try:
        answer = await context.rest.call("POST", path, body=body)
        await follow(context, Wait.OPERATION, answer, path, operations=_API)
    except OperationError as error:
        raise PluginError(
            f"Error waiting to {verb} {action.partition(':')[0]} in project {project}: {error}"
        ) from error


_ACCOUNT_FIELDS: Final[Mapping[str, PropertySpec]] = {
    **COMMON,
    # Optional in the SDK, so that it can be derived from the resource's name; the API has no account without one.
    "accountId": text(autoname=True, force_new=True),
    "displayName": text(),
    "description": text(),
    "disabled": flag(),
    "createIgnoreAlreadyExists": flag(local=True),
    **outputs(email=text(), name=text(), uniqueId=text(), member=text()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccount:
    """A service account. The real provider reads it back until it is really visible."""

    async def create(self, context: OperationContext, inputs: Properties) -> Created:
        """POST, then read."""
        project = known_project(context, inputs).project
        account: Object = {
            name: text_of(inputs, name) for name in ("displayName", "description") if text_of(inputs, name)
        }
        body: Object = {"accountId": text_of(inputs, "accountId"), "serviceAccount": account}
        try:
            answer = await context.rest.call("POST", f"iam/v1/projects/{project}/serviceAccounts", body=body)
            name = str(answer.get("name", ""))
        except GoogleApiError as error:
            if not (error.is_conflict and inputs.get("createIgnoreAlreadyExists") is True):
                raise PluginError(f"Error creating service account: {error}") from error
            name = (
                f"projects/{project}/serviceAccounts/{text_of(inputs, 'accountId')}@{project}.iam.gserviceaccount.com"
            )
        return await settled(name, inputs, self._finish(context, name, inputs))

    async def _finish(self, context: OperationContext, name: str, inputs: Properties) -> Created:
        if inputs.get("disabled") is True:
            await context.rest.call("POST", f"iam/v1/{name}:disable")
        return await self._must_read(context, name, inputs)

    async def _must_read(self, context: OperationContext, name: str, inputs: Properties) -> Created:
        attempts = 5
        for attempt in range(1, attempts + 1):
            found = await self.read(context, name, inputs)
            if found is not None:
                return found
            await context.rest.pause(attempt)
        raise PluginError(f"Error reading service account {name!r}: it is not visible after it was created")

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> Created | None:
        """GET."""
        body = await context.rest.find(f"iam/v1/{resource_id}")
        if body is None:
            return None
        email = str(body.get("email", ""))
        state: Properties = {
            name: str(body.get(name, "")) for name in ("displayName", "description", "uniqueId", "email")
        }
        state |= {"project": str(body.get("projectId", "")), "name": resource_id, "member": f"serviceAccount:{email}"}
        state |= {"accountId": email.partition("@")[0], "disabled": body.get("disabled") is True}
        state |= {name: given[name] for name in ("createIgnoreAlreadyExists", "deletionPolicy") if name in given}
        return Created(id=resource_id, state=state)

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> Created:
        """PATCH the texts with the account's etag; enabling and disabling are methods of their own."""
        changed = [name for name in ("description", "displayName") if name in wanted.changed]
        if "disabled" in wanted.changed:
            action = "disable" if wanted.inputs.get("disabled") is True else "enable"
            await context.rest.call("POST", f"iam/v1/{wanted.id}:{action}")
        if changed:
            now = await context.rest.get(f"iam/v1/{wanted.id}")
            account: Object = {
                name: text_of(wanted.inputs, name)
                for name in ("displayName", "description")
                if text_of(wanted.inputs, name)
            }
            account["etag"] = now.get("etag")
            mask = {"description": "description", "displayName": "display_name"}
            body: Object = {"serviceAccount": account, "updateMask": ",".join(mask[name] for name in changed)}
            await context.rest.call("PATCH", f"iam/v1/{wanted.id}", body=body)
        return await self._must_read(context, wanted.id, wanted.inputs)

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """DELETE; 404 is success."""
        del state
        try:
            await context.rest.call("DELETE", f"iam/v1/{resource_id}")
        except GoogleApiError as error:
            if not error.is_missing:
                raise PluginError(f"Error deleting service account {resource_id!r}: {error}") from error


def _new_account(details: Details, state: Mapping[str, Value], inputs: Mapping[str, Value]) -> Details:
    """Another account has another address."""
    del state, inputs
    if ("accountId",) not in details:
        return details
    return {
        **details,
        ("email",): Detail(change=PropertyChange.UPDATE),
        ("member",): Detail(change=PropertyChange.UPDATE),
    }


PROJECTS: Final = (
    ResourceType(type_name="gcp:projects/service:Service", fields=_SERVICE_FIELDS, lifecycle=EnabledService()),
    ResourceType(
        type_name="gcp:serviceaccount/account:Account",
        fields=_ACCOUNT_FIELDS,
        lifecycle=ServiceAccount(),
        foresee=_new_account,
    ),
)
