"""The hub, as far as the agent meets it: the list of a repository, its files, and a storage on another host for the large ones."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

COMMIT = "5" * 40
LARGE = (".safetensors", "tokenizer.json")

Answer = tuple[int, bytes, dict[str, str]]


def git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def stored_name(name: str, data: bytes) -> str:
    """The name of a file's content in the hub's cache."""
    return hashlib.sha256(data).hexdigest() if name.endswith(LARGE) else git_id(data)


@dataclass
class Hub:
    """Repositories with their files. `asked` has each request: host, path, Authorization, Range."""

    models: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])
    asked: list[tuple[str, str, str, str]] = field(default_factory=list[tuple[str, str, str, str]])
    meets: "Callable[[str], Answer | None]" = lambda path: None
    """Called with the path of each request. An answer replaces the hub's own."""
    sent: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Contents that are sent instead of those that the list has, by name."""

    def answer(self, host: str, path: str, headers: "Mapping[str, str]") -> Answer:
        """The answer to GET `path`, which is below /hub."""
        url = urlsplit(path)
        found = unquote(url.path.removeprefix("/hub/"))
        self.asked.append((host, found, headers.get("Authorization") or "", headers.get("Range") or ""))
        met = self.meets(found)
        if met is not None:
            return met
        if found.startswith("api/models/"):
            model, _, revision = found.removeprefix("api/models/").partition("/revision/")
            return self._listed(model, revision)
        kept, _, rest = found.removeprefix("storage/").partition("/resolve/")
        if kept not in self.models or rest.partition("/")[2] not in self.models[kept]:
            return 404, b"", {}
        name = rest.partition("/")[2]
        data = self.sent.get(name, self.models[kept][name])
        if name.endswith(LARGE) and not found.startswith("storage/"):
            port = host.rpartition(":")[2]
            return 302, b"", {"Location": f"http://localhost:{port}/hub/storage/{found}?Signature=signed-canary"}
        if not headers.get("Range"):
            return 200, data, {}
        first, last = (headers["Range"]).removeprefix("bytes=").split("-")
        return 206, data[int(first) : int(last) + 1], {}

    def _listed(self, model: str, revision: str) -> Answer:
        if model not in self.models:
            return 404, b"", {}
        if revision not in {"main", COMMIT}:
            return 404, b"", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": f"Invalid rev id: {revision}"}
        files = [
            {
                "rfilename": name,
                "size": len(data),
                "blobId": git_id(data),
                **({"lfs": {"sha256": stored_name(name, data), "size": len(data)}} if name.endswith(LARGE) else {}),
            }
            for name, data in self.models[model].items()
        ]
        return 200, json.dumps({"sha": COMMIT, "siblings": files}).encode(), {}
