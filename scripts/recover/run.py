"""The rounds of a recovery: look up candidates, import owned resources into the state, refresh, and run the program again.

Each round resolves more values. For example, a grant can be looked up once its account is in the state. Every write replaces the whole state
atomically, so an interruption leaves a state that the engine accepts and that the next run continues from.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from cloud.google_api import GoogleApi, enable_command
from contracts.errors import CommandRefusedError, ScriptError
from contracts.labels import PRODUCT, Ownership
from engine import runner
from engine.backend import state_folder
from engine.deployment import (
    PendingOperation,
    ResourceState,
    StackDeployment,
    StateUnreadableError,
    back_up,
    parse_checkpoint,
    read_deployment,
    write_deployment,
)
from engine.locks import end_dead_locks, past_dead_locks, stack_locks
from engine.previewed import declared
from engine.secrets_provider import provider_options
from engine.state_edit import empty, without_pending
from scripts.recover.lookup import KINDS, REPEATABLE, Found, Owner, Search, lookup
from scripts.recover.state_edit import Candidate, adopted, candidates

_MAX_ROUNDS: Final = 10
_SETTLE: Final = "The resources are in the state but could not be refreshed. Run recover again."

Report = Callable[[str], None]
Confirm = Callable[[Sequence["Examined"]], None]
"""Prompts for the resources to import. Raises CommandRefusedError unless the answer is yes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """One candidate and its lookup result. `found` is None if it could not be looked up."""

    candidate: Candidate
    found: Found | None

    @property
    def owner(self) -> Owner | None:
        """Its owner; None if it could not be looked up."""
        return self.found.owner if self.found else None

    @property
    def noun(self) -> str:
        """Human-readable kind of the resource."""
        type_ = self.candidate.resource.type
        return KINDS[type_].noun if type_ in KINDS else type_

    @property
    def name(self) -> str:
        """Name in Google Cloud, or the name in the program."""
        return self.found.name if self.found else self.candidate.resource.name

    def to_json(self) -> dict[str, object]:
        """Return the finding as `--json` prints it."""
        resource = self.candidate.resource
        return {
            "kind": self.noun,
            "name": self.name,
            "urn": resource.urn,
            "interrupted": self.candidate.pending,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Result of a recovery. `cleared`: interrupted operations of resources that do not exist or are in the state already."""

    stack: str
    imported: tuple[Examined, ...] = ()
    cleared: tuple[str, ...] = ()
    not_owned: tuple[Examined, ...] = ()
    backups: tuple[Path, ...] = ()
    state_was: str = "whole"
    open: tuple[str, ...] = field(default=())
    """Candidates that could not be checked, one sentence each."""
    unknown: tuple[Examined, ...] = ()
    """Declared resources whose API is off."""

    @property
    def clean(self) -> bool:
        """True if `pulumi up` can continue."""
        return not self.not_owned and not self.open


@dataclass(slots=True, kw_only=True)
class _Rounds:
    """The state of a recovery between its rounds."""

    stack: str
    search: Search
    report: Report
    confirm: Confirm
    recovery: Recovery
    started: tuple[PendingOperation, ...] = ()
    """Pending operations in the engine's copy of an earlier state. An import of the state drops them."""
    confirmed: bool = False

    def findings(self, deployment: StackDeployment, program: Mapping[str, ResourceState]) -> tuple[Examined, ...]:
        """Look up all candidates."""
        deployment = deployment.changed(pending=(*deployment.pending, *self.started))
        return tuple(
            Examined(
                candidate=each,
                found=lookup(self.search, each.resource.type, each.resource.urn, each.resource.inputs),
            )
            for each in candidates(deployment, program.values())
        )

    def choose(self, findings: Sequence[Examined]) -> Sequence[Examined]:
        """Return the resources to import in this round: complete, and not dependent on a resource of a later round."""
        owned = {each.candidate.resource.urn: each for each in findings if each.owner is Owner.OWNED}
        chosen = {urn: each for urn, each in owned.items() if each.candidate.complete}
        while early := [
            urn
            for urn, each in chosen.items()
            if any(needed in owned and needed not in chosen for needed in each.candidate.resource.dependencies)
        ]:
            for urn in early:
                del chosen[urn]
        return list((chosen or owned).values())

    def import_owned(
        self, deployment: StackDeployment, findings: Sequence[Examined], program: Mapping[str, ResourceState]
    ) -> Sequence[Examined]:
        """Import owned resources into the state and drop the pending operations. Return the imported resources.

        Raises ScriptError if the API of an interrupted creation is off, because its operation is the only record of the resource.
        """
        hidden = [each for each in findings if each.owner is Owner.UNKNOWN and each.candidate.pending]
        if hidden:
            raise ScriptError(_hidden(hidden))
        chosen = self.choose(findings)
        changed, dropped = without_pending(deployment)
        dropped, self.started = (*dropped, *self.started), ()
        if not chosen and not dropped:
            return ()
        if chosen and not self.confirmed:
            self.confirm(chosen)
            self.confirmed = True
        for each in chosen:
            if each.found is not None:
                changed = adopted(changed, each.candidate.resource, each.found, program)
        self._write(deployment, changed)
        imported = {each.candidate.resource.urn for each in chosen}
        cleared = tuple(f"{one.kind} {one.resource.urn}" for one in dropped if one.resource.urn not in imported)
        for each in chosen:
            self.report(f"imported {each.noun} {each.name}")
        for text in cleared:
            self.report(f"cleared interrupted operation: {text}")
        self.recovery = replace(
            self.recovery,
            imported=(*self.recovery.imported, *chosen),
            cleared=(*self.recovery.cleared, *cleared),
            open=(*self.recovery.open, *_unknown_kinds(dropped)),
        )
        return chosen

    def _write(self, before: StackDeployment, after: StackDeployment) -> None:
        """Write the state, after a backup. Raises ScriptError if it changed since it was read."""
        if read_deployment(self.stack).text() != before.text():
            raise ScriptError(f"The state of stack {self.stack} changed during the recovery. Run recover again.")
        path = back_up(self.stack, before.text())
        self.report(f"backed up the previous state to {path}")
        past_dead_locks(self.stack, lambda: write_deployment(self.stack, after), report=self.report)
        self.recovery = replace(self.recovery, backups=(*self.recovery.backups, path))


def look(stack: str, api: GoogleApi) -> tuple[Examined, ...]:
    """Return the findings of a first round without a change. Raises CommandRefusedError if the stack has no readable state."""
    try:
        deployment = read_deployment(stack)
    except ScriptError as error:
        if not _is_lost(stack, error):
            raise
        raise CommandRefusedError(
            f"Stack {stack} has no readable state, so --dry-run cannot compare it with the cloud. Run recover without --dry-run to start a new state."
        ) from None
    program = declared(stack)
    rounds = _rounds(stack, api, print, lambda _: None, Recovery(stack=stack))
    return rounds.findings(deployment, program)


def recover(stack: str, api: GoogleApi, *, report: Report, confirm: Confirm) -> Recovery:
    """Import owned resources, clear operations without a resource, and refresh. Raises CommandRefusedError and ScriptError."""
    held = stack_locks(stack)
    if held:
        end_dead_locks(stack, held, report=report)
    recovery, started = _readable(stack, report, confirm)
    rounds = _rounds(stack, api, report, confirm, recovery)
    rounds.started = started
    last: Sequence[Examined] = ()
    for _ in range(_MAX_ROUNDS):
        program = _declared(rounds)
        deployment = read_deployment(stack)
        last = rounds.findings(deployment, program)
        imported = rounds.import_owned(deployment, last, program)
        if imported or rounds.recovery.cleared:
            _refresh(stack, report)
        if not imported:
            break
    if not rounds.recovery.imported and not rounds.recovery.cleared:
        _refresh(
            stack, report
        )  # an earlier recovery may have been interrupted before it refreshed the imported resources
    return replace(
        rounds.recovery,
        not_owned=tuple(each for each in last if each.owner is Owner.NOT_OWNED),
        unknown=tuple(each for each in last if each.owner is Owner.UNKNOWN),
    )


def _hidden(interrupted: Sequence[Examined]) -> str:
    """Return the error message for interrupted creations whose APIs are off."""
    names = ", ".join(f"{each.noun} {each.name}" for each in interrupted)
    apis = sorted({each.found.api_off for each in interrupted if each.found})
    projects = dict.fromkeys(str(each.candidate.resource.inputs.get("project") or "") for each in interrupted)
    command = enable_command(next((project for project in projects if project), "PROJECT"), apis)
    return (
        f"The creation of {names} was interrupted, and it is unknown whether it exists because its API is off. Nothing was changed. "
        f"Run `{command}`, wait a few minutes, then run recover again."
    )


def _rounds(stack: str, api: GoogleApi, report: Report, confirm: Confirm, recovery: Recovery) -> _Rounds:
    owner = Ownership(project=PRODUCT, stack=stack)
    return _Rounds(stack=stack, search=Search(api=api, owner=owner), report=report, confirm=confirm, recovery=recovery)


def _unknown_kinds(dropped: Sequence[PendingOperation]) -> tuple[str, ...]:
    """Return one sentence per interrupted creation of a type that recover cannot look up."""
    strange = [one.resource for one in dropped if one.kind == "creating" and one.resource.custom]
    return tuple(
        f"The creation of {each.name} ({each.type}) was interrupted, and recover cannot check this type. Check it in the console."
        for each in strange
        if each.type not in KINDS and each.type not in REPEATABLE
    )


def _declared(rounds: _Rounds) -> Mapping[str, ResourceState]:
    """Return the resources that the program declares. If its preview fails, only interrupted operations are checked."""
    try:
        return declared(rounds.stack)
    except StateUnreadableError:
        raise  # without the passphrase nothing can be imported, because a refresh fails too
    except ScriptError as error:
        text = f"{error} Only interrupted operations were checked."
        rounds.report(text)
        rounds.recovery = replace(rounds.recovery, open=(text,))
        return {}


def _refresh(stack: str, report: Report) -> None:
    past_dead_locks(stack, lambda: runner.change(stack, "refresh", after_failure=_SETTLE), report=report)


def _is_lost(stack: str, error: ScriptError) -> bool:
    """Return whether the state is missing or truncated while the stack has a settings file."""
    if isinstance(error, StateUnreadableError):
        return error.cut_off
    return "does not exist" in str(error) and (runner.project_folder() / f"Pulumi.{stack}.yaml").is_file()


def _readable(stack: str, report: Report, confirm: Confirm) -> tuple[Recovery, tuple[PendingOperation, ...]]:
    """Ensure that the stack has a readable state: its own, the engine's copy of an earlier one, or an empty one.

    Returns the pending operations of the copy too.
    """
    try:
        _read_repaired(stack, report)
    except ScriptError as error:
        if not _is_lost(stack, error):
            raise
        missing = not isinstance(error, StateUnreadableError)
    else:
        return Recovery(stack=stack), ()
    confirm(())
    earlier, backups = _from_backend(stack)
    start = "the engine's copy of an earlier one" if earlier else "an empty one"
    report(f"the state of stack {stack} is {'missing' if missing else 'truncated'}, starting from {start}")
    if missing:
        runner.query(["stack", "init", stack, "--no-select", *provider_options(stack)])
    fresh, started = without_pending(earlier or empty(stack))
    past_dead_locks(stack, lambda: write_deployment(stack, fresh), report=report)
    return Recovery(stack=stack, state_was="missing" if missing else "unreadable", backups=backups), started


def _read_repaired(stack: str, report: Report) -> StackDeployment:
    """Return the deployment, after removing a truncated side file if necessary. Raises as `read_deployment`.

    A file backend writes an `.attrs` file with each state (gocloud.dev, blob/fileblob). A kill between the two writes leaves it empty, and the
    engine then fails with "failed to load checkpoint: EOF". The state itself is intact, and the engine works without the side file.
    """
    try:
        return read_deployment(stack)
    except StateUnreadableError as error:
        folder = state_folder() if error.cut_off else None
        broken = [path for path in _side_files(folder, stack) if not _is_json(path)] if folder else []
        if not broken:
            raise
    for path in broken:
        path.unlink()
        report(f"removed truncated file {path} (the engine will recreate it)")
    return read_deployment(stack)


def _side_files(folder: Path, stack: str) -> Sequence[Path]:
    return sorted((folder / "stacks" / PRODUCT).glob(f"{stack}.json*.attrs"))


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def _from_backend(stack: str) -> tuple[StackDeployment | None, tuple[Path, ...]]:
    """Return a file backend's copy of the previous state, if readable, and the paths of our backups of both files."""
    folder = state_folder()
    if folder is None:
        return None, ()
    files = [folder / "stacks" / PRODUCT / f"{stack}.json{suffix}" for suffix in ("", ".bak")]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files if path.is_file()]
    copies = tuple(back_up(stack, text) for text in texts)
    return next((found for text in texts if (found := _checkpoint(stack, text))), None), copies


def _checkpoint(stack: str, text: str) -> StackDeployment | None:
    """Return the deployment in a file of a file backend (pulumi/pulumi, apitype, VersionedCheckpoint); None if unreadable."""
    try:
        found = parse_checkpoint(stack, text)
    except StateUnreadableError:
        return None
    if not found.resources:
        return None
    document = {key: value for key, value in found.document.items() if key != "checkpoint"}
    return replace(found, document=document)
