"""Dispatch of HTTP requests to the handlers of Google's methods: routing, identity, validation, permissions, faults, error bodies, the request log."""

import asyncio
import inspect
import re
import time
import traceback
from collections import deque
from contextlib import suppress
from email.utils import format_datetime
from typing import Any, cast

from aiohttp import hdrs, web

from localcloud import services
from localcloud.json_values import JsonObject, part, parts, strings
from localcloud.rest import bodies, validation
from localcloud.rest.call import Call, Caller, Handler, MethodResult
from localcloud.rest.discovery import VERSIONS, DiscoveryDocument, Method, document_for, has_modelled_form
from localcloud.rest.errors import CloudError, ErrorStyle
from localcloud.server.faults import FaultSchedule, inject
from localcloud.server.guard import caller_of, check_quota_project, quota_project_of
from localcloud.services import orgpolicies, serviceusage, storage_xml
from localcloud.services.iam import add_service_agent
from localcloud.world.cloud import Cloud, project_policy
from localcloud.world.conditions import MODIFIED_ROLES, UNRECOGNIZED_ROLES, Attributes, resource_attributes
from localcloud.world.roles import permission_of

_LOG_LENGTH = 5000
_LATE_TICK_S = 0.02
_MEDIA = {"upload": "upload", "download": "download"}
_VERSION = re.compile(r"v\d")
_SECRET_KEYS = {"data", "access_token", "oauth_token", "key", "privateKeyData", "private_key", "assertion"}

_LIMITING = {"cloudresourcemanager", "storage"}
"""APIs that recognize limits on the roles that a caller can grant, according to public pages (IAM's release notes, 2021-07-21, for Cloud
Storage). For the other APIs, the strict answer is assumed."""
_DENIALS = {"logging.entries.list": "Permission denied for all log views"}
"""Methods with their own text for a missing permission (public logs of 2025 and 2026, such as jdubz's app-monitor)."""


