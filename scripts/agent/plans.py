"""Plans: what `preview` saw, bound to the program, the settings, the backend, the state and the image. `up` runs a plan once, or refuses it."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from scripts.agent.purse import awake_or_not_s
from scripts.errors import CommandRefusedError
from scripts.pulumi import engine
from scripts.pulumi.deployment import as_mapping, as_sequence
from scripts.pulumi.settings import stack_settings
from stacks.settings import Settings

ROOMS: Final = ("components", "contracts", "planning", "provider", "stacks", "vm_agent")
"""Folders whose files decide what the program declares, beside `__main__.py`."""
FILES: Final = ("__main__.py", "Pulumi.yaml", "requirements.txt")
VALID_S: Final = 3600.0
_SKIPPED: Final = frozenset({"__pycache__", ".pytest_cache", ".ruff_cache"})
_DIGITS: Final = 16
_LARGE_BYTES: Final = 64 * 1024**2
"""Of a larger file, such as weights beside a config.json, size and time stand in for the content."""
_MOST_PLANS: Final = 50
_SHOWN_PLANS: Final = 5
_MEANINGS: Final = {
    "program": "the program's files changed",
    "settings": "the stack's settings, or a file that they name, changed",
    "backend": "another backend or account is logged in",
    "state": "the stack was deployed or refreshed",
    "image": "the image changed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanIdentity:
    """What a plan holds for: hashes (SHA-256, hex)."""

    stack: str
    program: str
    settings: str
    """Of the stack's file, and of what it names: a folder with a Dockerfile, a config.json, prices."""
    backend: str
    """Where the state is kept, and whose it is: two backends can have a stack of one name."""
    state: str
    image: str
    """Digest of the image."""

    def changed_since(self, other: "PlanIdentity") -> Sequence[str]:
        """Return what is different now, each as a clause."""
        before, now = asdict(other), asdict(self)
        return [meaning for name, meaning in _MEANINGS.items() if before[name] != now[name]]


def identity_of(stack: str) -> PlanIdentity:
    """Return what a plan of the stack would hold for now.

    Raises CommandRefusedError if the stack or its settings do not exist, and ScriptError if the state cannot be read.
    """
    folder = engine.project_folder()
    settings = stack_settings(stack)
    state = engine.query(["stack", "export", "--stack", stack])
    return PlanIdentity(
        stack=stack,
        program=_hash_of(folder, _files(folder)),
        settings=_hash_of(folder, [folder / f"Pulumi.{stack}.yaml", *_named(folder, settings)]),
        backend=_sha256(_backend().encode()),
        state=_sha256(state.encode()),
        image=settings.image.digest,
    )


def _backend() -> str:
    return os.environ.get("PULUMI_BACKEND_URL") or engine.query(["whoami", "--verbose", "--json"])


def _hash_of(folder: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        found = path.stat()
        large = found.st_size > _LARGE_BYTES
        content = f"{found.st_size} {found.st_mtime_ns}" if large else _sha256(path.read_bytes())
        digest.update(os.path.relpath(path, folder).encode() + b"\0" + content.encode())
    return digest.hexdigest()


def _named(folder: Path, settings: Settings) -> Iterator[Path]:
    """Yield the files that the settings name."""
    named = (settings.image.build_context, settings.architecture_file, settings.drafter_file, settings.prices)
    for place in (folder / str(name) for name in named if name):
        yield from [place] if place.is_file() else _below(place)


def _files(folder: Path) -> Iterator[Path]:
    yield from (folder / name for name in FILES if (folder / name).is_file())
    for room in ROOMS:
        yield from _below(folder / room)


def _below(folder: Path) -> Sequence[Path]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not _SKIPPED & set(path.relative_to(folder).parts))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPlan:
    """A plan that `up` can run."""

    identity: PlanIdentity
    steps: Sequence[str]
    """A hash of each step of the preview: operation, resource, reasons and inputs."""
    refresh: bool
    """Whether the preview compared with Google first."""
    usd_per_hour: float
    """The most that the stack costs an hour afterwards: all instances that it may have."""
    made_s: float
    used: bool = False

    @property
    def plan_id(self) -> str:
        """A short name of what it holds for and what it would do: two previews with different steps are two plans."""
        content = [asdict(self.identity), list(self.steps), self.refresh, self.usd_per_hour]
        return f"plan-{_sha256(json.dumps(content, sort_keys=True).encode())[:_DIGITS]}"


def step_hashes(preview: Mapping[str, object]) -> Sequence[str]:
    """Return a hash of each step of the engine's preview in JSON, sorted."""
    found: list[str] = []
    for raw in as_sequence(preview.get("steps")):
        step = as_mapping(raw)
        kept = {key: step.get(key) for key in ("op", "urn", "diffReasons", "replaceReasons")}
        inputs = as_mapping(step.get("newState")).get("inputs")
        found.append(_sha256(json.dumps([kept, inputs], sort_keys=True, default=str).encode()))
    return tuple(sorted(found))  # resources that do not depend on each other come in any order


@dataclass(slots=True, kw_only=True)
class PlanShelf:
    """The newest plans of this server."""

    clock: Callable[[], float] = awake_or_not_s
    _plans: dict[str, KeptPlan] = field(default_factory=dict[str, KeptPlan])

    def keep(self, plan: KeptPlan) -> str:
        """Keep a plan and return its id. The same id again replaces it."""
        self._plans.pop(plan.plan_id, None)
        self._plans[plan.plan_id] = plan
        for oldest in list(self._plans)[:-_MOST_PLANS]:
            del self._plans[oldest]
        return plan.plan_id

    def check(self, plan_id: str, now: PlanIdentity) -> KeptPlan:
        """Return a plan that may be run, if `now` is what holds at this moment.

        Raises CommandRefusedError if it is unknown, used, too old, or does not hold any more.
        """
        plan = self.find(plan_id)
        if plan.used:
            raise CommandRefusedError(f"{plan_id} has been run already; make a new one with preview.")
        age_s = self.clock() - plan.made_s
        if age_s > VALID_S:
            raise CommandRefusedError(f"{plan_id} is {age_s / 60:.0f} min old; make a new one with preview.")
        changed = now.changed_since(plan.identity)
        if changed:
            raise CommandRefusedError(
                f"{plan_id} is stale: {' and '.join(changed)} after it was made. Make a new one with preview, and read it."
            )
        return plan

    def take(self, plan_id: str, now: PlanIdentity) -> KeptPlan:
        """Check a plan, and mark it as used."""
        plan = self.check(plan_id, now)
        self._plans[plan_id] = replace(plan, used=True)
        return plan

    def find(self, plan_id: str) -> KeptPlan:
        """Return a plan. Raises CommandRefusedError if this server made none of this id."""
        plan = self._plans.get(plan_id)
        if plan is None:
            known = ", ".join(list(self._plans)[-_SHOWN_PLANS:]) or "none"
            raise CommandRefusedError(
                f"There is no plan {plan_id[:60]!r}; the newest of this server are: {known}. Make one with preview."
            )
        return plan
