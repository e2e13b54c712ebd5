"""IAM members: one principal in one role of a resource's policy, kept by reading the policy, changing it and writing it back.

The policy's etag makes sure that nobody else's change is lost: a 409 means that somebody was faster, and the cycle begins again.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, cast

from localcloud.plugins.lifecycle import Created, OperationContext, UpdateRequest
from localcloud.plugins.resource import parse_id
from localcloud.plugins.rest import GoogleApiError, PluginError
from localcloud.plugins.schema import Json, Object, PropertySpecs, last_segment
from localcloud.plugins.values import Properties, Value, is_object, text_of

_VERSION: Final = 3
_MAX_CYCLES: Final = 12


class PolicyDialect(Enum):
    """How an API takes and gives policies."""

    GET_QUERY = "GET :getIamPolicy?options.requestedPolicyVersion=3, POST :setIamPolicy"
    GET_PLAIN = "GET :getIamPolicy, POST :setIamPolicy"
    POST_BODY = "POST :getIamPolicy with options, POST :setIamPolicy with an update mask"
    POST_QUERY = "POST :getIamPolicy?options.requestedPolicyVersion=3, POST :setIamPolicy"
    STORAGE = "GET and PUT of the bucket's iam"


@dataclass(frozen=True, slots=True, kw_only=True)
class IamMember:
    """Membership in the policy of one kind of resource.

    `subject` is the property that names the resource, `resource` its path (a template over `project`, `location` and `name`, the subject's last
    segment), `prefix` the API that the path belongs to.
    """

    noun: str
    subject: str
    prefix: str
    resource: str
    dialect: PolicyDialect
    fields: PropertySpecs

    def path_of(self, context: OperationContext, values: Mapping[str, Value]) -> str:
        """The path of the resource whose policy this is."""
        subject = text_of(dict(values), self.subject)
        if subject.count("/") and subject.count("/") == self.resource.count("/"):
            return subject
        scope = context.scope(values)
        return self.resource.format(project=scope.project, location=scope.region, name=last_segment(subject))

    def _state(self, context: OperationContext, given: Mapping[str, Value], policy: Object) -> Properties:
        names = ("member", "role", "condition", "project", "location", self.subject)
        state: Properties = {name: value for name in names if (value := given.get(name)) is not None}
        path = self.path_of(context, given)
        state[self.subject] = path
        pieces = path.split("/")
        for name, marker in (("project", "projects"), ("location", "locations")):
            if marker in pieces and not (name == "location" and "{location}" not in self.resource):
                state[name] = pieces[pieces.index(marker) + 1]
        state["etag"] = str(policy.get("etag", ""))
        return state

    def _id(self, path: str, values: Mapping[str, Value]) -> str:
        parts = [path, text_of(dict(values), "role"), text_of(dict(values), "member")]
        condition = values.get("condition")
        if is_object(condition):
            parts.append(text_of(condition, "title"))
        return "/".join(parts)

    async def create(self, context: OperationContext, inputs: Properties) -> Created:
        """Add the member to the policy."""
        path = self.path_of(context, inputs)
        await self._cycle(context, path, lambda bindings: _with_member(bindings, inputs))
        policy = await self._get(context, path)
        return Created(id=self._id(path, inputs), state=self._state(context, inputs, policy))

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> Created | None:
        """Look the member up in the policy; gone when the resource is gone."""
        values = given or self._from_id(resource_id)
        path = self.path_of(context, values)
        try:
            policy = await self._get(context, path)
        except GoogleApiError as error:
            if error.is_missing:
                return None
            raise
        if not _has_member(_bindings(policy), values):
            return None
        return Created(id=resource_id, state=self._state(context, values, policy))

    def _from_id(self, resource_id: str) -> Properties:
        """An import's id is `PATH ROLE MEMBER`, as the real provider takes it."""
        pieces = resource_id.split(" ")
        if len(pieces) != len(("path", "role", "member")):
            raise PluginError(
                f"{resource_id!r} is no id of a member of {self.noun}: import it as '<path> <role> <member>'"
            )
        path, role, member = pieces
        values = parse_id(self.resource, path, self.noun)
        name = values.pop("name", path)
        return {**values, self.subject: name, "role": role, "member": member}

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> Created:
        """Nothing of a member changes in place; read it again."""
        found = await self.read(context, wanted.id, {**wanted.state, **wanted.inputs})
        return found or await self.create(context, wanted.inputs)

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """Take the member out of the policy; a resource that is gone took its policy with it."""
        del resource_id
        try:
            await self._cycle(context, self.path_of(context, state), lambda bindings: _without_member(bindings, state))
        except GoogleApiError as error:
            if not error.is_missing:
                raise

    async def _cycle(
        self, context: OperationContext, path: str, change: Callable[[list[Object]], list[Object] | None]
    ) -> None:
        async with context.locks.of(f"{self.prefix}/{path}"):
            for attempt in range(1, _MAX_CYCLES + 1):
                policy = await self._get(context, path)
                changed = change(_bindings(policy))
                if changed is None:
                    return
                try:
                    await self._set(context, path, policy, changed)
                except GoogleApiError as error:
                    if not error.is_conflict:
                        raise
                    await context.rest.pause(min(attempt, 3) + random.randrange(2))  # noqa: S311 - jitter, not cryptography
                else:
                    return
        raise PluginError(
            f"Error applying IAM policy for {self.noun} {path!r}: somebody else kept changing it; {_MAX_CYCLES} attempts were made"
        )

    async def _get(self, context: OperationContext, path: str) -> Object:
        version = str(_VERSION)
        match self.dialect:
            case PolicyDialect.GET_QUERY:
                return await context.rest.get(
                    f"{self.prefix}/{path}:getIamPolicy", {"options.requestedPolicyVersion": version}
                )
            case PolicyDialect.GET_PLAIN:
                return await context.rest.get(f"{self.prefix}/{path}:getIamPolicy")
            case PolicyDialect.POST_BODY:
                body: Json = {"options": {"requestedPolicyVersion": _VERSION}}
                return await context.rest.call("POST", f"{self.prefix}/{path}:getIamPolicy", body=body)
            case PolicyDialect.POST_QUERY:
                query = {"options.requestedPolicyVersion": version}
                return await context.rest.call("POST", f"{self.prefix}/{path}:getIamPolicy", query=query)
            case PolicyDialect.STORAGE:
                return await context.rest.get(f"{self.prefix}/{path}/iam", {"optionsRequestedPolicyVersion": version})

    async def _set(self, context: OperationContext, path: str, policy: Object, bindings: list[Object]) -> None:
        body: Object = {"version": _VERSION}
        if bindings:
            body["bindings"] = cast("Json", sorted(bindings, key=_order))
        if "auditConfigs" in policy:
            # The update mask names them, so leaving them out would delete them.
            body["auditConfigs"] = policy["auditConfigs"]
        # The storage API's client leaves the etag of a policy without bindings out.
        if bindings or self.dialect is not PolicyDialect.STORAGE:
            body["etag"] = policy.get("etag")
        if self.dialect is PolicyDialect.STORAGE:
            await context.rest.call("PUT", f"{self.prefix}/{path}/iam", body=body)
            return
        whole: Object = {"policy": body}
        if self.dialect is PolicyDialect.POST_BODY:
            whole["updateMask"] = "bindings,etag,auditConfigs"
        await context.rest.call("POST", f"{self.prefix}/{path}:setIamPolicy", body=whole)


