"""The lifecycle of an ordinary resource: POST to a collection, GET, PATCH, DELETE, with or without long-running operations.

Most entries of the table are just a `RestResource`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from localcloud.plugins import labels
from localcloud.plugins.coding import decode_body, encode_body
from localcloud.plugins.inputs import with_chosen
from localcloud.plugins.lifecycle import CreatedResource, OperationContext, PartlyDoneError, UpdateRequest, settled
from localcloud.plugins.rest import OperationError, PluginError, raise_operation_error
from localcloud.plugins.schema import Object, PropertySpecs, ResourceScope, last_segment
from localcloud.plugins.values import Properties, Value, is_object


class OperationWait(Enum):
    """Meaning of the response to a change."""

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

    `noun` names it in errors. Paths are templates over the resource's properties and `project`, `region`, `location` and `id`. `id_template` is the
    id; with `server_named` it is the name in the response. `item` is the resource's path, if it is not the id below `api`; `collection`
    receives the POST, if it is not the folder of `item`.
    """

    noun: str
    fields: PropertySpecs
    api: str = ""
    id_template: str = ""
    item: str = ""
    collection: str = ""
    server_named: bool = False
    create_query: Mapping[str, str] = field(default_factory=dict[str, str])
    delete_query: Mapping[str, str] = field(default_factory=dict[str, str])
    wait: OperationWait = OperationWait.NOT
    mask: Mask = Mask.NONE
    keeps_failed: bool = False

    def item_path(self, context: OperationContext, values: Mapping[str, Value], resource_id: str) -> str:
        """Return the path of the resource."""
        below = "{id}" if self.server_named else self.id_template
        return self.path(self.item or f"{self.api}/{below}", context, values, resource_id)

    def path(self, template: str, context: OperationContext, values: Mapping[str, Value], resource_id: str) -> str:
        """Return a path template filled with the resource's properties."""
        scope = context.scope(values)
        known: dict[str, str] = {"region": scope.region, "location": scope.region}
        known.update({name: value for name, value in values.items() if isinstance(value, str) and value})
        known.update({"project": scope.project, "id": resource_id, "region": last_segment(known["region"])})
        try:
            return template.format_map(known)
        except KeyError as missing:
            raise PluginError(
                f"{self.noun}: {missing.args[0]} is set neither on the resource nor in the provider's configuration"
            ) from missing

    def body(
        self, context: OperationContext, inputs: Properties, state: Mapping[str, Value], *, update: bool
    ) -> Object:
        """Return the request body for inputs. `state` is the service's last response."""
        values = dict(inputs)
        for family in labels.families(self.fields):
            values[family.written] = labels.to_send(family, context.settings, inputs, state)
        if update:
            values = with_chosen(self.fields, values, state)
        return encode_body(self.fields, values, context.scope(inputs), update=update)

    def state(
        self, context: OperationContext, body: Object, given: Properties, *, imported: bool = False
    ) -> Properties:
        """Return the state that results from a response and the given properties."""
        state = decode_body(self.fields, body, given)
        for family in labels.families(self.fields):
            labels.sort_out(family, context.settings, state, given, imported=imported)
        if "project" in self.fields:
            state["project"] = context.scope(given).project
        return state

    async def create(self, context: OperationContext, inputs: Properties) -> CreatedResource:
        """Send the POST, wait for its operation and read the resource."""
        body = self.body(context, inputs, {}, update=False)
        query = {name: self.path(template, context, inputs, "") for name, template in self.create_query.items()}
        collection = (
            self.path(self.collection, context, inputs, "") or self.item_path(context, inputs, "").rpartition("/")[0]
        )
        answer = await context.rest.call("POST", collection, query=query, body=body, doing=f"creating {self.noun}")
        answered = str(answer.get("name", ""))
        resource_id = answered if self.server_named else self.path(self.id_template, context, inputs, "")
        try:
            await self.finish(context, "Creating", answer, collection)
        except OperationError as error:
            raise await self._failed(context, resource_id, inputs, "create", error) from error
        return await settled(resource_id, inputs, self.must_read(context, resource_id, inputs))

    async def _failed(
        self, context: OperationContext, resource_id: str, given: Properties, verb: str, error: PluginError
    ) -> PluginError:
        """Return the error of a wait that failed, with the resource if a failed resource of this type still exists."""
        reason = f"Error waiting to {verb} {self.noun}: {error}"
        if not self.keeps_failed:
            return PluginError(reason)
        try:
            found = await self.read(context, resource_id, given)
        except PluginError:
            found = CreatedResource(id=resource_id, state=given)
        return PartlyDoneError(found, reason) if found else PluginError(reason)

    async def must_read(self, context: OperationContext, resource_id: str, given: Properties) -> CreatedResource:
        """Read a resource that was just created or changed."""
        found = await self.read(context, resource_id, given)
        if found is None:
            raise PluginError(
                f"Error reading {self.noun} {resource_id!r}: it is gone right after the request that created or changed it"
            )
        return found

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> CreatedResource | None:
        """Read the resource. The properties in its id are part of the state."""
        named = self.named(resource_id)
        body = await context.rest.find(self.item_path(context, given or named, resource_id))
        if body is None:
            return None
        state = self.state(context, body, given or named, imported=not given)
        return CreatedResource(id=resource_id, state={**state, **named})

    def named(self, resource_id: str) -> Properties:
        """Return the properties in an id. Raises PluginError if it does not have the right format."""
        return parse_id(self.id_template, resource_id, self.noun) if self.id_template else {}

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> CreatedResource:
        """Send the PATCH, wait for its operation and read the resource. Changes of local properties send nothing."""
        given = given_after(wanted)
        sent = self.sent(wanted.changed)
        if sent or (self.mask is Mask.NONE and not wanted.changed):
            body = self.body(context, wanted.inputs, wanted.state, update=True)
            path = self.item_path(context, {**wanted.state, **wanted.inputs}, wanted.id)
            query = {"updateMask": ",".join(sent)} if self.mask is Mask.CHANGED else {}
            doing = f"updating {self.noun} {wanted.id!r}"
            answer = await context.rest.call("PATCH", path, query=query, body=body, doing=doing)
            try:
                await self.finish(context, "Updating", answer, path)
            except OperationError as error:
                raise await self._failed(context, wanted.id, given, "update", error) from error
        return await self.must_read(context, wanted.id, given)

    def sent(self, changed: frozenset[str]) -> list[str]:
        """Return the body fields behind changed properties, in the schema's order."""
        names = [
            each.api for name, each in self.fields.items() if name in changed and not each.local and not each.output
        ]
        marks = [each.written for each in labels.families(self.fields) if each.effective in changed]
        return [*names, *(name for name in marks if name not in names)]

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """Send the DELETE and wait for its operation. A 404 is success. Raises PluginError if the resource is protected."""
        if state.get("deletionProtection") is True:
            raise PluginError(
                f"cannot destroy {self.noun.lower()} without setting deletion_protection=false and running `pulumi up`"
            )
        query = {name: self.path(template, context, state, resource_id) for name, template in self.delete_query.items()}
        path = self.item_path(context, state, resource_id)
        answer = await context.rest.drop(path, query=query, doing=f"when reading or editing {self.noun}")
        await self.finish(context, "Deleting", answer, path)

    async def finish(self, context: OperationContext, doing: str, answer: Object, path: str) -> None:
        """Wait for the operation if the response is one. Raises OperationError if it fails or does not finish in time."""
        try:
            await follow(context, self.wait, answer, path, operations=self.api)
        except PluginError as error:
            raise OperationError(None, f"Error waiting for {doing} {self.noun}: {error}") from error


