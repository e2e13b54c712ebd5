"""The hub's HTTP API under /hub: models, their trees and files, as huggingface_hub requests them.

`HF_ENDPOINT` points to this path. Every response has the header `X-Simulated`. Sources: the hub's API (https://huggingface.co/docs/hub/api) and the parts that
huggingface_hub 2.4.0 reads (utils/_http.py, hf_api.py, file_download.py). Xet's protocol is not served; files are sent over HTTP.
"""

import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from aiohttp import hdrs, web

from localcloud.hub.content import NOTE, HubFile, files_of
from localcloud.hub.repositories import Repository, find
from localcloud.json_values import JsonObject
from localcloud.rest.errors import CloudError
from localcloud.server.faults import FaultSchedule, inject
from localcloud.world.cloud import Cloud

_REPOSITORY: Final = "{owner:[^/]+}/{name:[^/]+}"
_API: Final = f"/hub/api/models/{_REPOSITORY}"
_PAGE: Final = 1000
"""Entries on one page of a tree."""
_DATE: Final = "2026-11-21T00:00:00.000Z"
_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")
_RATE_LIMIT: Final = {"RateLimit": '"api";r=0;t=300', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'}
"""Headers of a 429 (huggingface_hub, utils/_http.py, parse_ratelimit_headers)."""

_Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HubError(Exception):
    """Error of the hub: HTTP status, value of X-Error-Code, message."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message

    def response(self) -> web.Response:
        """Return the response."""
        headers = {"X-Error-Message": self.message} | ({"X-Error-Code": self.code} if self.code else {})
        return web.json_response({"error": self.message}, status=self.status, headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HubRevision:
    """A repository at a revision that exists, and its files."""

    repository: Repository
    commit: str
    files: Mapping[str, HubFile]

    def file(self, name: str) -> HubFile:
        """Return a file. Raise HubError if the revision does not have it."""
        if name not in self.files:
            raise HubError(HTTPStatus.NOT_FOUND, "EntryNotFound", "Entry not found")
        return self.files[name]


class HubHandlers:
    """Handlers of the hub."""

    def __init__(self, cloud: Cloud, log: deque[JsonObject]) -> None:
        self._cloud = cloud
        self._log = log
        self._faults = FaultSchedule()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes. The last one answers 404 to everything else below /hub."""
        answers: Sequence[tuple[str, str, str, _Answer]] = (
            ("GET", "/hub/api/whoami-v2", "whoami", self.whoami),
            ("GET", _API, "models.get", self.model),
            ("GET", f"{_API}/auth-check", "models.authCheck", self.auth_check),
            ("GET", f"{_API}/revision/{{revision:.+}}", "models.get", self.model),
            ("GET", f"{_API}/tree/{{revision:[^/]+}}{{below:(?:/.*)?}}", "models.tree", self.tree),
            ("GET", f"/hub/{_REPOSITORY}/resolve/{{revision:[^/]+}}/{{file:.+}}", "files.resolve", self.resolve),
            ("GET", f"/hub/storage/{_REPOSITORY}/{{file:.+}}", "storage.get", self.storage),
            ("*", "/hub/{path:.*}", "unknown", self.unknown),
        )
        return [web.route(verb, path, self._answered(name, answer)) for verb, path, name, answer in answers] + [
            web.head(path, self._answered(name, answer)) for verb, path, name, answer in answers if verb == "GET"
        ]

    def _answered(self, name: str, answer: _Answer) -> _Answer:
        """Return a handler that adds the scenario's faults, the hub's error bodies, a log line, and the common response header."""

        async def handler(request: web.Request) -> web.StreamResponse:
            fault = self._faults.pick(self._cloud.scenario, f"hub.{name}")
            try:
                if fault is not None:
                    response = await inject(fault, request)
                else:
                    self._check_token(request)
                    response = await answer(request)
            except HubError as error:
                response = error.response()
            except CloudError as error:
                response = web.json_response(
                    {"error": HTTPStatus(error.code).phrase},
                    status=error.code,
                    headers=_RATE_LIMIT if error.code == HTTPStatus.TOO_MANY_REQUESTS else {},
                )
            response.headers["X-Simulated"] = NOTE
            entry = {"api": "hub", "id": f"hub.{name}", "method": request.method, "path": request.path}
            self._log.append({"time": self._cloud.timeline.stamp(), **entry, "query": {}, "status": response.status})
            return response

        return handler

    def _token(self, request: web.Request) -> str:
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""

    def _check_token(self, request: web.Request) -> None:
        """Reject an invalid token for any resource, including public repositories (huggingface/huggingface_hub#1124)."""
        token = self._token(request)
        if token and (not token.startswith("hf_") or token in self._cloud.scenario.hub.expired_tokens):
            raise HubError(HTTPStatus.UNAUTHORIZED, "", "Invalid credentials in Authorization header")

    def _repository(self, request: web.Request) -> Repository:
        """Return the repository. Raise HubError if the caller must not learn that it exists.

        Without a token the hub answers 401 for missing and private repositories; with one, 404 (huggingface_hub, utils/_http.py).
        """
        scenario = self._cloud.scenario.hub
        name = f"{request.match_info['owner']}/{request.match_info['name']}"
        found = find(name, scenario.repositories)
        if found.state == "absent" or (found.state == "private" and not self._may_read(request, name)):
            if not self._token(request):
                raise HubError(HTTPStatus.UNAUTHORIZED, "", "Invalid username or password.")
            raise HubError(HTTPStatus.NOT_FOUND, "RepoNotFound", "Repository not found")
        return found

    def _may_read(self, request: web.Request, name: str) -> bool:
        return bool(self._token(request)) and name in self._cloud.scenario.hub.readable

    def _readable(self, request: web.Request) -> Repository:
        """Return the repository. Raise HubError if the caller has no access to its files. The file list of a gated repository is public."""
        found = self._repository(request)
        if found.state != "gated" or self._may_read(request, found.id):
            return found
        message = f"Access to model {found.id} is restricted"
        if self._token(request):
            message += (
                f" and you are not in the authorized list. Visit https://huggingface.co/{found.id} to ask for access."
            )
            raise HubError(HTTPStatus.FORBIDDEN, "GatedRepo", message)
        message += ". You must have access to it and be authenticated to access it. Please log in."
        raise HubError(HTTPStatus.UNAUTHORIZED, "GatedRepo", message)

    def _at_revision(self, request: web.Request, repository: Repository) -> _HubRevision:
        """Return the repository at the requested revision. Raise HubError if the revision does not exist. Revisions are `main` and its commits."""
        revision = request.match_info.get("revision", "main")
        if revision not in {"main", "refs/heads/main", repository.head, *repository.older}:
            raise HubError(HTTPStatus.NOT_FOUND, "RevisionNotFound", f"Invalid rev id: {revision}")
        commit = revision if revision in repository.older else repository.head
        return _HubRevision(repository=repository, commit=commit, files=files_of(repository))

    async def whoami(self, request: web.Request) -> web.Response:
        """Return the account of the token."""
        if not self._token(request):
            raise HubError(HTTPStatus.UNAUTHORIZED, "", "Invalid username or password.")
        account: JsonObject = {"type": "user", "id": "0" * 24, "name": "local", "fullname": "Local Cloud", "orgs": []}
        token = {"type": "access_token", "accessToken": {"displayName": "local", "role": "read"}}
        return web.json_response({**account, "auth": token})

    async def model(self, request: web.Request) -> web.Response:
        """Return the description of a repository and its files; `blobs` adds their sizes."""
        found = self._at_revision(request, self._repository(request))
        repository, files = found.repository, found.files.values()
        detailed = request.query.get("blobs", "").lower() == "true"
        return web.json_response(
            {
                "_id": "0" * 24,
                "id": repository.id,
                "modelId": repository.id,
                "author": repository.id.partition("/")[0],
                "sha": found.commit,
                "lastModified": _DATE,
                "createdAt": _DATE,
                "private": repository.state == "private",
                "gated": "manual" if repository.state == "gated" else False,
                "disabled": False,
                "downloads": 0,
                "likes": 0,
                "tags": [],
                "siblings": [_sibling(file, detailed=detailed) for file in files],
                "simulated": _about(repository, list(files)),
            }
        )

    async def auth_check(self, request: web.Request) -> web.Response:
        """Answer 200 if the caller can read the files."""
        self._readable(request)
        return web.json_response({})

    async def tree(self, request: web.Request) -> web.Response:
        """Return the entries below a folder, page by page. All files are in the root."""
        found = self._at_revision(request, self._repository(request))
        if request.match_info["below"].strip("/"):
            raise HubError(HTTPStatus.NOT_FOUND, "EntryNotFound", "Entry not found")
        entries = [_entry(file) for file in found.files.values()]
        size = min(int(request.query.get("limit", _PAGE)), _PAGE)
        start = int(request.query.get("cursor", 0))
        headers = {}
        if start + size < len(entries):
            following = request.url.update_query(cursor=start + size)
            headers = {"Link": f'<{following}>; rel="next"'}
        return web.json_response(entries[start : start + size], headers=headers)

    async def resolve(self, request: web.Request) -> web.StreamResponse:
        """Return a file. A large file is a redirect to the hub's storage, on another host so clients keep their token."""
        found = self._at_revision(request, self._readable(request))
        file = found.file(request.match_info["file"])
        headers = {"X-Repo-Commit": found.commit, **_real_size(file)}
        if not file.is_lfs:
            return _content(request, file.content, {**headers, "ETag": f'"{file.git_id}"'})
        port = self._cloud.base_url.rpartition(":")[2]
        path = f"{quote(found.repository.id)}/{quote(file.name)}"
        linked = {"X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(len(file.content))}
        location = f"http://localhost:{port}/hub/storage/{path}?signed={file.sha256[:16]}"
        return web.Response(status=HTTPStatus.FOUND, headers={**headers, **linked, "Location": location})

    async def storage(self, request: web.Request) -> web.StreamResponse:
        """Return a large file to any caller with its signed address."""
        name = f"{request.match_info['owner']}/{request.match_info['name']}"
        file = files_of(find(name, self._cloud.scenario.hub.repositories)).get(request.match_info["file"])
        if file is None or request.query.get("signed") != file.sha256[:16]:
            raise HubError(HTTPStatus.FORBIDDEN, "", "AccessDenied")
        return _content(request, file.content, {"ETag": f'"{file.sha256}"', **_real_size(file)})

    async def unknown(self, request: web.Request) -> web.Response:
        """Reject a path that the local hub does not support."""
        raise HubError(HTTPStatus.NOT_FOUND, "", f"The local hub does not support {request.method} {request.path}")


def _real_size(file: HubFile) -> dict[str, str]:
    """Return the headers with the size of the real file."""
    if not file.real_bytes:
        return {}
    source = "stated" if file.is_stated else "made"
    return {"X-Simulated-Real-Size": str(file.real_bytes), "X-Simulated-Real-Size-Source": source}


def _about(repository: Repository, files: Sequence[HubFile]) -> JsonObject:
    """Return the simulated parts: real sizes next to the small ones, and their sources."""
    return {
        "note": NOTE,
        "realBytes": {file.name: file.real_bytes for file in files if file.real_bytes},
        "statedBy": repository.sizes_source or "generated",
        "source": repository.source,
    }


def _sibling(file: HubFile, *, detailed: bool) -> JsonObject:
    if not detailed:
        return {"rfilename": file.name}
    found: JsonObject = {"rfilename": file.name, "size": len(file.content), "blobId": file.git_id}
    if file.is_lfs:
        found["lfs"] = {"sha256": file.sha256, "size": len(file.content), "pointerSize": len(file.pointer)}
    return found


def _entry(file: HubFile) -> JsonObject:
    found: JsonObject = {"type": "file", "oid": file.git_id, "size": len(file.content), "path": file.name}
    if file.is_lfs:
        found["lfs"] = {"oid": file.sha256, "size": len(file.content), "pointerSize": len(file.pointer)}
    return found


def _content(request: web.Request, content: bytes, headers: Mapping[str, str]) -> web.Response:
    """Return all bytes, or the requested range."""
    headers = {"Accept-Ranges": "bytes", **headers}
    wanted = _RANGE.fullmatch(request.headers.get(hdrs.RANGE, ""))
    if wanted is None:
        return web.Response(body=content, headers=headers)
    first = int(wanted[1])
    last = min(int(wanted[2] or len(content)), len(content) - 1)
    if first > last:
        return web.Response(
            status=HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers={"Content-Range": f"bytes */{len(content)}"}
        )
    part = {**headers, "Content-Range": f"bytes {first}-{last}/{len(content)}"}
    return web.Response(status=HTTPStatus.PARTIAL_CONTENT, body=content[first : last + 1], headers=part)