def _bindings(policy: Object) -> list[Object]:
    found = policy.get("bindings")
    return [dict(binding) for binding in found if isinstance(binding, dict)] if isinstance(found, list) else []


def _condition(values: Mapping[str, Value]) -> Object | None:
    condition = values.get("condition")
    if not is_object(condition):
        return None
    return {name: str(text_) for name, text_ in condition.items() if text_}


def _is_ours(binding: Object, values: Mapping[str, Value]) -> bool:
    condition = binding.get("condition")
    theirs = {name: text_ for name, text_ in condition.items() if text_} if isinstance(condition, dict) else None
    return binding.get("role") == values.get("role") and theirs == _condition(values)


def _order(binding: Object) -> tuple[str, str]:
    condition = binding.get("condition")
    return str(binding.get("role", "")), str(condition.get("title", "")) if isinstance(condition, dict) else ""


def _members(binding: Object) -> list[Json]:
    members = binding.get("members")
    return list(members) if isinstance(members, list) else []


def _has_member(bindings: list[Object], values: Mapping[str, Value]) -> bool:
    return any(_is_ours(binding, values) and values.get("member") in _members(binding) for binding in bindings)


def _with_member(bindings: list[Object], values: Mapping[str, Value]) -> list[Object] | None:
    """The bindings with the member; None where it is in already."""
    if _has_member(bindings, values):
        return None
    member = text_of(dict(values), "member")
    for binding in bindings:
        if _is_ours(binding, values):
            binding["members"] = sorted([*_members(binding), member], key=str)
            return bindings
    fresh: Object = {"members": [member], "role": text_of(dict(values), "role")}
    condition = _condition(values)
    return [*bindings, {**fresh, "condition": condition} if condition else fresh]


def _without_member(bindings: list[Object], values: Mapping[str, Value]) -> list[Object] | None:
    """The bindings without the member; None where it is not in."""
    if not _has_member(bindings, values):
        return None
    left: list[Object] = []
    for binding in bindings:
        if _is_ours(binding, values):
            members = [member for member in _members(binding) if member != values.get("member")]
            if not members:
                continue
            binding["members"] = cast("Json", members)
        left.append(binding)
    return left
