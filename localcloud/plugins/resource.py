"""The lifecycle of an ordinary resource: POST to a collection, GET, PATCH or PUT, DELETE, with or without long-running operations.

Most entries of the table are a `RestResource` and nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from localcloud.plugins import labels
from localcloud.plugins.coding import decode_body, encode_body
from localcloud.plugins.inputs import with_chosen
from localcloud.plugins.lifecycle import Created, OperationContext, PartlyDoneError, UpdateRequest, settled
from localcloud.plugins.rest import GoogleApiError, OperationError, PluginError, raise_operation_error
from localcloud.plugins.schema import Object, PropertySpecs, ResourceScope, last_segment
from localcloud.plugins.values import Properties, Value, is_object


class Wait(Enum):
    """How the answer to a change is followed to its end."""

    NOT = "the answer is the end"
    OPERATION = "google.longrunning operations"
    COMPUTE = "Compute Engine's operations"


class Mask(Enum):
    """Which fields an update names."""

    NONE = "no mask: the body is the whole truth"
    CHANGED = "updateMask names what changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestResource:
    """One ordinary resource type.

    `noun` names it in errors. Paths are templates over the resource's properties and `project`, `region`, `location` and `id`; `collection` takes
    the POST, `item` the rest. `server_named`: the id is the name that the service answers, else it is `id_template`.
    """

    noun: str
    fields: PropertySpecs
    item: str
    collection: str = ""
    id_template: str = ""
    server_named: bool = False
    create_query: Mapping[str, str] = field(default_factory=dict[str, str])
    delete_query: Mapping[str, str] = field(default_factory=dict[str, str])
    wait: Wait = Wait.NOT
    operations: str = ""
    update_method: str = "PATCH"
    mask: Mask = Mask.NONE
    keeps_failed: bool = False

    def path(self, template: str, context: OperationContext, values: Mapping[str, Value], resource_id: str) -> str:
        """Fill a path template in."""
        scope = context.scope(values)
        known: dict[str, str] = {"region": scope.region, "location": scope.region}
        known.update({name: value for name, value in values.items() if isinstance(value, str) and value})
        known.update({"project": scope.project, "id": resource_id, "region": last_segment(known["region"])})
        try:
            return template.format_map(known)
        except KeyError as missing:
            raise PluginError(
                f"{self.noun}: {missing.args[0]} is not set, neither on the resource nor in the provider's configuration"
            ) from missing

    def body(
        self, context: OperationContext, inputs: Properties, state: Mapping[str, Value], *, update: bool
    ) -> Object:
        """The request body for inputs; `state` is what the service answered last."""
        values = dict(inputs)
        for family in labels.families(self.fields):
            marks = labels.to_send(family, context.settings, inputs, state)
            values[family.written] = marks
        if update:
            values = with_chosen(self.fields, values, state)
        return encode_body(self.fields, values, context.scope(inputs), update=update)

    def state(
        self, context: OperationContext, body: Object, given: Properties, *, imported: bool = False
    ) -> Properties:
        """The state that an answer and what was given before make."""
        state = decode_body(self.fields, body, given)
        for family in labels.families(self.fields):
            labels.sort_out(family, context.settings, state, given, imported=imported)
        if "project" in self.fields:
            state["project"] = context.scope(given).project
        return state

    async def create(self, context: OperationContext, inputs: Properties) -> Created:
        """POST, follow the operation, read."""
        body = self.body(context, inputs, {}, update=False)
        query = {name: self.path(template, context, inputs, "") for name, template in self.create_query.items()}
        collection = self.path(self.collection, context, inputs, "")
        try:
            answer = await context.rest.call("POST", collection, query=query, body=body)
        except GoogleApiError as error:
            raise PluginError(f"Error creating {self.noun}: {error}") from error
        resource_id = (
            str(answer.get("name", "")) if self.server_named else self.path(self.id_template, context, inputs, "")
        )
        try:
            await self.follow(context, answer, collection)
        except PluginError as error:
            raise await self._failed(context, resource_id, inputs, "Creating", error) from error
        return await settled(resource_id, inputs, self.must_read(context, resource_id, inputs))

    async def _failed(
        self, context: OperationContext, resource_id: str, given: Properties, doing: str, error: PluginError
    ) -> PluginError:
        """The error to raise for a wait that failed; with the resource, where the type is kept although it failed."""
        verb = {"Creating": "create", "Updating": "update"}[doing]
        reason = f"Error waiting to {verb} {self.noun}: Error waiting for {doing} {self.noun}: {error}"
        if not self.keeps_failed:
            return PluginError(reason)
        try:
            found = await self.read(context, resource_id, given)
        except PluginError:
            found = Created(id=resource_id, state=given)
        return PartlyDoneError(found, reason) if found else PluginError(reason)

    async def must_read(self, context: OperationContext, resource_id: str, given: Properties) -> Created:
        """Read what has just been made or changed."""
        found = await self.read(context, resource_id, given)
        if found is None:
            raise PluginError(
                f"Error reading {self.noun} {resource_id!r}: it is gone right after the request that made or changed it"
            )
        return found

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> Created | None:
        """GET."""
        values = given or self.import_values(resource_id)
        body = await context.rest.find(self.path(self.item, context, values, resource_id))
        if body is None:
            return None
        return Created(id=resource_id, state=self.state(context, body, values, imported=not given))

    def import_values(self, resource_id: str) -> Properties:
        """What an id says about a resource that is imported. Raises PluginError where it is not of the right shape."""
        if self.server_named:
            return {}
        return parse_id(self.id_template, resource_id, self.noun)

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> Created:
        """PATCH or PUT what changes, follow the operation, read."""
        body = self.body(context, wanted.inputs, wanted.state, update=True)
        mask = self.mask_of(wanted.changed)
        path = self.path(self.item, context, {**wanted.state, **wanted.inputs}, wanted.id)
        if self.mask is Mask.NONE or mask:
            query = {"updateMask": ",".join(mask)} if self.mask is Mask.CHANGED else {}
            try:
                answer = await context.rest.call(self.update_method, path, query=query, body=body)
            except GoogleApiError as error:
                raise PluginError(f"Error updating {self.noun} {wanted.id!r}: {error}") from error
            try:
                await self.follow(context, answer, path)
            except PluginError as error:
                raise await self._failed(context, wanted.id, given_after(wanted), "Updating", error) from error
        return await self.must_read(context, wanted.id, given_after(wanted))

    def mask_of(self, changed: frozenset[str]) -> list[str]:
        """The body fields behind changed properties, in the table's order."""
        mask: list[str] = []
        for name, each in self.fields.items():
            if name in changed and not each.local and not each.output:
                mask.append(each.api or name)
        family_names = {family.effective: family.written for family in labels.families(self.fields)}
        mask.extend(
            written for effective, written in family_names.items() if effective in changed and written not in mask
        )
        return mask

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """DELETE; 404 is success. Refuse where the resource is protected."""
        if state.get("deletionProtection") is True:
            raise PluginError(
                f"cannot destroy {self.noun.lower()} without setting deletion_protection=false and running `pulumi up`"
            )
        query = {name: self.path(template, context, state, resource_id) for name, template in self.delete_query.items()}
        path = self.path(self.item, context, state, resource_id)
        try:
            answer = await context.rest.call("DELETE", path, query=query)
            await self.follow(context, answer, path)
        except GoogleApiError as error:
            if not error.is_missing:
                raise PluginError(f"Error when reading or editing {self.noun}: {error}") from error
        except OperationError as error:
            raise PluginError(f"Error waiting for Deleting {self.noun}: {error}") from error

    async def follow(self, context: OperationContext, answer: Object, path: str) -> None:
        """Follow the operation that an answer may be. Raises OperationError where it failed, PluginError where it does not end."""
        if self.wait is not Wait.NOT:
            await follow(context, self.wait, answer, path, operations=self.operations)


