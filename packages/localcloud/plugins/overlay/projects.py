"""A project's service agents and its service accounts."""

from collections.abc import Mapping
from functools import partial
from time import monotonic
from typing import Final

from localcloud.plugins.diffing import Detail, Details, DiffKind
from localcloud.plugins.lifecycle import CreatedResource, OperationContext, TypeOverlay, UpdateRequest, settled
from localcloud.plugins.resource import RestResource, known_project
from localcloud.plugins.rest import RestError, raise_operation_error
from localcloud.plugins.schema import Object
from localcloud.plugins.values import Properties, Value, text_of

_API: Final = "serviceusage/v1"
_VISIBLE_LIMIT_S: Final = 10.0
"""Maximum real seconds for which a new service account may be invisible. The real provider reads for five minutes, at Google's speed."""
_INVISIBLE: Final = "Permission 'iam.serviceAccounts.get' denied on resource (or it may not exist)"
"""IAM's response for an account that is not visible yet, in place of a 404."""


class _ServiceIdentity(RestResource):
    """The service agent of an API. As in the real provider, reading sends no request and deleting does nothing."""

    async def create(self, context: OperationContext, inputs: Properties) -> CreatedResource:
        named: Properties = {"project": known_project(context, inputs).project, "service": text_of(inputs, "service")}
        resource_id = self.id_template.format_map(named)
        answer = await context.rest.call("POST", f"serviceusage/v1beta1/{resource_id}:generateServiceIdentity", body={})
        name = str(answer.get("name", ""))
        done = await context.rest.wait(
            f"{_API}/{name}", answer, limit_s=context.limit_s, is_done=lambda each: each.get("done") is True
        )
        raise_operation_error(done)
        response = done.get("response")
        email = str(response.get("email", "")) if isinstance(response, dict) else ""
        agent: Properties = {"email": email, "member": f"serviceAccount:{email}"}
        return CreatedResource(id=resource_id, state={**self.state(context, {}, inputs), **named, **agent})

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> CreatedResource | None:
        del context
        return CreatedResource(id=resource_id, state=given)

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        del context, resource_id, state


class _ServiceAccountLifecycle(RestResource):
    """A service account. As in the real provider, it is read until it is visible."""

    async def create(self, context: OperationContext, inputs: Properties) -> CreatedResource:
        account = text_of(inputs, "accountId")
        collection = f"iam/v1/projects/{known_project(context, inputs).project}/serviceAccounts"
        body: Object = {"accountId": account, "serviceAccount": self.body(context, inputs, {}, update=False)}
        try:
            answer = await context.rest.call("POST", collection, body=body, doing=f"creating {self.noun}")
            name = str(answer.get("name", ""))
        except RestError as error:
            if not (error.is_conflict and inputs.get("createIgnoreAlreadyExists") is True):
                raise
            project = known_project(context, inputs).project
            name = f"projects/{project}/serviceAccounts/{account}@{project}.iam.gserviceaccount.com"
        return await settled(name, inputs, self._switched(context, name, inputs))

    async def _switched(self, context: OperationContext, name: str, inputs: Properties) -> CreatedResource:
        if inputs.get("disabled") is True:
            await context.rest.call("POST", f"iam/v1/{name}:disable", body={})
        return await self.must_read(context, name, inputs)

    async def must_read(self, context: OperationContext, resource_id: str, given: Properties) -> CreatedResource:
        """Read until the account is visible. A 404 and one 403 mean that it is not visible yet (resource_google_service_account.go of the real provider)."""
        ends_at, attempt = monotonic() + _VISIBLE_LIMIT_S, 1
        while monotonic() < ends_at:
            try:
                found = await self.read(context, resource_id, given)
            except RestError as error:
                if _INVISIBLE not in str(error):
                    raise
                found = None
            if found is not None:
                return found
            await context.rest.pause(attempt)
            attempt += 1
        return await super().must_read(context, resource_id, given)

    def state(
        self, context: OperationContext, body: Object, given: Properties, *, imported: bool = False
    ) -> Properties:
        email = str(body.get("email", ""))
        state = super().state(context, body, given, imported=imported)
        state.update({"accountId": email.partition("@")[0], "member": f"serviceAccount:{email}"})
        return {**state, "disabled": body.get("disabled") is True, "project": str(body.get("projectId", ""))}

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> CreatedResource:
        """Update the texts with the account's etag. Enabling and disabling are separate methods."""
        if "disabled" in wanted.changed:
            action = "disable" if wanted.inputs.get("disabled") is True else "enable"
            await context.rest.call("POST", f"iam/v1/{wanted.id}:{action}", body={})
        if self.sent(wanted.changed):
            mask = [
                self.fields[name].terraform
                for name in self.fields
                if self.fields[name].api in self.sent(wanted.changed)
            ]
            now = await context.rest.get(f"iam/v1/{wanted.id}")
            account = {**self.body(context, wanted.inputs, wanted.state, update=True), "etag": now.get("etag")}
            body: Object = {"serviceAccount": account, "updateMask": ",".join(mask)}
            await context.rest.call("PATCH", f"iam/v1/{wanted.id}", body=body)
        return await self.must_read(context, wanted.id, wanted.inputs)


def _new_account(details: Details, state: Mapping[str, Value], inputs: Mapping[str, Value]) -> Details:
    """Add the new address of another account."""
    del state, inputs
    if ("accountId",) not in details:
        return details
    changed = Detail(change=DiffKind.UPDATE)
    return {**details, ("email",): changed, ("member",): changed}


PROJECTS: Final[Mapping[str, TypeOverlay]] = {
    "gcp:projects/serviceIdentity:ServiceIdentity": TypeOverlay(
        lifecycle=partial(
            _ServiceIdentity, noun="ServiceIdentity", id_template="projects/{project}/services/{service}", api=_API
        )
    ),
    "gcp:serviceaccount/account:Account": TypeOverlay(
        message="iam.v1#ServiceAccount",
        properties={"accountId": {"autoname": True}, "disabled": {"local": True}},
        lifecycle=partial(_ServiceAccountLifecycle, noun="service account", api="iam/v1", server_named=True),
        foresee=_new_account,
    ),
}