class Dispatcher:
    """Serves every path outside /admin and /oauth2."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._handlers: dict[str, Handler] = {}
        self._apis: set[str] = set()
        self._faults = FaultSchedule()
        self.log: deque[JsonObject] = deque(maxlen=_LOG_LENGTH)

    async def use(self, api: str) -> None:
        """Load the methods of an API at its first request, or at the start if the state has resources that change with time.

        The methods are complete before another request is answered: only the restart of what ran awaits anything.
        """
        if api not in self._apis:
            self._handlers |= services.handlers(self._cloud, [api])
            self._apis.add(api)
            try:
                await services.resume(self._cloud, api)
            except BaseException:
                self._apis.discard(api)  # the next request tries again
                raise

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one request. Every failure becomes an error body in Google's format."""
        entry: JsonObject = {
            "time": self._cloud.timeline.stamp(),
            "method": request.method,
            "path": request.path,
            "query": _redacted(_flat(request)),
            "api": None,
            "id": None,
        }
        began = time.perf_counter()
        api, path, media = _split(request.raw_path.partition("?")[0])
        is_xml = media is None and self._is_xml_read(request.method, api, path)
        if is_xml:
            path = storage_xml.json_path(api, path)
            api, media = "storage", "download"
        style = _style(api)
        try:
            if is_xml:
                storage_xml.check_headers(request.headers)
            response = await self._answer(request, api, path, media, entry, style)
        except (CloudError, *bodies.BROKEN) as broken:
            error = broken if isinstance(broken, CloudError) else bodies.refusal(broken, style)
            response = storage_xml.refusal(error) if is_xml else _refusal(error, style)
            entry["error"] = error.message
        except Exception as error:  # noqa: BLE001 - a fault of the local cloud itself must look like one, and be found
            entry["error"] = traceback.format_exc()
            own = CloudError(
                500,
                "INTERNAL",
                f"Internal error of the local cloud: {error!r}. GET /admin/requests has the trace.",
                reason="backendError",
            )
            response = web.json_response(own.body(style), status=500)
        if not response.prepared:  # Simulated, like every time stamp, because clients compare the two.
            response.headers[hdrs.DATE] = format_datetime(self._cloud.timeline.now(), usegmt=True)
        entry["status"] = response.status
        entry["ms"] = round((time.perf_counter() - began) * 1000, 3)
        self.log.append(entry)
        return response

    def _is_xml_read(self, verb: str, first: str, rest: str) -> bool:
        """Return whether a request reads an object by Cloud Storage's XML API, which has no path of its own: `/BUCKET/OBJECT`.

        All other APIs come first. Without the bucket, an address with a version is one of an API that the local cloud lacks.
        """
        if verb not in {hdrs.METH_GET, hdrs.METH_HEAD} or not rest or document_for(first, rest) is not None:
            return False
        return self._cloud.store.has("storage.buckets", first) or _VERSION.match(rest) is None

    async def _answer(  # noqa: PLR0917 - the parts of one request
        self, request: web.Request, api: str, path: str, media: str | None, entry: JsonObject, style: ErrorStyle
    ) -> web.StreamResponse:
        caller = caller_of(self._cloud, request, style)
        entry["caller"] = caller.email
        entry["operator"] = caller.operator
        document, method, bound = _route(request.method, api, path, media)
        entry.update(api=api, id=method.id, quota_project=quota_project_of(request))
        fault = self._faults.pick(self._cloud.scenario, method.id)
        if fault is not None and fault.when == "before":
            return await inject(fault, request)
        check_quota_project(self._cloud, request, document, caller)
        call = await self._call(request, document, method, bound, caller, media)
        entry["body"] = _redacted(call.body)
        if media == "upload":
            entry["content"] = request.content_type
        project = self._permit(call)
        if project is not None:
            orgpolicies.enforce(self._cloud, call, project)
        await self.use(document.api)
        handler = self._handlers.get(method.id)
        if handler is None or not has_modelled_form(document, method):
            raise CloudError.unimplemented(
                f"{method.id} ({document.title} {document.version}) is a method of Google's API that the local cloud does not model. "
                "dev/docs/local-cloud-internals.md#methods lists the supported methods."
            )
        if fault is not None and fault.when == "late":
            self._cloud.spawn(self._take_effect(handler, call, fault.late_s))
            return await inject(fault, request)
        answer: Any = handler(call)
        if inspect.isawaitable(answer):
            answer = await answer
        if fault is not None:
            return await inject(fault, request)
        result = cast("MethodResult", answer)
        if isinstance(result, web.StreamResponse):
            return result
        return web.json_response(result)

    async def _take_effect(self, handler: Handler, call: Call, late_s: float) -> None:
        """Make a call whose response was lost, after some simulated seconds. Its answer, or its refusal, reaches nobody."""
        timeline = self._cloud.timeline
        due_s = timeline.simulated_s() + late_s
        while timeline.simulated_s() < due_s:  # noqa: ASYNC110 - `advance` moves this time without an event
            await asyncio.sleep(_LATE_TICK_S)
        with suppress(CloudError):
            answer: Any = handler(call)
            if inspect.isawaitable(answer):
                await answer

    async def _call(  # noqa: PLR0917 - the parts of one request
        self,
        request: web.Request,
        document: DiscoveryDocument,
        method: Method,
        bound: dict[str, str],
        caller: Caller,
        media: str | None,
    ) -> Call:
        validation.path_parameters(document, method, bound)
        given = {
            key: values for key, values in _lists(request).items() if not (media == "upload" and key == "upload_id")
        }
        query = validation.query_parameters(document, method, given)
        if document.api == "storage" and method.id == "storage.objects.get" and request.query.get("alt") == "media":
            media = "download"
        body: JsonObject = {}
        if media is None:
            body = validation.request_body(document, method, await bodies.json_value(request, _style(document.api)))
        path = (
            {key: self._by_id(value) for key, value in bound.items()}
            if document.api not in {"compute", "storage"}
            else bound
        )
        if document.api == "compute" and "project" in path:
            path = {**path, "project": self._cloud.project_id(path["project"]) or path["project"]}
        return Call(
            document=document,
            method=method,
            path=path,
            query=query,
            body=body,
            caller=caller,
            http=request,
            media=media,
        )

    def _by_id(self, name: str) -> str:
        """Convert `projects/123456/...` to `projects/ID/...`, because Google accepts numbers for ids."""
        parts = name.split("/")
        if parts[0] == "projects" and len(parts) > 1 and parts[1].isdigit():
            parts[1] = self._cloud.project_id(parts[1]) or parts[1]
        return "/".join(parts)

    def _permit(self, call: Call) -> str | None:
        """Reject foreign projects, disabled APIs and callers without the permission. Return the call's project, if it has one."""
        project, resources = self._scope(call)
        permission = permission_of(call.method.id)
        if project is not None:
            if not self._cloud.store.has("projects", project):
                target = resources[0].split("googleapis.com/", 1)[1]
                raise CloudError.denied(
                    f"Permission '{permission}' denied on resource '//{call.document.api}.googleapis.com/{target}' (or it may not exist)."
                )
            self._enabled(call, project)
            resources.append(project_policy(project))
        # testIamPermissions needs no permission (discovery text of projects.testIamPermissions). A bucket that does not exist is 404 for
        # every caller (Cloud Storage, HTTP status and error codes for JSON, 404 Not Found).
        # Users need no permission for their own login profile (OS Login's reference, users.getLoginProfile); its service denies access to others'.
        free = (
            call.caller.operator
            or permission.endswith(".testIamPermissions")
            or self._lacks_bucket(call)
            or call.document.api == "oslogin"
            # The price catalog is public. A call only needs the use of its quota project (Cloud Billing, "Get publicly available information").
            or call.method.id.startswith("cloudbilling.services.")
            # An operation whose name has no project can be read by any caller that knows the name.
            or (project is None and permission.endswith(".operations.get"))
        )
        attributes = {**self._attributes(call, resources[0] if resources else ""), **self._modified(call, resources)}
        if not free and not self._cloud.policies.allows(call.caller.email, permission, resources, attributes):
            target = resources[0] if resources else call.method.id
            denial = _DENIALS.get(call.method.id)
            if denial is None and call.document.api == "compute":
                # Text from cloudyr/googleComputeEngineR#94.
                denial = f"Required '{permission}' permission for 'projects/{project}'"
            raise CloudError.denied(
                denial or f"Permission '{permission}' denied on resource '{target}' (or it may not exist)."
            )
        return project

    def _attributes(self, call: Call, resource: str) -> Attributes:
        """Return the attributes of a call's nearest resource that an API exposes to conditions.

        Cloud Storage names a bucket `projects/_/buckets/B` and an object `projects/_/buckets/B/objects/O`; a listing is a call on the bucket. The
        name of a secret has the project's number. A creation is a call on the project
        (cloud.google.com/iam/docs/conditions-resource-attributes, 2026-11).
        """
        api, name = call.document.api, resource.partition("googleapis.com/")[2]
        if api == "secretmanager" and "/" in name:
            first, project, *rest = name.split("/")
            return resource_attributes(api, "/".join([first, self._cloud.project_number(project), *rest]))
        if api != "storage":
            return resource_attributes(api, name)
        found = call.path.get("object") or call.path.get("destinationObject") or _inserted(call)
        return resource_attributes(api, f"projects/_/buckets/{name}{f'/objects/{found}' if found else ''}")

    def _modified(self, call: Call, resources: list[str]) -> Attributes:
        """Return the attribute with the roles that a request grants or revokes. Empty for a request that does not set a policy."""
        if not call.method.id.endswith(".setIamPolicy"):
            return {}
        if call.document.api not in _LIMITING:
            return {MODIFIED_ROLES: UNRECOGNIZED_ROLES}
        project_level = call.document.api == "cloudresourcemanager"
        resource, policy = (resources[-1], part(call.body, "policy")) if project_level else (resources[0], call.body)
        mask = call.body.get("updateMask") if project_level else None
        return {MODIFIED_ROLES: self._cloud.policies.modified_roles(resource, policy, mask=mask)}

    def _lacks_bucket(self, call: Call) -> bool:
        return "bucket" in call.path and not self._cloud.store.has("storage.buckets", call.path["bucket"])

    def _scope(self, call: Call) -> tuple[str | None, list[str]]:
        """Return the project of a call and the resources whose policies apply, the nearest first."""
        scopes = {"storage": self._storage_scope, "oslogin": self._login_scope}
        return scopes.get(call.document.api, self._named_scope)(call, f"//{call.document.api}.googleapis.com/")

    def _storage_scope(self, call: Call, host: str) -> tuple[str | None, list[str]]:
        """Return the scope of a call of Cloud Storage: the project is the query's, or the bucket's."""
        bucket = call.path.get("bucket") or call.path.get("destinationBucket")
        record = self._cloud.store.get("storage.buckets", bucket) if bucket else None
        project = str(call.query["project"]) if "project" in call.query else (record or {}).get("_project")
        return self._id_of(project), [host + (bucket or f"projects/{project}")]

    def _login_scope(self, call: Call, host: str) -> tuple[str | None, list[str]]:
        """Return the scope of a call of OS Login: a user's name, and the project in the query."""
        return self._id_of(call.query.get("projectId")), [host + call.name]

    def _named_scope(self, call: Call, host: str) -> tuple[str | None, list[str]]:
        """Return the scope of a call by its path or its body: the project, and the resource with those that contain it."""
        if "project" in call.path or "projectId" in call.path:
            project = call.path.get("project") or call.path["projectId"]
            return self._id_of(project), [host + "projects/" + project]
        try:
            name = call.name
        except KeyError:
            name = _named_in_body(call.body)
            if name is None:
                return None, []
        if "/" not in name:
            return self._id_of(name), [host + "projects/" + name]
        parts = name.split("/")
        chain = [host + "/".join(parts[:end]) for end in range(len(parts), 1, -1)]
        has_project = parts[0] in {"projects", "namespaces"} and parts[1] != "-"
        return parts[1] if has_project else None, chain

    def _id_of(self, project: str | None) -> str | None:
        """Return the id of a project by its id or number; an unknown one as it is."""
        return None if project is None else self._cloud.project_id(project) or project

    def _enabled(self, call: Call, project: str) -> None:
        api = call.document.api
        if serviceusage.answers(self._cloud, project, api):
            add_service_agent(self._cloud, project, api)
            return
        raise serviceusage.disabled(self._cloud, call.document.title, api, project)