def given_after(wanted: UpdateRequest) -> Properties:
    """What a read after an update goes by: the inputs, and which labels were the provider's before."""
    managed = wanted.state.get(labels.LABELS.managed)
    return {**wanted.inputs, **({labels.LABELS.managed: managed} if is_object(managed) else {})}


async def delete_quietly(
    context: OperationContext, path: str, doing: str, *, method: str = "DELETE", query: Mapping[str, str] | None = None
) -> None:
    """Send the request that deletes something; 404 is success. `doing` begins the message of any other error."""
    try:
        await context.rest.call(method, path, query=query)
    except GoogleApiError as error:
        if not error.is_missing:
            raise PluginError(f"{doing}: {error}") from error


async def follow(context: OperationContext, wait: Wait, answer: Object, path: str, *, operations: str = "") -> None:
    """Poll an operation to its end; `path` is the collection or item that was changed, `operations` the prefix of longrunning ones."""
    if wait is Wait.COMPUTE:
        scope = path.split("/regions/", 1)
        area = (
            f"{scope[0]}/regions/{scope[1].split('/', 1)[0]}"
            if len(scope) > 1
            else f"{path.split('/global/', 1)[0]}/global"
        )
        where = f"{area}/operations/{answer.get('name', '')}"
        done = await context.rest.wait(
            where, answer, limit_s=context.limit_s, is_done=lambda each: each.get("status", "DONE") == "DONE"
        )
    elif "operations/" in str(answer.get("name", "")):
        where = f"{operations}/{answer.get('name', '')}"
        done = await context.rest.wait(
            where, answer, limit_s=context.limit_s, is_done=lambda each: each.get("done") is True
        )
    else:
        # Some methods of such APIs answer the resource itself (a repository's PATCH, for one).
        return
    raise_operation_error(done)


_VARIABLE: Final = "{"


def parse_id(template: str, resource_id: str, noun: str) -> Properties:
    """Take the properties out of an id, such as `projects/p/secrets/s` by `projects/{project}/secrets/{secretId}`."""
    expected, given = template.split("/"), resource_id.split("/")
    if len(expected) != len(given):
        raise PluginError(
            f"{resource_id!r} is no id of {noun}: import it as {template.replace('{', '<').replace('}', '>')}"
        )
    found: Properties = {}
    for want, got in zip(expected, given, strict=True):
        if want.startswith(_VARIABLE):
            found[want[1:-1]] = got
        elif want != got:
            raise PluginError(
                f"{resource_id!r} is no id of {noun}: import it as {template.replace('{', '<').replace('}', '>')}"
            )
    return found


def known_project(context: OperationContext, values: Mapping[str, Value]) -> ResourceScope:
    """The resource's scope. Raises PluginError where no project is known."""
    scope = context.scope(values)
    if not scope.project:
        raise PluginError("no project: set it on the resource, as gcp:project, or as GOOGLE_CLOUD_PROJECT")
    return scope