def given_after(wanted: UpdateRequest) -> Properties:
    """Return the base of a read after an update: the inputs, and which labels were the provider's before."""
    managed = wanted.state.get(labels.LABELS.managed)
    return {**wanted.inputs, **({labels.LABELS.managed: managed} if is_object(managed) else {})}


async def follow(
    context: OperationContext, wait: OperationWait, answer: Object, path: str, *, operations: str = ""
) -> None:
    """Poll an operation until it finishes. `path` is the collection or item that was changed, `operations` the prefix of longrunning ones."""
    name = str(answer.get("name", ""))
    if wait is OperationWait.COMPUTE and name:
        area, _, regional = path.partition("/regions/")
        where = (
            f"{area}/regions/{regional.partition('/')[0]}" if regional else f"{area.partition('/global/')[0]}/global"
        )
        done = await context.rest.wait(
            f"{where}/operations/{name}",
            answer,
            limit_s=context.limit_s,
            is_done=lambda each: each.get("status", "DONE") == "DONE",
        )
    elif wait is OperationWait.OPERATION and "operations/" in name:
        done = await context.rest.wait(
            f"{operations}/{name}", answer, limit_s=context.limit_s, is_done=lambda each: each.get("done") is True
        )
    else:
        # Some methods of such APIs return the resource itself (a repository's PATCH, for one).
        return
    raise_operation_error(done)


def parse_id(template: str, resource_id: str, noun: str) -> Properties:
    """Return the properties in an id, such as `projects/p/secrets/s` by `projects/{project}/secrets/{secretId}`."""
    expected, given = template.split("/"), resource_id.split("/")
    pairs = list(zip(expected, given, strict=False))
    if len(expected) != len(given) or any(want != got for want, got in pairs if not want.startswith("{")):
        shape = template.replace("{", "<").replace("}", ">")
        raise PluginError(f"{resource_id!r} is not an id of {noun}. Import it as {shape}")
    return {want[1:-1]: got for want, got in pairs if want.startswith("{")}


def known_project(context: OperationContext, values: Mapping[str, Value]) -> ResourceScope:
    """Return the resource's scope. Raises PluginError if no project is known."""
    scope = context.scope(values)
    if not scope.project:
        raise PluginError("no project set. Set it on the resource, as gcp:project, or as GOOGLE_CLOUD_PROJECT")
    return scope
