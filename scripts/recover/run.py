"""The rounds of a recovery: look up what may exist, put what is ours into the state, refresh, and ask the program again.

Each round makes more values known: a grant can be looked up once the account that it names is in the state. Every write replaces the whole
state at once, so an interruption leaves a state that the engine accepts, and the next run goes on from there.
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
_SETTLE: Final = "The resources are in the state, but could not be read; run recover again."

Report = Callable[[str], None]
Confirm = Callable[[Sequence["Examined"]], None]
"""Asks a person about what would be taken over. Raises CommandRefusedError unless the answer is yes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """One candidate, and what the API said about it. `found` is None if it could not be looked up."""

    candidate: Candidate
    found: Found | None

    @property
    def owner(self) -> Owner | None:
        """Whose it is; None if it could not be looked up."""
        return self.found.owner if self.found else None

    @property
    def noun(self) -> str:
        """The kind, for people."""
        type_ = self.candidate.resource.type
        return KINDS[type_].noun if type_ in KINDS else type_

    @property
    def name(self) -> str:
        """The resource's name at Google, or its name in the program."""
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
    """What a recovery did. `cleared` are interrupted operations of resources that do not exist, or that the state knows anyway."""

    stack: str
    taken: tuple[Examined, ...] = ()
    cleared: tuple[str, ...] = ()
    foreign: tuple[Examined, ...] = ()
    backups: tuple[Path, ...] = ()
    state_was: str = "whole"
    open: tuple[str, ...] = field(default=())
    """What could not be looked at, one sentence each."""
    hidden: tuple[Examined, ...] = ()
    """What the program declares and an API that is off does not show. `pulumi up` enables the API, and stops at what exists."""

    @property
    def clean(self) -> bool:
        """Whether `pulumi up` can go on."""
        return not self.foreign and not self.open


@dataclass(slots=True, kw_only=True)
class _Rounds:
    """The state of a recovery between its rounds."""

    stack: str
    search: Search
    report: Report
    confirm: Confirm
    recovery: Recovery
    begun: tuple[PendingOperation, ...] = ()
    """Operations that the engine's copy of an earlier state names. An import of the state drops them."""
    asked: bool = False

    def findings(self, deployment: StackDeployment, program: Mapping[str, ResourceState]) -> tuple[Examined, ...]:
        """Look all candidates up."""
        deployment = deployment.changed(pending=(*deployment.pending, *self.begun))
        return tuple(
            Examined(
                candidate=each,
                found=lookup(self.search, each.resource.type, each.resource.urn, each.resource.inputs),
            )
            for each in candidates(deployment, program.values())
        )

    def choose(self, findings: Sequence[Examined]) -> Sequence[Examined]:
        """Return what this round takes over: what is known whole, and lies on nothing that a later round takes over."""
        ours = {each.candidate.resource.urn: each for each in findings if each.owner is Owner.OURS}
        chosen = {urn: each for urn, each in ours.items() if each.candidate.complete}
        while early := [
            urn
            for urn, each in chosen.items()
            if any(needed in ours and needed not in chosen for needed in each.candidate.resource.dependencies)
        ]:
            for urn in early:
                del chosen[urn]
        return list((chosen or ours).values())

    def take(
        self, deployment: StackDeployment, findings: Sequence[Examined], program: Mapping[str, ResourceState]
    ) -> Sequence[Examined]:
        """Write what is ours into the state and drop the pending operations. Return what was taken over.

        Raises ScriptError if an API that is off hides whether a begun creation came about: without its operation nothing would know it.
        """
        hidden = [each for each in findings if each.owner is Owner.UNKNOWN and each.candidate.pending]
        if hidden:
            raise ScriptError(_hidden(hidden))
        chosen = self.choose(findings)
        changed, dropped = without_pending(deployment)
        dropped, self.begun = (*dropped, *self.begun), ()
        if not chosen and not dropped:
            return ()
        if chosen and not self.asked:
            self.confirm(chosen)
            self.asked = True
        for each in chosen:
            if each.found is not None:
                changed = adopted(changed, each.candidate.resource, each.found, program)
        self._write(deployment, changed)
        taken = {each.candidate.resource.urn for each in chosen}
        cleared = tuple(f"{one.kind} {one.resource.urn}" for one in dropped if one.resource.urn not in taken)
        for each in chosen:
            self.report(f"took over the {each.noun} {each.name}")
        for text in cleared:
            self.report(f"cleared the interrupted operation: {text}")
        self.recovery = replace(
            self.recovery,
            taken=(*self.recovery.taken, *chosen),
            cleared=(*self.recovery.cleared, *cleared),
            open=(*self.recovery.open, *_unknown_kinds(dropped)),
        )
        return chosen

    def _write(self, before: StackDeployment, after: StackDeployment) -> None:
        """Write the state, unless somebody else has changed it since it was read. A copy is kept first."""
        if read_deployment(self.stack).text() != before.text():
            raise ScriptError(f"Another run has changed the state of stack {self.stack} meanwhile; run recover again.")
        path = back_up(self.stack, before.text())
        self.report(f"kept the state of before in {path}")
        past_dead_locks(self.stack, lambda: write_deployment(self.stack, after), report=self.report)
        self.recovery = replace(self.recovery, backups=(*self.recovery.backups, path))


