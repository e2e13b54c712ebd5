"""APIs that a project has enabled, and its service accounts."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from localcloud.plugins.diffing import Detail, Details, PropertyChange
from localcloud.plugins.lifecycle import Created, OperationContext, TypeOverlay, UpdateRequest, settled
from localcloud.plugins.resource import RestResource, Wait, follow, known_project
from localcloud.plugins.rest import GoogleApiError, OperationError, PluginError
from localcloud.plugins.schema import Object, last_segment
from localcloud.plugins.values import Properties, Value, text_of

_API: Final = "serviceusage/v1"
_ENABLED_QUERY: Final[Mapping[str, str]] = {
    "fields": "services/name,nextPageToken",
    "filter": "state:ENABLED",
    "pageSize": "200",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnabledService(RestResource):
    """An API of a project: enabled, listed, and disabled at the end only where the program asks for it."""

    async def create(self, context: OperationContext, inputs: Properties) -> Created:
        """Enable the API unless it is enabled."""
        service = text_of(inputs, "service")
        project = known_project(context, inputs).project
        async with context.locks.of(f"{_API}/projects/{project}"):
            if service not in await _enabled(context, project):
                await _change(context, project, f"{service}:enable", {}, "enable")
        return await self.must_read(context, f"{project}/{service}", inputs)

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> Created | None:
        """Look the API up among those that are enabled."""
        values = given or self.import_values(resource_id)
        project = known_project(context, values).project
        # The real provider lists, looks at the project, and lists again.
        if text_of(values, "service") not in await _enabled(context, project):
            return None
        await context.rest.find(f"cloudresourcemanager/v1/projects/{project}")
        if text_of(values, "service") not in await _enabled(context, project):
            return None
        return Created(id=resource_id, state=self.state(context, {}, {**values, "project": project}))

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> Created:
        """Only what the provider keeps for itself can change."""
        kept: Properties = {**wanted.inputs, "project": wanted.state.get("project")}
        return Created(id=wanted.id, state=self.state(context, {}, kept))

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
    path = f"{_API}/projects/{project}/services"
    listed = [each async for each in context.rest.pages(path, "services", _ENABLED_QUERY)]
    return {last_segment(str(each.get("name", ""))) for each in listed}


async def _change(context: OperationContext, project: str, action: str, body: Object, verb: str) -> None:
    path = f"{_API}/projects/{project}/services/{action}"
    try:
        answer = await context.rest.call("POST", path, body=body)
        await follow(context, Wait.OPERATION, answer, path, operations=_API)
    except OperationError as error:
        raise PluginError(
            f"Error waiting to {verb} {action.partition(':')[0]} in project {project}: {error}"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccountLifecycle(RestResource):
    """A service account. The real provider reads it back until it is really visible."""

    async def create(self, context: OperationContext, inputs: Properties) -> Created:
        """POST, then read."""
        project = known_project(context, inputs).project
        account = text_of(inputs, "accountId")
        body: Object = {"accountId": account, "serviceAccount": self.body(context, inputs, {}, update=False)}
        try:
            answer = await context.rest.call("POST", f"iam/v1/projects/{project}/serviceAccounts", body=body)
            name = str(answer.get("name", ""))
        except GoogleApiError as error:
            if not (error.is_conflict and inputs.get("createIgnoreAlreadyExists") is True):
                raise PluginError(f"Error creating service account: {error}") from error
            name = f"projects/{project}/serviceAccounts/{account}@{project}.iam.gserviceaccount.com"
        return await settled(name, inputs, self._finish(context, name, inputs))

    async def _finish(self, context: OperationContext, name: str, inputs: Properties) -> Created:
        if inputs.get("disabled") is True:
            await context.rest.call("POST", f"iam/v1/{name}:disable", body={})
        return await self._must_see(context, name, inputs)

    async def _must_see(self, context: OperationContext, name: str, inputs: Properties) -> Created:
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
        known: Properties = {**given, "accountId": email.partition("@")[0], "member": f"serviceAccount:{email}"}
        known["disabled"] = body.get("disabled") is True
        state = {**self.state(context, body, known), "project": str(body.get("projectId", ""))}
        return Created(id=resource_id, state=state)

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> Created:
        """PATCH the texts with the account's etag; enabling and disabling are methods of their own."""
        if "disabled" in wanted.changed:
            action = "disable" if wanted.inputs.get("disabled") is True else "enable"
            await context.rest.call("POST", f"iam/v1/{wanted.id}:{action}", body={})
        mask = [each.terraform for name, each in self.fields.items() if name in wanted.changed and not each.local]
        if mask:
            now = await context.rest.get(f"iam/v1/{wanted.id}")
            account = {**self.body(context, wanted.inputs, wanted.state, update=True), "etag": now.get("etag")}
            body: Object = {"serviceAccount": account, "updateMask": ",".join(mask)}
            await context.rest.call("PATCH", f"iam/v1/{wanted.id}", body=body)
        return await self._must_see(context, wanted.id, wanted.inputs)


def _new_account(details: Details, state: Mapping[str, Value], inputs: Mapping[str, Value]) -> Details:
    """Add the new address of another account."""
    del state, inputs
    if ("accountId",) not in details:
        return details
    changed = Detail(change=PropertyChange.UPDATE)
    return {**details, ("email",): changed, ("member",): changed}


PROJECTS: Final[Mapping[str, TypeOverlay]] = {
    "gcp:projects/service:Service": TypeOverlay(
        lifecycle=partial(EnabledService, noun="Project Service", id_template="{project}/{service}", item="")
    ),
    "gcp:serviceaccount/account:Account": TypeOverlay(
        message="iam.v1#ServiceAccount",
        properties={"accountId": {"autoname": True}, "disabled": {"local": True}},
        lifecycle=partial(ServiceAccountLifecycle, noun="service account", item="iam/v1/{id}"),
        foresee=_new_account,
    ),
}
