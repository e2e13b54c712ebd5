"""A teardown from its first look to its receipt.

Destroy asks the engine, which needs a stack, a state and a free lock. The search and the deletion by the API need none of them, and
always come afterwards, whatever destroy said.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from cloud.clock import WaitClock
from cloud.deletion import DeletedResource, delete_all
from cloud.found import FoundResource, Inventory
from cloud.google_api import GoogleApi
from cloud.kinds import BUCKET
from cloud.search import Scope, search
from contracts.answers import Absent, Answer, Present, Unknown
from contracts.errors import CommandRefusedError, ScriptError
from contracts.labels import RETAINED, RETAINED_LABEL
from engine import runner
from engine import state as states
from engine.deployment import (
    StackDeployment,
    StateUnreadableError,
    back_up,
    deployment_of,
    read_deployment,
    write_deployment,
)
from engine.locks import StackLock, past_locks, remove_lock_files, stack_locks
from engine.state import StackState
from engine.state_edit import empty, unprotected, without_pending
from scripts.cli.settings import stack_settings
from scripts.teardown import pending
from scripts.teardown import pending_store as memory
from scripts.teardown.output import TeardownOutput, counted
from scripts.teardown.receipt import Receipt
from scripts.teardown.retained_bucket import KeptBucket, kept_bucket
from stacks.apis import apis_of
from stacks.loading import project_from_environment
from stacks.settings import Settings

_ROUNDS: Final = 3
"""How often the API is asked to delete what a search finds. A later round sees what depended on something of the round before."""
_NAMELESS: Final = StackLock(place="", user="", host="", pid=0, since="")
"""A lock of a backend that does not say who holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeardownRequest:
    """What to tear down."""

    stack: str | None
    """None: all stacks of this product in the project."""
    yes: bool = False
    keep_bucket: bool = False
    include_retained: bool = False
    """Whether a bucket of `bucket.retainOnDestroy` goes too."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TeardownInputs:
    """What is known before anything is asked of Google: the states, the settings, the projects."""

    states: Sequence[StackState]
    settings: Mapping[str, Settings]
    projects: Sequence[str]
    doubts: Sequence[str]
    """What could not be read, each a sentence."""


@dataclass(slots=True, kw_only=True)
class Teardown:
    """One teardown. `run` does all of it; `receipt` says at any time what was done so far."""

    request: TeardownRequest
    known: TeardownInputs
    api: GoogleApi
    talk: TeardownOutput = field(default_factory=TeardownOutput)
    clock: WaitClock = field(default_factory=WaitClock)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    started_s: float = field(default_factory=time.monotonic)
    searches: list[Inventory] = field(default_factory=list[Inventory])
    left: tuple[FoundResource, ...] = ()
    asked: set[str] = field(default_factory=set[str])
    deletions: list[DeletedResource] = field(default_factory=list[DeletedResource])
    kept: tuple[KeptBucket, ...] = ()
    destroyed: int = 0
    state_left: tuple[Mapping[str, object], ...] = ()
    remarks: list[str] = field(default_factory=list[str])
    done: bool = False

    def run(self) -> None:
        """Search, ask, destroy, search again, delete what is left, search again. Raises ScriptError."""
        self.remarks += self.known.doubts
        self.look()
        self._refuse_the_unknown()
        self.talk.show("Found in the cloud", self.left, datetime.now(UTC))
        if not self.request.dry_run:
            for state in self.known.states:
                self._end_locks(state.stack, stack_locks(state.stack))
            self._confirm()
            for state in self.known.states:
                memory.remember(state)
                self._destroy(state)
            pending.wait(
                self.api, self.known.states, clock=self.clock, now=lambda: datetime.now(UTC), say=self.talk.say
            )
            self._clear()
            for state in self.known.states:
                self._settle(state)
                if self._is_proved():
                    memory.forget(state.stack)
        self.done = True

    def look(self) -> None:
        """Search, and remember what is left."""
        found = search(self.api, self._scope(), clock=self.clock, say=self.talk.say)
        unknown = list(found.unknown)
        stated: list[FoundResource] = []
        for state in self.known.states:
            try:
                stated += pending.begun(self.api, state)
            except ScriptError as error:
                unknown.append(f"Could not check what the state of {state.stack} began to make: {error}")
        resources = tuple({(item.kind, item.name): item for item in (*stated, *found.found)}.values())
        self.searches.append(
            Inventory(found=resources, calls=found.calls, unknown=tuple(unknown), elapsed_s=found.elapsed_s)
        )
        self.left = tuple(item for item in resources if not self._stays(item))
        self.kept = tuple(kept_bucket(self.api, item) for item in resources if self._stays(item))

    def remaining(self) -> Answer[Sequence[FoundResource]]:
        """Return what the last search says about what is to be deleted."""
        if not self.searches:
            return Unknown("Nothing was searched.")
        return self.searches[-1].answer_about(self.left)

    def _is_proved(self) -> bool:
        """Whether the last search proves that nothing is left."""
        match self.remaining():
            case Absent():
                return True
            case Present() | Unknown():
                return False

    def receipt(self) -> Receipt:
        """Return what was done so far."""
        last = self.searches[-1] if self.searches else None
        return Receipt(
            stack=self.request.stack or "",
            projects=self.known.projects,
            destroyed=self.destroyed,
            state=self.state_left,
            left=self.left,
            kept=self.kept,
            deletions=self.deletions,
            unknown=last.unknown if last else ["Nothing was searched."],
            remarks=self.remarks,
            searches=self.searches,
            started=self.started,
            elapsed_s=time.monotonic() - self.started_s,
            interrupted=not self.done,
            dry_run=self.request.dry_run,
        )

    # Search

    def _scope(self) -> Scope:
        settings = self.known.settings.values()
        zones = [zone for state in self.known.states for zone in state.zones]
        zones += [zone for item in settings if item.tpu for zone in item.tpu.zones]
        regions = [region for item in settings for region in item.regions]
        buckets = [bucket for state in self.known.states for bucket in state.buckets]
        buckets += [item.bucket.existing for item in settings if item.bucket.existing]
        return Scope(
            projects=self.known.projects,
            stack=self.request.stack,
            stacks=[state.stack for state in self.known.states],
            places={"tpu": zones, "run": regions, "artifactregistry": regions},
            buckets=buckets,
            kept=[item.name for item in self._kept()],
            apis=self._apis(),
            held=[zone for state in self.known.states for zone in state.held_zones],
        )

    def _apis(self) -> frozenset[str] | None:
        """Return the APIs that hold something of the stacks, by their settings and states; None if a stack has neither.

        A lost state says nothing, so the settings count; settings that cannot be read say nothing, so the state counts.
        """
        found: set[str] = set()
        for state in self.known.states:
            settings = self.known.settings.get(state.stack)
            if settings is None and not state.apis:
                return None
            found |= {*state.apis, *(apis_of(settings) if settings else ())}
        return frozenset(found) or None

    def _kept(self) -> Iterator[FoundResource]:
        """Yield the buckets whose grants are searched too."""
        for found in self.searches[-1].found if self.searches else ():
            if self._stays(found):
                yield found

    def _stays(self, item: FoundResource) -> bool:
        retained = item.labels.get(RETAINED_LABEL) == RETAINED and not self.request.include_retained
        return item.kind == BUCKET and (self.request.keep_bucket or retained)

    def _refuse_the_unknown(self) -> None:
        """Refuse a name that no state, no settings and no resource has: it is most likely a mistake. Raises CommandRefusedError."""
        stack = self.request.stack
        nothing = all(state.status in {"missing", "no engine"} and not state.projects for state in self.known.states)
        searched = self._is_proved() and not self.kept
        if stack is not None and stack not in self.known.settings and nothing and searched:
            raise CommandRefusedError(
                f"No stack, no settings and no resource has the name {stack}; name another with --stack, or pass --all."
            )

    # Question

    def _confirm(self) -> None:
        """Ask once for everything that is known. Raises CommandRefusedError unless the answer is yes."""
        count = sum(len(state.resources) for state in self.known.states)
        self.asked |= {item.name for item in self.left}
        if self.request.yes or not (count or self.left):
            return
        name = f"stack {self.request.stack}" if self.request.stack else "all stacks"
        what = f"{count} resources of the state and {counted(self.left)} in the cloud"
        refusal = f"{name[:1].upper()}{name[1:]} has {what}, and stdin is no terminal; pass --yes."
        self.talk.confirm(f"Destroy {name}: {what}?", refusal=refusal)

    def _confirm_more(self) -> None:
        """Ask for what the first search did not show."""
        more = [item for item in self.left if item.name not in self.asked]
        self.asked |= {item.name for item in more}
        if more and not self.request.yes:
            self.talk.show("Found since", more, datetime.now(UTC))
            refusal = f"{counted(more)} appeared since the question, and stdin is no terminal; pass --yes."
            self.talk.confirm(f"Delete {counted(more)} too?", refusal=refusal)

    # Engine

    def _destroy(self, state: StackState) -> None:
        """Let the engine destroy a stack. A failure is a remark: the search afterwards says what it means."""
        if state.status != "read" or not state.resources:
            return
        deployment = deployment_of(state.stack, state.raw)
        changed = unprotected(deployment, keep_bucket=self.request.keep_bucket)
        if changed != deployment:
            self._import(state.stack, changed)
        self._engine(state.stack, "destroy")
        after = states.read(state.stack)
        self.destroyed += max(0, len(state.resources) - len(after.resources)) if after.status == "read" else 0

    def _engine(self, stack: str, *arguments: str) -> None:
        """Run the engine with its progress on stderr."""
        after = "The search goes on without it."
        self._past_locks(stack, lambda: runner.change(stack, *arguments, after_failure=after))

    def _import(self, stack: str, deployment: StackDeployment) -> bool:
        """Replace the state: nothing in the cloud changes. Return whether it was done."""
        return self._past_locks(stack, lambda: write_deployment(stack, deployment))

    def _past_locks(self, stack: str, work: Callable[[], None]) -> bool:
        """Do work of the engine's; if a lock is in the way, end it and do it again. Return whether it was done; a failure is a remark."""

        def end(found: Sequence[StackLock]) -> None:
            self._end_locks(stack, found or (_NAMELESS,))
            runner.query(["cancel", "--yes", "--stack", stack])

        try:
            past_locks(work, end)
        except CommandRefusedError:
            raise
        except ScriptError as error:
            self.remarks.append(str(error))
            return False
        return True

    def _end_locks(self, stack: str, held: Sequence[StackLock]) -> None:
        """Say that a dead lock ends, and ask before a live one, even with --yes. Raises CommandRefusedError unless the answer is yes."""
        for lock in held:
            if lock.is_dead:
                self.talk.say(f"the lock of stack {stack} belongs to a process that is gone ({lock.holder}); it ends.")
                continue
            who = lock.holder if lock.pid else "an update that the backend does not name"
            refusal = (
                f"Stack {stack} is locked by {who}. Wait until it ends, or run this in a terminal and answer yes, or run "
                f"`pulumi cancel --yes --stack {stack}` if it has ended."
            )
            self.talk.confirm(f"Stack {stack} is locked by {who}, which may still run. End the lock?", refusal=refusal)
        if held:
            remove_lock_files(stack)

    # What is left

    def _clear(self) -> None:
        """Search and delete by the API until nothing is left, or nothing changes any more."""
        for _ in range(_ROUNDS):
            self.look()
            if not self.left:
                return
            self._confirm_more()
            waited = {item.resource.name for item in self.deletions if item.timed_out}
            left = [item for item in self.left if item.name not in waited]
            done = delete_all(self.api, left, report=self.talk.say, clock=self.clock)
            self.deletions += done
            if all(item.outcome not in {"deleted", "gone"} for item in done):
                break
        self.look()

    def _settle(self, state: StackState) -> None:
        """Take out of the state what exists no more, and say what a state that cannot be read means."""
        after = states.read(state.stack)
        match self.remaining():
            case Absent():
                after = self._emptied(state, after)
            case Present():
                pass
            case Unknown():
                if after.resources:
                    self.remarks.append(
                        f"The state of stack {state.stack} still names {len(after.resources)} resources, and not everything could be read: the "
                        "state stays. Run the same command again when it can."
                    )
        if after.status == "read":
            self.state_left += tuple(after.resources)
        elif after.status == "unreadable":
            self._replace(state.stack)
        elif after.resources:
            self.remarks.append(
                f"The state of stack {state.stack} still names {len(after.resources)} resources, and there is no engine that could take them "
                f"out: run `make setup`, then `pulumi destroy --refresh --stack {state.stack}`."
            )

    def _emptied(self, state: StackState, after: StackState) -> StackState:
        """Return the state without what the search proved to be gone: the engine removes it, or else an empty state takes its place."""
        if after.status == "read" and after.resources:
            self._engine(state.stack, "destroy", "--refresh")
            after = states.read(state.stack)
        if after.status == "read" and after.pending:
            self._import(state.stack, without_pending(deployment_of(state.stack, after.raw))[0])
            after = states.read(state.stack)
        if after.status == "read" and after.resources:
            self._write_empty(
                state.stack,
                json.dumps(after.raw),
                f"The engine could not take {len(after.resources)} resources out of the state of stack {state.stack}, although the search read "
                "everything and found nothing; the state is empty now.",
            )
            after = states.read(state.stack)
        return after

    def _replace(self, stack: str) -> None:
        """Put an empty state in the place of one that was cut off, once nothing is left that it could name."""
        try:
            read_deployment(stack)
        except StateUnreadableError as error:
            if error.cut_off and self._is_proved():
                self._write_empty(
                    stack, states.file_text(stack), f"The state of stack {stack} was cut off; it is empty now."
                )
                return
            self.remarks.append(str(error))
        except ScriptError as error:
            self.remarks.append(str(error))

    def _write_empty(self, stack: str, before: str, remark: str) -> None:
        """Replace a state by an empty one. A copy of what it was is kept."""
        copied = f" A copy is in {back_up(stack, before)}." if before else ""
        if self._import(stack, empty(stack)):
            self.remarks.append(f"{remark}{copied}")


def known(request: TeardownRequest, say: Callable[[str], None]) -> TeardownInputs:
    """Return what states, settings and environment say. Raises CommandRefusedError if no project is known."""
    doubts: list[str] = []
    found = [states.read(request.stack)] if request.stack else states.all_states()
    settings: dict[str, Settings] = {}
    for state in found:
        if state.status != "read" and (request.stack or state.status != "missing"):
            doubts.append(f"{state.detail} The search goes on without its state.")
        try:
            settings[state.stack] = stack_settings(state.stack)
        except CommandRefusedError as error:
            doubts.append(f"{error} The search goes on without its settings.")
    for doubt in doubts:
        say(doubt)
    found = [memory.remembered(state) for state in found]
    projects = [project for state in found for project in state.projects]
    projects += [item.project for item in settings.values()]
    environment = project_from_environment()
    if environment:
        projects.append(environment)
    if not projects:
        raise CommandRefusedError(
            "No state, no settings and no environment variable names a Google Cloud project; set GOOGLE_CLOUD_PROJECT."
        )
    return TeardownInputs(
        states=tuple(found),
        settings=settings,
        projects=tuple(dict.fromkeys(projects)),
        doubts=tuple(doubts),
    )