def look(stack: str, api: GoogleApi) -> tuple[Examined, ...]:
    """Return what a first round would find, and change nothing. Raises CommandRefusedError if there is no state to compare with."""
    try:
        deployment = read_deployment(stack)
    except ScriptError as error:
        if not _is_lost(stack, error):
            raise
        raise CommandRefusedError(
            f"Stack {stack} has no state that can be read, so nothing can be compared; run recover without --dry-run: it starts a new state."
        ) from None
    program = declared(stack)
    rounds = _rounds(stack, api, print, lambda _: None, Recovery(stack=stack))
    return rounds.findings(deployment, program)


def recover(stack: str, api: GoogleApi, *, report: Report, confirm: Confirm) -> Recovery:
    """Take over what is ours, clear what never came, and refresh. Raises CommandRefusedError and ScriptError."""
    held = stack_locks(stack)
    if held:
        end_dead_locks(stack, held, report=report)
    recovery, begun = _readable(stack, report, confirm)
    rounds = _rounds(stack, api, report, confirm, recovery)
    rounds.begun = begun
    last: Sequence[Examined] = ()
    for _ in range(_MAX_ROUNDS):
        program = _declared(rounds)
        deployment = read_deployment(stack)
        last = rounds.findings(deployment, program)
        taken = rounds.take(deployment, last, program)
        if taken or rounds.recovery.cleared:
            _refresh(stack, report)
        if not taken:
            break
    if not rounds.recovery.taken and not rounds.recovery.cleared:
        _refresh(stack, report)  # an earlier recovery may have been interrupted before it read what it took over
    return replace(
        rounds.recovery,
        foreign=tuple(each for each in last if each.owner is Owner.FOREIGN),
        hidden=tuple(each for each in last if each.owner is Owner.UNKNOWN),
    )


def _hidden(begun: Sequence[Examined]) -> str:
    """Return the sentence about begun creations of APIs that are off."""
    names = ", ".join(f"{each.noun} {each.name}" for each in begun)
    apis = sorted({each.found.api_off for each in begun if each.found})
    projects = dict.fromkeys(str(each.candidate.resource.inputs.get("project") or "") for each in begun)
    command = enable_command(next((project for project in projects if project), "PROJECT"), apis)
    return (
        f"The creation of {names} was interrupted, and whether it exists is unknown while its API is off. Nothing was changed. "
        f"Run `{command}`, wait some minutes, then run recover again."
    )


def _rounds(stack: str, api: GoogleApi, report: Report, confirm: Confirm, recovery: Recovery) -> _Rounds:
    owner = Ownership(project=PRODUCT, stack=stack)
    return _Rounds(stack=stack, search=Search(api=api, owner=owner), report=report, confirm=confirm, recovery=recovery)


