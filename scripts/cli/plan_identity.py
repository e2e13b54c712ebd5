"""Validity of a previewed plan. A plan whose identity has changed is not run."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, cast
from urllib.parse import urlsplit

from contracts.fields import as_mapping
from engine import runner
from engine.deployment import parse_deployment
from engine.steps import PlannedStep
from scripts.cli.frozen import FrozenProject

_MEANINGS: Final = {
    "stack": "the plan is for another stack",
    "project": "another Google Cloud project is set",
    "program": "the program's files changed",
    "settings": "the stack's settings, or a file they reference, changed",
    "packages": "the installed packages changed",
    "backend": "the backend or account changed",
    "state": "the stack was deployed or refreshed",
    "image": "the image changed",
}
_READABLE: Final = ("stack", "project", "backend", "image")
"""Fields that are not hashes. A message shows both values."""
_ID_DIGITS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanIdentity:
    """Validity of a plan. Fields without a description are SHA-256 hashes in hex."""

    stack: str
    project: str
    """The Google Cloud project."""
    program: str
    settings: str
    """Hash of the stack's file and of the files it references (a folder with a Dockerfile, a config.json, prices)."""
    packages: str
    """Hash of the names and versions of the installed packages."""
    backend: str
    """Location and owner of the state, without credentials: two backends can have a stack of the same name."""
    state: str
    """Empty if nothing is deployed."""
    image: str
    """Digest of the image."""

    def changed_since(self, other: "PlanIdentity") -> Sequence[str]:
        """Return the differences, each as a clause."""
        before, now = asdict(other), asdict(self)
        return [
            f"{meaning} ({before[name]} → {now[name]})" if name in _READABLE else meaning
            for name, meaning in _MEANINGS.items()
            if before[name] != now[name]
        ]


def plan_id_of(identity: PlanIdentity, steps: Sequence[PlannedStep], *, refresh: bool, usd_per_hour: float) -> str:
    """Return a short id for the plan's validity and steps: two previews with different steps are two plans."""
    content = [asdict(identity), [step.digest for step in steps], refresh, usd_per_hour]
    return f"plan-{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:_ID_DIGITS]}"


def identity_of(frozen: FrozenProject) -> PlanIdentity:
    """Return the current identity of a plan of this copy.

    Raises CommandRefusedError if the stack does not exist, and ScriptError if the state cannot be read.
    """
    return PlanIdentity(
        stack=frozen.stack,
        project=frozen.settings.project,
        program=frozen.program_hash,
        settings=frozen.settings_hash,
        packages=frozen.packages_hash,
        backend=_backend(),
        state=_state(frozen.stack),
        image=frozen.settings.image.digest,
    )


def _state(stack: str) -> str:
    text = runner.query(["stack", "export", "--stack", stack])
    deployment = parse_deployment(stack, text)
    # A run that was refused leaves an empty stack.
    if not deployment.resources and not deployment.pending:
        return ""
    return hashlib.sha256(text.encode()).hexdigest()


def _backend() -> str:
    """Return the backend's address without user, password and query, and the account if the engine reports one."""
    url, account = os.environ.get("PULUMI_BACKEND_URL", ""), ""
    if not url:
        said = as_mapping(cast("object", json.loads(runner.query(["whoami", "--verbose", "--json"]))))
        url, account = str(said.get("url") or ""), str(said.get("user") or "")
    parts = urlsplit(url)
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return f"{place} ({account})" if account else place
