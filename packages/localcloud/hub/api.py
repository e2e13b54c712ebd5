"""The hub's HTTP API: models, their trees and files, as huggingface_hub requests them, without a transport.

Sources: the hub's API (https://huggingface.co/docs/hub/api) and the parts that huggingface_hub 2.4.0 reads (utils/_http.py, hf_api.py, file_download.py).
Xet's protocol is not served; files are sent over HTTP.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from localcloud.hub.content import NOTE, HubFile, files_of
from localcloud.hub.repositories import Repository, State, find
from localcloud.json_values import JsonObject

_REPOSITORY: Final = "(?P<owner>[^/]+)/(?P<name>[^/]+)"
_API: Final = f"api/models/{_REPOSITORY}"
_METHODS: Final = {
    "whoami": "api/whoami-v2",
    "models.get": rf"{_API}(/revision/(?P<revision>.+))?",
    "models.authCheck": f"{_API}/auth-check",
    "models.tree": rf"{_API}/tree/(?P<revision>[^/]+)(?P<below>/.*)?",
    "files.resolve": rf"(?!api/|storage/){_REPOSITORY}/resolve/(?P<revision>[^/]+)/(?P<file>.+)",
    "storage.get": rf"storage/{_REPOSITORY}/(?P<file>.+)",
}
"""Name of each method -> its path below the hub's address."""
_UNKNOWN: Final = "unknown"
_PAGE: Final = 1000
"""Entries on one page of a tree."""
_DATE: Final = "2026-11-21T00:00:00.000Z"
_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRequest:
    """A request. `target`: quoted path below the hub's address, with the query. Header names are not case-sensitive."""

    method: str
    address: str
    """The hub's own address, such as http://127.0.0.1:8080/hub."""
    target: str
    headers: Mapping[str, str]

    @property
    def path(self) -> str:
        """Return the path without quotes."""
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> Mapping[str, str]:
        """Return the last value of each parameter."""
        return {name: values[-1] for name, values in parse_qs(urlsplit(self.target).query).items()}

    @property
    def token(self) -> str:
        """Return the caller's token. Empty without one."""
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""

    def matched(self) -> tuple[str, Mapping[str, str]]:
        """Return the name of the API's method, or `unknown`, and the parts of the path."""
        if self.method in {"GET", "HEAD"}:
            for name, pattern in _METHODS.items():
                if found := re.fullmatch(pattern, urlsplit(self.target).path):
                    return name, {key: unquote(value) for key, value in found.groupdict(default="").items()}
        return _UNKNOWN, {}