def _named_in_body(body: JsonObject) -> str | None:
    """Return the resource that a Cloud Logging request names in its body: the one whose entries are listed, or the log that is written."""
    entries = parts(body, "entries")
    names = [*strings(body, "resourceNames"), body.get("logName"), *(entry.get("logName") for entry in entries[:1])]
    return next((str(name) for name in names if name), None)


def _inserted(call: Call) -> str:
    """Return the name of the object that an upload creates if its address contains it. If only a body names the object, no condition matches."""
    return str(call.query.get("name") or "") if call.method.id == "storage.objects.insert" else ""


def _split(raw_path: str) -> tuple[str, str, str | None]:
    """Return the API, the path below it, and `upload` or `download` for content of Cloud Storage (`/upload/...` and `/storage/upload/...`)."""
    first, _, rest = raw_path.lstrip("/").partition("/")
    if first in _MEDIA:
        return "storage", rest, _MEDIA[first]
    if first == "storage":
        below, _, tail = rest.partition("/")
        if below in _MEDIA:
            return "storage", tail, _MEDIA[below]
    return first, rest, None


def _route(verb: str, api: str, path: str, media: str | None) -> tuple[DiscoveryDocument, Method, dict[str, str]]:
    document = document_for(api, path)
    if document is None:
        known = ", ".join(f"/{name}/{prefix}" for name, prefixes in VERSIONS.items() for prefix in prefixes)
        raise CloudError.not_found(f"The local cloud has no API at /{api}/{path}. Available: {known}.")
    content_verbs = {"upload": hdrs.METH_POST, "download": hdrs.METH_GET if verb == hdrs.METH_HEAD else verb}
    found = document.match(content_verbs.get(media or "", verb), path)
    if found is None:
        raise CloudError.not_found(
            f"The requested URL /{path} was not found for {verb} in {document.title} {document.version}."
        )
    return document, *found


def _lists(request: web.Request) -> dict[str, list[str]]:
    return {key: request.query.getall(key) for key in request.query}


def _flat(request: web.Request) -> dict[str, Any]:
    return {key: values[0] if len(values) == 1 else values for key, values in _lists(request).items()}


def _refusal(error: CloudError, style: ErrorStyle) -> web.Response:
    login = {"WWW-Authenticate": 'Bearer realm="https://accounts.google.com/"'} if error.code == 401 else {}  # noqa: PLR2004 - HTTP
    return web.json_response(error.body(style), status=error.code, headers={**login, **error.headers})


def _style(api: str) -> ErrorStyle:
    return {"compute": ErrorStyle.COMPUTE, "storage": ErrorStyle.STORAGE}.get(api, ErrorStyle.RPC)


def _redacted(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value without secrets."""
    if isinstance(value, dict):
        return {
            key: "[redacted]" if key in _SECRET_KEYS and isinstance(item, str) else _redacted(item)
            for key, item in cast("JsonObject", value).items()
        }
    if isinstance(value, list):
        return [_redacted(item) for item in cast("list[Any]", value)]
    return value
