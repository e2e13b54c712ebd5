"""IAM members of projects, secrets, buckets, repositories, services and service accounts: one principal in one role of a resource's policy.

The policy is read, changed and written back. Its etag protects other clients' changes: after a 409, which means that another client was
faster, the cycle starts again.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, TypeAlias, cast

from localcloud.plugins.facts import Recorded
from localcloud.plugins.lifecycle import CreatedResource, OperationContext, TypeOverlay, UpdateRequest
from localcloud.plugins.resource import parse_id
from localcloud.plugins.rest import PluginError, RestError
from localcloud.plugins.schema import Json, Object, PropertySpecs, last_segment
from localcloud.plugins.values import Properties, Value, is_object, text_of

_VERSION: Final = 3
_VERSION_QUERY: Final = {"options.requestedPolicyVersion": str(_VERSION)}
_MAX_CYCLES: Final = 12
_ID: Final = ("path", "role", "member")

_Edit: TypeAlias = Callable[[list[Object], Mapping[str, Value]], list[Object] | None]


class _PolicyDialect(Enum):
    """Methods by which an API reads and writes policies."""

    GET_QUERY = "GET :getIamPolicy?options.requestedPolicyVersion=3, POST :setIamPolicy"
    GET_PLAIN = "GET :getIamPolicy, POST :setIamPolicy"
    POST_BODY = "POST :getIamPolicy with options, POST :setIamPolicy with an update mask"
    POST_QUERY = "POST :getIamPolicy?options.requestedPolicyVersion=3, POST :setIamPolicy"
    STORAGE = "GET and PUT of the bucket's iam"


@dataclass(frozen=True, slots=True, kw_only=True)
class _IamMember:
    """Membership in the policy of one kind of resource.

    `subject` is the property that names the resource, `resource` its path (a template over `project`, `location` and `name`, the subject's last
    segment), `prefix` the API that the path belongs to.
    """

    noun: str
    subject: str
    prefix: str
    resource: str
    dialect: _PolicyDialect
    fields: PropertySpecs

    def path_of(self, context: OperationContext, values: Mapping[str, Value]) -> str:
        subject = text_of(values, self.subject)
        if subject.count("/") and subject.count("/") == self.resource.count("/"):
            return subject
        scope = context.scope(values)
        return self.resource.format(project=scope.project, location=scope.region, name=last_segment(subject))

    def _created(self, path: str, given: Mapping[str, Value], policy: Object) -> CreatedResource:
        named = parse_id(self.resource, path, self.noun)
        place = {name: named[name] for name in ("project", "location") if name in named}
        known = {name: value for name, value in given.items() if name in self.fields}
        condition = given.get("condition")
        title = [text_of(condition, "title")] if is_object(condition) else []
        resource_id = "/".join([path, str(given["role"]), str(given["member"]), *title])
        return CreatedResource(
            id=resource_id, state={**known, self.subject: path, **place, "etag": str(policy.get("etag", ""))}
        )

    async def create(self, context: OperationContext, inputs: Properties) -> CreatedResource:
        path = self.path_of(context, inputs)
        await self._cycle(context, path, _with_member, inputs)
        return self._created(path, inputs, await self._get(context, path))

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> CreatedResource | None:
        """Find the member in the policy. If the resource is gone, the member is too."""
        values = given or self._from_id(resource_id)
        path = self.path_of(context, values)
        try:
            policy = await self._get(context, path)
        except RestError as error:
            if error.is_missing:
                return None
            raise
        if not _has_member(_bindings(policy), values):
            return None
        return CreatedResource(id=resource_id, state=self._created(path, values, policy).state)

    def _from_id(self, resource_id: str) -> Properties:
        """Return the properties in an import's id, which is `PATH ROLE MEMBER` as with the real provider."""
        pieces = resource_id.split(" ")
        if len(pieces) != len(_ID):
            raise PluginError(
                f"{resource_id!r} is not an id of a member of {self.noun}. Import it as '<path> <role> <member>'"
            )
        path, role, member = pieces
        values = parse_id(self.resource, path, self.noun)
        name = values.pop("name", path)
        return {**values, self.subject: name, "role": role, "member": member}

    async def update(self, context: OperationContext, wanted: UpdateRequest) -> CreatedResource:
        """Read the member again because no property of it changes in place."""
        found = await self.read(context, wanted.id, {**wanted.state, **wanted.inputs})
        return found or await self.create(context, wanted.inputs)

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """Remove the member from the policy. If the resource is gone, its policy is too."""
        del resource_id
        try:
            await self._cycle(context, self.path_of(context, state), _without_member, state)
        except RestError as error:
            if not error.is_missing:
                raise

    async def _cycle(self, context: OperationContext, path: str, edit: _Edit, values: Properties) -> None:
        async with context.locks.of(f"{self.prefix}/{path}"):
            for attempt in range(1, _MAX_CYCLES + 1):
                policy = await self._get(context, path)
                changed = edit(_bindings(policy), values)
                if changed is None:
                    return
                try:
                    await self._set(context, path, policy, changed)
                except RestError as error:
                    if not error.is_conflict:
                        raise
                    await context.rest.pause(min(attempt, 3) + random.randrange(2))  # noqa: S311 - jitter, not cryptography
                else:
                    return
        raise PluginError(
            f"Error applying IAM policy for {self.noun} {path!r}: another client changed it in each of {_MAX_CYCLES} attempts"
        )

    async def _get(self, context: OperationContext, path: str) -> Object:
        where = f"{self.prefix}/{path}:getIamPolicy"
        match self.dialect:
            case _PolicyDialect.GET_QUERY:
                return await context.rest.get(where, _VERSION_QUERY)
            case _PolicyDialect.GET_PLAIN:
                return await context.rest.get(where)
            case _PolicyDialect.POST_BODY:
                return await context.rest.call("POST", where, body={"options": {"requestedPolicyVersion": _VERSION}})
            case _PolicyDialect.POST_QUERY:
                return await context.rest.call("POST", where, query=_VERSION_QUERY)
            case _PolicyDialect.STORAGE:
                query = {"optionsRequestedPolicyVersion": str(_VERSION)}
                return await context.rest.get(f"{self.prefix}/{path}/iam", query)

    async def _set(self, context: OperationContext, path: str, policy: Object, bindings: list[Object]) -> None:
        body: Object = {"version": _VERSION}
        if bindings:
            body["bindings"] = cast("Json", sorted(bindings, key=_order))
        if "auditConfigs" in policy:
            # The update mask names them, so omitting them deletes them.
            body["auditConfigs"] = policy["auditConfigs"]
        # The storage API's client omits the etag of a policy without bindings.
        if bindings or self.dialect is not _PolicyDialect.STORAGE:
            body["etag"] = policy.get("etag")
        if self.dialect is _PolicyDialect.STORAGE:
            await context.rest.call("PUT", f"{self.prefix}/{path}/iam", body=body)
            return
        mask: Object = {"updateMask": "bindings,etag,auditConfigs"} if self.dialect is _PolicyDialect.POST_BODY else {}
        await context.rest.call("POST", f"{self.prefix}/{path}:setIamPolicy", body={"policy": body, **mask})