def _unknown_kinds(dropped: Sequence[PendingOperation]) -> tuple[str, ...]:
    """Return a sentence for each interrupted creation of a type that recover cannot look up."""
    strange = [one.resource for one in dropped if one.kind == "creating" and one.resource.custom]
    return tuple(
        f"The creation of {each.name} ({each.type}) was interrupted, and recover cannot tell whether it exists; look in the console."
        for each in strange
        if each.type not in KINDS and each.type not in REPEATABLE
    )


def _declared(rounds: _Rounds) -> Mapping[str, ResourceState]:
    """Return what the program would create. If it cannot say, only interrupted operations are looked at."""
    try:
        return declared(rounds.stack)
    except StateUnreadableError:
        raise  # without the passphrase nothing can be taken over: a refresh would fail too
    except ScriptError as error:
        text = f"{error} Only interrupted operations were looked at."
        rounds.report(text)
        rounds.recovery = replace(rounds.recovery, open=(text,))
        return {}


def _refresh(stack: str, report: Report) -> None:
    past_dead_locks(stack, lambda: runner.change(stack, "refresh", after_failure=_SETTLE), report=report)


def _is_lost(stack: str, error: ScriptError) -> bool:
    """Return whether the state is gone or cut off, while the stack's settings are there."""
    if isinstance(error, StateUnreadableError):
        return error.cut_off
    return "does not exist" in str(error) and (runner.project_folder() / f"Pulumi.{stack}.yaml").is_file()


def _readable(stack: str, report: Report, confirm: Confirm) -> tuple[Recovery, tuple[PendingOperation, ...]]:
    """Make sure that the stack has a state that can be read: the engine's own copy of an earlier one, else an empty one.

    Return also the operations that the copy names.
    """
    try:
        _read_mended(stack, report)
    except ScriptError as error:
        if not _is_lost(stack, error):
            raise
        missing = not isinstance(error, StateUnreadableError)
    else:
        return Recovery(stack=stack), ()
    confirm(())
    earlier, backups = _from_backend(stack)
    start = "the engine's copy of an earlier one" if earlier else "an empty one"
    report(f"the state of stack {stack} is {'missing' if missing else 'cut off'}: starting from {start}")
    if missing:
        runner.query(["stack", "init", stack, "--no-select", *provider_options(stack)])
    fresh, begun = without_pending(earlier or empty(stack))
    past_dead_locks(stack, lambda: write_deployment(stack, fresh), report=report)
    return Recovery(stack=stack, state_was="missing" if missing else "unreadable", backups=backups), begun


def _read_mended(stack: str, report: Report) -> StackDeployment:
    """Return the deployment, if need be after the removal of a cut-off side file. Raises as `read_deployment`.

    A file backend writes a file `.attrs` beside each state (gocloud.dev, blob/fileblob): a kill between the two leaves it empty, and then the
    engine reads and writes nothing ("failed to load checkpoint: EOF"). Without the file it does; the state itself is whole.
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
        report(f"removed {path}: it was cut off, and the engine makes it again")
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
    """Return the copy that a file backend keeps of the state before, if it can be read; and our copies of both files, as they are."""
    folder = state_folder()
    if folder is None:
        return None, ()
    files = [folder / "stacks" / PRODUCT / f"{stack}.json{suffix}" for suffix in ("", ".bak")]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files if path.is_file()]
    copies = tuple(back_up(stack, text) for text in texts)
    return next((found for text in texts if (found := _checkpoint(stack, text))), None), copies


def _checkpoint(stack: str, text: str) -> StackDeployment | None:
    """Return the deployment in a file backend's file (pulumi/pulumi, apitype, VersionedCheckpoint); None if it cannot be read."""
    try:
        found = parse_checkpoint(stack, text)
    except StateUnreadableError:
        return None
    if not found.resources:
        return None
    document = {key: value for key, value in found.document.items() if key != "checkpoint"}
    return replace(found, document=document)