@dataclass(frozen=True, slots=True)
class HubAnswer:
    """A response."""

    status: int = HTTPStatus.OK
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class HubError(Exception):
    """Error of the hub: HTTP status, value of X-Error-Code, message."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message

    def answer(self) -> HubAnswer:
        """Return the response."""
        headers = {"X-Error-Message": self.message} | ({"X-Error-Code": self.code} if self.code else {})
        return _json({"error": self.message}, status=self.status, headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HubRevision:
    """A repository at a revision that exists, and its files."""

    repository: Repository
    commit: str
    files: Mapping[str, HubFile]


@dataclass(kw_only=True)
class HubApi:
    """The hub's responses. The fields are those of localcloud.world.scenario.Hub."""

    repositories: Mapping[str, State] = field(default_factory=dict[str, State])
    readable: Sequence[str] = ()
    expired_tokens: Sequence[str] = ()

    def repository(self, name: str) -> Repository:
        """Return a repository, which may be absent."""
        return find(name, self.repositories)

    def files(self, repository: Repository) -> Mapping[str, HubFile]:
        """Return the files of a repository by name."""
        return files_of(repository)

    def answer(self, request: HubRequest) -> HubAnswer:
        """Return the response to a request."""
        name, parts = request.matched()
        answers = {
            "whoami": self._whoami,
            "models.get": self._model,
            "models.authCheck": self._auth_check,
            "models.tree": self._tree,
            "files.resolve": self._resolve,
            "storage.get": self._storage,
        }
        try:
            self._check_token(request.token)
            if name == _UNKNOWN:
                message = f"The local hub does not support {request.method} /hub/{request.path}"
                raise HubError(HTTPStatus.NOT_FOUND, "", message)  # noqa: TRY301 - one form for all errors
            return answers[name](request, parts)
        except HubError as error:
            return error.answer()

    def _check_token(self, token: str) -> None:
        """Reject an invalid token for any resource, including public repositories (huggingface/huggingface_hub#1124)."""
        if token and (not token.startswith("hf_") or token in self.expired_tokens):
            raise HubError(HTTPStatus.UNAUTHORIZED, "", "Invalid credentials in Authorization header")

    def _visible(self, request: HubRequest, parts: Mapping[str, str]) -> Repository:
        """Return the repository. Raise HubError if the caller must not learn that it exists.

        Without a token the hub answers 401 for missing and private repositories; with one, 404 (huggingface_hub, utils/_http.py).
        """
        found = self.repository(f"{parts['owner']}/{parts['name']}")
        if found.state == "absent" or (found.state == "private" and not self._may_read(request, found)):
            if not request.token:
                raise HubError(HTTPStatus.UNAUTHORIZED, "", "Invalid username or password.")
            raise HubError(HTTPStatus.NOT_FOUND, "RepoNotFound", "Repository not found")
        return found

    def _may_read(self, request: HubRequest, repository: Repository) -> bool:
        return bool(request.token) and repository.id in self.readable

    def _readable(self, request: HubRequest, parts: Mapping[str, str]) -> Repository:
        """Return the repository. Raise HubError if the caller has no access to its files. The file list of a gated repository is public."""
        found = self._visible(request, parts)
        if found.state != "gated" or self._may_read(request, found):
            return found
        message = f"Access to model {found.id} is restricted"
        if request.token:
            message += (
                f" and you are not in the authorized list. Visit https://huggingface.co/{found.id} to ask for access."
            )
            raise HubError(HTTPStatus.FORBIDDEN, "GatedRepo", message)
        message += ". You must have access to it and be authenticated to access it. Please log in."
        raise HubError(HTTPStatus.UNAUTHORIZED, "GatedRepo", message)

    def _at_revision(self, repository: Repository, revision: str) -> _HubRevision:
        """Return the repository at a revision. Raise HubError if the revision does not exist. Revisions are `main` and its commits."""
        if revision not in {"", "main", "refs/heads/main", repository.head, *repository.older}:
            raise HubError(HTTPStatus.NOT_FOUND, "RevisionNotFound", f"Invalid rev id: {revision}")
        commit = revision if revision in repository.older else repository.head
        return _HubRevision(repository=repository, commit=commit, files=self.files(repository))

    def _whoami(self, request: HubRequest, _parts: Mapping[str, str]) -> HubAnswer:
        """Return the account of the token."""
        if not request.token:
            raise HubError(HTTPStatus.UNAUTHORIZED, "", "Invalid username or password.")
        account: JsonObject = {"type": "user", "id": "0" * 24, "name": "local", "fullname": "Local Cloud", "orgs": []}
        token = {"type": "access_token", "accessToken": {"displayName": "local", "role": "read"}}
        return _json({**account, "auth": token})

    def _model(self, request: HubRequest, parts: Mapping[str, str]) -> HubAnswer:
        """Return the description of a repository and its files; `blobs` adds their sizes."""
        found = self._at_revision(self._visible(request, parts), parts["revision"])
        repository, files = found.repository, found.files.values()
        detailed = request.query.get("blobs", "").lower() == "true"
        return _json(
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

    def _auth_check(self, request: HubRequest, parts: Mapping[str, str]) -> HubAnswer:
        """Answer 200 if the caller can read the files."""
        self._readable(request, parts)
        return _json({})

    def _tree(self, request: HubRequest, parts: Mapping[str, str]) -> HubAnswer:
        """Return the entries below a folder, page by page. All files are in the root."""
        found = self._at_revision(self._visible(request, parts), parts["revision"])
        if parts["below"].strip("/"):
            raise HubError(HTTPStatus.NOT_FOUND, "EntryNotFound", "Entry not found")
        entries = [_entry(file) for file in found.files.values()]
        size = min(int(request.query.get("limit", _PAGE)), _PAGE)
        start = int(request.query.get("cursor", 0))
        headers = {}
        if start + size < len(entries):
            following = urlencode({**request.query, "cursor": start + size})
            headers = {"Link": f'<{request.address}/{urlsplit(request.target).path}?{following}>; rel="next"'}
        return _json(entries[start : start + size], headers=headers)

    def _resolve(self, request: HubRequest, parts: Mapping[str, str]) -> HubAnswer:
        """Return a file. A large file is a redirect to the hub's storage, on another host so clients keep their token."""
        found = self._at_revision(self._readable(request, parts), parts["revision"])
        file = found.files.get(parts["file"])
        if file is None:
            raise HubError(HTTPStatus.NOT_FOUND, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": found.commit, **_real_size(file)}
        if not file.is_lfs:
            return content(request, file.content, {**headers, "ETag": f'"{file.git_id}"'})
        own = urlsplit(request.address)
        path = f"{quote(found.repository.id)}/{quote(file.name)}"
        linked = {"X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(len(file.content))}
        location = f"http://localhost:{own.port}{own.path}/storage/{path}?signed={file.sha256[:16]}"
        return HubAnswer(status=HTTPStatus.FOUND, headers={**headers, **linked, "Location": location})

    def _storage(self, request: HubRequest, parts: Mapping[str, str]) -> HubAnswer:
        """Return a large file to any caller with its signed address."""
        repository = self.repository(f"{parts['owner']}/{parts['name']}")
        file = self.files(repository).get(parts["file"])
        if file is None or request.query.get("signed") != file.sha256[:16]:
            raise HubError(HTTPStatus.FORBIDDEN, "", "AccessDenied")
        return content(request, file.content, {"ETag": f'"{file.sha256}"', **_real_size(file)})


def _json(value: object, *, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> HubAnswer:
    kind = {"Content-Type": "application/json; charset=utf-8"}
    return HubAnswer(status=status, body=json.dumps(value).encode(), headers={**kind, **(headers or {})})


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


def content(request: HubRequest, content: bytes, headers: Mapping[str, str]) -> HubAnswer:
    """Return all bytes, or the requested range."""
    headers = {"Accept-Ranges": "bytes", **headers}
    wanted = _RANGE.fullmatch(request.headers.get("Range", ""))
    if wanted is None:
        return HubAnswer(body=content, headers=headers)
    first = int(wanted[1])
    last = min(int(wanted[2] or len(content)), len(content) - 1)
    if first > last:
        return HubAnswer(
            status=HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers={"Content-Range": f"bytes */{len(content)}"}
        )
    part = {**headers, "Content-Range": f"bytes {first}-{last}/{len(content)}"}
    return HubAnswer(status=HTTPStatus.PARTIAL_CONTENT, body=content[first : last + 1], headers=part)
