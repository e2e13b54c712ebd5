"""The local cloud's hub with a few small models, in the process of a test: what it is asked, and what it answers instead."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from localcloud.hub.api import HubAnswer, HubApi, HubRequest, content
from localcloud.hub.content import HubFile
from localcloud.hub.repositories import Repository

COMMIT = "5" * 40


def hub_file(name: str, data: bytes) -> HubFile:
    return HubFile(name=name, content=data, real_bytes=0, is_stated=False)


def stored_name(name: str, data: bytes) -> str:
    """The name of a file's content in the hub's cache."""
    file = hub_file(name, data)
    return file.sha256 if file.is_lfs else file.git_id


@dataclass(kw_only=True)
class SmallHub(HubApi):
    """Models with their files. `asked` has each request: host, path, Authorization, Range."""

    models: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])
    asked: list[tuple[str, str, str, str]] = field(default_factory=list[tuple[str, str, str, str]])
    meets: "Callable[[str], tuple[int, bytes, dict[str, str]] | None]" = lambda path: None
    """Called with the path of each request. An answer replaces the hub's own."""
    sent: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Contents that are sent instead of those that the list has, by name."""

    def repository(self, name: str) -> Repository:
        return Repository(id=name, state="public" if name in self.models else "absent", source="a test", commit=COMMIT)

    def files(self, repository: Repository) -> Mapping[str, HubFile]:
        return {name: hub_file(name, data) for name, data in self.models.get(repository.id, {}).items()}

    def answer(self, request: HubRequest) -> HubAnswer:
        host, name = request.headers["Host"], request.path.rpartition("/")[2]
        authorization, span = (request.headers.get(key) or "" for key in ("Authorization", "Range"))
        self.asked.append((host, request.path, authorization, span))
        met = self.meets(request.path)
        if met is not None:
            return HubAnswer(*met)
        answer = HubAnswer(404) if not self.models else super().answer(request)
        return content(request, self.sent[name], {}) if answer.body and name in self.sent else answer
