"""What a stack's state says, as far as it can be read: resources, creations that never ended, projects, buckets, protection.

A state that is lost, broken or out of reach is no reason to stop: the search by labels needs none.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, cast
from urllib.parse import unquote, urlsplit

from contracts.labels import PRODUCT
from scripts.errors import CommandRefusedError, ScriptError
from scripts.pulumi import engine, locks

Status = Literal["read", "missing", "unreadable", "no engine"]
Item = Mapping[str, object]

_HIDDEN: Final = ("pulumi:pulumi:", "pulumi:providers:")
_PROJECT: Final = re.compile(r'"project"\s*:\s*"([a-z][a-z0-9.:-]{4,}[a-z0-9])"')


@dataclass(frozen=True, slots=True, kw_only=True)
class StackState:
    """A stack's state."""

    stack: str
    status: Status
    detail: str = ""
    """Why it could not be read, a sentence."""
    resources: Sequence[Item] = ()
    """Resources without the stack itself and its providers."""
    pending: Sequence[Item] = ()
    """Resources whose creation began and was never recorded as ended: `type`, `urn` and `inputs`."""
    written: str = ""
    """When the state was written (RFC 3339)."""
    projects: Sequence[str] = ()
    """Google Cloud projects that it names, those of the outputs first."""
    raw: Item = field(default_factory=dict[str, object])
    """What `pulumi stack export` printed."""

    @property
    def zones(self) -> Sequence[str]:
        """Zones that it names."""
        named = [zone for inputs in self._inputs() for zone in (inputs.get("zone"), *_texts(inputs.get("zones")))]
        return tuple(dict.fromkeys(str(zone) for zone in named if zone))

    @property
    def buckets(self) -> Sequence[str]:
        """Buckets on which it has grants."""
        items = (*self.resources, *self.pending)
        grants = [item for item in items if str(item.get("type")).startswith("gcp:storage/bucketIAMMember:")]
        return tuple(dict.fromkeys(str(_inputs(item).get("bucket") or "").removeprefix("b/") for item in grants))

    def _inputs(self) -> Iterator[Item]:
        for item in (*self.resources, *self.pending):
            yield _inputs(item)


def read(stack: str) -> StackState:
    """Return the state as the engine exports it, else as the file of a local backend shows it."""
    try:
        engine.pulumi()
    except CommandRefusedError as error:
        return _from_file(stack, "no engine", str(error))
    try:
        text = engine.query(["stack", "export", "--stack", stack])
    except CommandRefusedError as error:
        return StackState(stack=stack, status="missing", detail=str(error))
    except ScriptError as error:
        return _from_file(stack, "unreadable", str(error))
    return parse(stack, json.loads(text))


def parse(stack: str, exported: Item) -> StackState:
    """Return the state in a document of `pulumi stack export`."""
    deployment = cast("Item", exported.get("deployment") or {})
    items = cast("Sequence[Item]", deployment.get("resources") or ())
    operations = cast("Sequence[Item]", deployment.get("pending_operations") or ())
    resources = tuple(item for item in items if not str(item.get("type")).startswith(_HIDDEN))
    pending = tuple(cast("Item", item.get("resource") or {}) for item in operations if item.get("type") == "creating")
    return StackState(
        stack=stack,
        status="read",
        resources=resources,
        pending=pending,
        written=str(cast("Item", deployment.get("manifest") or {}).get("time") or ""),
        projects=_projects([*items, *pending]),
        raw=exported,
    )


def backend_folder() -> Path | None:
    """Return the folder `.pulumi` of a local backend: of PULUMI_BACKEND_URL, else of the engine's login; None for other backends."""
    url = os.environ.get("PULUMI_BACKEND_URL", "")
    if not url:
        try:
            return locks.backend_folder()
        except ScriptError:
            return None
    parts = urlsplit(url)
    if parts.scheme != "file":
        return None
    return Path(unquote(f"{parts.netloc}{parts.path}")).expanduser() / ".pulumi"


def file_text(stack: str) -> str:
    """Return the text of a local backend's state, whatever is in it; empty without one."""
    folder = backend_folder()
    try:
        path = folder / "stacks" / PRODUCT / f"{stack}.json" if folder else None
        return path.read_text(encoding="utf-8", errors="replace") if path else ""
    except OSError:
        return ""


def _from_file(stack: str, status: Status, detail: str) -> StackState:
    """Return what the file of a local backend still says; of a broken one, at least the projects."""
    text = file_text(stack)
    try:
        checkpoint = cast("Item", cast("Item", json.loads(text)).get("checkpoint") or {})
        found = parse(stack, {"deployment": checkpoint.get("latest")})
    except (ValueError, TypeError, AttributeError):
        projects = tuple(dict.fromkeys(_PROJECT.findall(text)))
        return StackState(stack=stack, status=status, detail=detail, projects=projects)
    return StackState(
        stack=stack,
        status=status,
        detail=detail,
        resources=found.resources,
        pending=found.pending,
        written=found.written,
        projects=found.projects,
    )


def _projects(items: Sequence[Item]) -> Sequence[str]:
    outputs = [item for item in items if item.get("type") == "pulumi:pulumi:Stack"]
    named = [cast("Item", item.get("outputs") or {}).get("project") for item in outputs]
    named += [_inputs(item).get("project") for item in items]
    return tuple(dict.fromkeys(name for name in named if isinstance(name, str) and name))


def _inputs(item: Item) -> Item:
    return cast("Item", item.get("inputs") or {})


def _texts(value: object) -> Sequence[str]:
    return [str(item) for item in cast("Sequence[object]", value)] if isinstance(value, list) else []