def _bindings(policy: Object) -> list[Object]:
    found = policy.get("bindings")
    return [dict(binding) for binding in found if isinstance(binding, dict)] if isinstance(found, list) else []


def _condition(owner: Mapping[str, Value] | Object) -> Object:
    """Return the condition of a binding or of the program as a text. Empty without one."""
    condition = owner.get("condition")
    return {name: str(text) for name, text in condition.items() if text} if isinstance(condition, dict) else {}


def _is_ours(binding: Object, values: Mapping[str, Value]) -> bool:
    return binding.get("role") == values.get("role") and _condition(binding) == _condition(values)


def _order(binding: Object) -> tuple[str, str]:
    return str(binding.get("role", "")), str(_condition(binding).get("title", ""))


def _members(binding: Object) -> list[Json]:
    members = binding.get("members")
    return list(members) if isinstance(members, list) else []


def _has_member(bindings: list[Object], values: Mapping[str, Value]) -> bool:
    return any(_is_ours(binding, values) and values.get("member") in _members(binding) for binding in bindings)


def _with_member(bindings: list[Object], values: Mapping[str, Value]) -> list[Object] | None:
    """Return the bindings with the member, or None if they already contain it."""
    if _has_member(bindings, values):
        return None
    member = text_of(values, "member")
    for binding in bindings:
        if _is_ours(binding, values):
            binding["members"] = sorted([*_members(binding), member], key=str)
            return bindings
    fresh: Object = {"members": [member], "role": text_of(values, "role")}
    condition = _condition(values)
    return [*bindings, {**fresh, "condition": condition} if condition else fresh]


def _without_member(bindings: list[Object], values: Mapping[str, Value]) -> list[Object] | None:
    """Return the bindings without the member, or None if they do not contain it."""
    if not _has_member(bindings, values):
        return None
    for binding in bindings:
        if _is_ours(binding, values):
            binding["members"] = [member for member in _members(binding) if member != values.get("member")]
    return [binding for binding in bindings if binding.get("members")]


_SHORT: Final[Recorded] = {"same": last_segment}


def _member(subject: str, noun: str, prefix: str, resource: str, dialect: _PolicyDialect) -> TypeOverlay:
    lifecycle = partial(_IamMember, noun=noun, subject=subject, prefix=prefix, resource=resource, dialect=dialect)
    return TypeOverlay(properties={} if subject == "serviceAccountId" else {subject: _SHORT}, lifecycle=lifecycle)


_LOCATED: Final = "projects/{project}/locations/{location}"
MEMBERS: Final[Mapping[str, TypeOverlay]] = {
    "gcp:projects/iAMMember:IAMMember": _member(
        "project", "project", "cloudresourcemanager/v1/projects", "{name}", _PolicyDialect.POST_BODY
    ),
    "gcp:secretmanager/secretIamMember:SecretIamMember": _member(
        "secretId", "secret", "secretmanager/v1", "projects/{project}/secrets/{name}", _PolicyDialect.GET_QUERY
    ),
    "gcp:storage/bucketIAMMember:BucketIAMMember": _member(
        "bucket", "bucket", "storage/storage/v1", "b/{name}", _PolicyDialect.STORAGE
    ),
    "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": _member(
        "repository", "repository", "artifactregistry/v1", f"{_LOCATED}/repositories/{{name}}", _PolicyDialect.GET_PLAIN
    ),
    "gcp:cloudrunv2/serviceIamMember:ServiceIamMember": _member(
        "name", "Cloud Run service", "run/v2", f"{_LOCATED}/services/{{name}}", _PolicyDialect.GET_PLAIN
    ),
    "gcp:serviceaccount/iAMMember:IAMMember": _member(
        "serviceAccountId",
        "service account",
        "iam/v1",
        "projects/{project}/serviceAccounts/{name}",
        _PolicyDialect.POST_QUERY,
    ),
}
