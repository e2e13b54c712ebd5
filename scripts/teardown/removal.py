"""A teardown, from the first search to the receipt.

Destroy needs a stack, a state and no lock. The search and the deletions through the API need none of these, and always run.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from gemma_serving.cloud.clock import GOOGLE_CLOCK, WaitClock
from gemma_serving.cloud.deletion import DeletedResource, delete_all
from gemma_serving.cloud.google_api import GoogleApi, GoogleListError, answer_of, connect
from gemma_serving.cloud.held import GRACE, HOLD, addresses_in, held_in
from gemma_serving.cloud.kinds import BUCKET, NETWORK, SERVICE, SUBNETWORK, by_name
from gemma_serving.cloud.prices import has_price
from gemma_serving.cloud.simulated import is_simulated
from gemma_serving.cloud.spending import StackSpending, spending
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.installation import INSTALL_PULUMI
from gemma_serving.contracts.labels import PRODUCT, RETAINED, RETAINED_LABEL, Ownership
from gemma_serving.contracts.naming import NamingError, check_stack_name
from gemma_serving.contracts.proof import Proof
from gemma_serving.contracts.search_results import FoundResource, Inventory
from gemma_serving.contracts.spelling import did_you_mean
from gemma_serving.contracts.three_answers import Absent, Answer, Unknown
from gemma_serving.engine import runner
from gemma_serving.engine import state as states
from gemma_serving.engine.backend import file_text
from gemma_serving.engine.exported_state import (
    StackDeployment,
    back_up,
    deployment_of,
    unprotected,
    write_deployment,
    write_empty,
)
from gemma_serving.engine.locks import StackLock, locked, past_locks, remove_lock_files, stack_locks
from gemma_serving.engine.secrets_provider import no_new_file
from gemma_serving.engine.state import StackState
from gemma_serving.planning.units import number_of
from gemma_serving.scripts.cli.command import not_written, print_text
from gemma_serving.scripts.cli.prompts import agreed, confirm
from gemma_serving.scripts.stack import engine_run, unfinished_teardown
from gemma_serving.scripts.stack.held_networks import held_network
from gemma_serving.scripts.stack.labelled import SearchedStacks, doubt, search_stacks, searched_stacks, unstated
from gemma_serving.scripts.teardown import pending
from gemma_serving.scripts.teardown.output import foreign_sentences, named, progress, resource_counts, show, text_of
from gemma_serving.scripts.teardown.receipt import Receipt, ReceiptError, RetainedBucket, first_start, retained_bucket
from gemma_serving.scripts.teardown.teardown_options import TeardownOptions

_DECLINED: Final = "Cancelled. Nothing was deleted."
_NO_MORE: Final = "Cancelled. Nothing more was deleted."
_ROUNDS: Final = 3
"""Rounds of search and deletion. A later round deletes what depended on a resource of an earlier one."""
_POLL_S: Final = 30.0


class UnknownStackError(CommandRefusedError):
    """No state, settings or resource has the name of a stack, so there is nothing to put in a receipt."""


@dataclass(slots=True, kw_only=True)
class Teardown:
    """One teardown. `run` runs all steps."""

    options: TeardownOptions
    known: SearchedStacks
    api: GoogleApi
    clock: WaitClock = field(default_factory=WaitClock)
    searches: list[Inventory] = field(default_factory=list[Inventory])
    leaked: tuple[FoundResource, ...] = ()
    left: frozenset[str] = frozenset()
    """Full names of resources that no state of this backend has, and that were not confirmed."""
    doubted: frozenset[str] = frozenset()
    """Stacks whose state is no proof of what they own, and whose deletion was not confirmed."""
    agreed: frozenset[str] = frozenset()
    """Such stacks whose deletion was confirmed."""
    held: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Full names of what only Google holds, with its addresses."""
    held_until: datetime | None = None
    """Until when, at most. None: unknown."""
    spent: Sequence[StackSpending] = ()
    confirmed: set[str] = field(default_factory=set[str])
    deletions: list[DeletedResource] = field(default_factory=list[DeletedResource])
    retained: tuple[RetainedBucket, ...] = ()
    destroyed: int = 0
    state_left: tuple[Mapping[str, object], ...] = ()
    warnings: list[str] = field(default_factory=list[str])
    begun: bool = False
    """True once it may delete."""
    has_deleted: bool = False
    """True from the first deletion."""
    done: bool = False
    _started_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin to count the time."""
        self._started_s = self.clock.now_s()

    def run(self) -> None:
        """Search, confirm, destroy, delete the remaining resources, and search again. Raises ScriptError."""
        renamed = [state.rename for state in self.known.states if state.rename]
        self.warnings += self.known.read_errors
        if not self.searches:
            self.search()
        self._require_known_stack()
        self._require_no_guests()
        self._require_no_other_state()
        if any(map(has_price, self.leaked)):
            self.spent = spending(self.api, self.leaked, GOOGLE_CLOCK.now())
        if self.options.dry_run and (others := self._unstated(self.leaked)):
            self.warnings.append(f"{self._lacks(others)} Without a terminal, they are left; in one, it asks.")
        if not self.options.dry_run:
            show("Found in Google Cloud:", self.leaked, self.spent)
            for sentence in renamed:
                progress(sentence)
            for state in self.known.states:
                self._remove_locks(state.stack, stack_locks(state.stack))
            self._confirm()
            self._delete()
        self.done = True

    def _delete(self) -> None:
        self.begun = True
        for state in self._to_destroy:
            if self._owned or self._beyond(state, self.held):
                self._with_file(partial(unfinished_teardown.remember, state))
            self._destroy(state)
        now = partial(datetime.now, UTC)
        pending.wait(self.api, self.known.states, clock=self.clock, now=now, report=progress)
        self._clear()
        if self.options.wait and self.held:
            self._wait_for_google()
        for state in self.known.states:
            self._update_state(state)
        for state in self.known.states:
            if self._absence(state.stack) is not None:
                self._with_file(partial(unfinished_teardown.forget, state.stack))

    def _with_file(self, change: Callable[[], None]) -> None:
        """Change a local file. A failure becomes a warning, because no resource may stay for it."""
        try:
            change()
        except OSError as error:
            self.warnings.append(not_written(error))

    def search(self) -> None:
        """Search the cloud and record the resources that exist."""
        kept = [item.resource.name for item in self.retained]
        found = search_stacks(self.api, self.known, kept=kept, clock=self.clock, say=progress)
        if any(item.owner.stack == self.options.stack for item in found.found):
            self.known = replace(self.known, is_name_known=True)  # for the searches after the deletions
        self.searches.append(found)
        left = tuple(item for item in found.found if not self._is_retained(item))
        self.held = self._held_among(left)
        self.leaked = tuple(item for item in left if item.name not in self.held)
        self.retained = tuple(retained_bucket(self.api, item) for item in found.found if self._is_retained(item))

    def _held_among(self, left: Sequence[FoundResource]) -> Mapping[str, Sequence[str]]:
        """Return what only Google holds: for two hours after the last service, and for one more if it is late."""
        try:
            held = held_in(self.api, self.searches[-1], left)
        except (GoogleListError, ScriptError) as error:
            why = f"Could not check whether Google holds the network: {error}"
            self.warnings += [why] if why not in self.warnings else []
            return {}
        now = GOOGLE_CLOCK.now()
        stacks = {item.owner.stack for item in left if item.name in held}
        if held and self.held_until is None:
            seen = {item.owner.stack for search in self.searches for item in search.found if item.kind == SERVICE}
            stated = {one.stack: one.until for one in map(held_network, self.known.states) if one is not None}
            ends = [now + HOLD if stack in seen else stated.get(stack) for stack in stacks]
            known = [end for end in ends if end is not None]
            self.held_until = max(known) if len(known) == len(ends) else None
        is_late = self.held_until is not None and now > self.held_until + GRACE
        return {} if is_late else held

    def remaining(self) -> Answer[Sequence[FoundResource]]:
        """Return the resources that the last search found for deletion."""
        return self.searches[-1].answer_about(self.leaked)

    @property
    def _owned(self) -> Sequence[FoundResource]:
        """What is deleted: without what may be another folder's and was not confirmed."""
        return [item for item in self.leaked if item.name not in self.left]

    def _absence(self, stack: str) -> Proof | None:
        """Return the proof that no resource of a stack to delete is left; None unless the last search read every list."""
        return self.searches[-1].proof_of_absence(self._owned, stack)

    def receipt(self) -> Receipt:
        """Return the results since the first search."""
        elapsed_s = self.clock.now_s() - self._started_s
        return Receipt(
            stack=self.options.stack,
            projects=self.known.projects,
            destroyed=self.destroyed,
            state=self.state_left,
            leaked=self.leaked,
            left=[item for item in self.leaked if item.name in self.left],
            foreign=self.searches[-1].foreign,
            held=[item for item in self.searches[-1].found if item.name in self.held],
            held_by=sorted({address for addresses in self.held.values() for address in addresses}),
            held_until=self.held_until,
            retained=self.retained,
            deletions=self.deletions,
            unknown=self.searches[-1].unknown,
            warnings=self.warnings,
            searches=self.searches,
            started=GOOGLE_CLOCK.now() - timedelta(seconds=elapsed_s),
            elapsed_s=elapsed_s,
            spent=self.spent,
            interrupted=not self.done,
            dry_run=self.options.dry_run,
        )

    def _is_retained(self, item: FoundResource) -> bool:
        retained = item.labels.get(RETAINED_LABEL) == RETAINED and not self.options.include_retained
        return item.kind == BUCKET and (self.options.keep_bucket or retained)

    def _require_known_stack(self) -> None:
        """Reject a name without state, settings and resources. Raises UnknownStackError."""
        stack = self.options.stack
        nothing = all(state.status in {"missing", "no engine"} and not state.projects for state in self.known.states)
        if stack is None or stack in self.known.settings or not nothing:
            return
        if self._absence(stack) is not None and not self.retained and not self.held:
            left = "".join(f" {sentence}" for sentence in foreign_sentences(self.searches[-1].foreign))
            raise UnknownStackError(
                f"Stack {stack} not found: no state, settings or resource has this name.{_known_stacks(stack)} "
                f"Pass another --stack, or --all.{left}"
            )

    def _require_no_guests(self) -> None:
        """Reject a network with resources of other stacks; a dry run and a limit warn."""
        guests = self.searches[-1].guests
        if not guests:
            return
        owners = sorted({(item.owner.project, item.owner.stack) for item in guests})
        own = self.known.pulumi_project
        stacks = [stack if project == own else f"{stack} of the Pulumi project {project}" for project, stack in owners]
        commands = [
            f"`gemma teardown {stack}`" if project == own else f"`pulumi destroy --stack {stack}` in {project}"
            for project, stack in owners
        ]
        refusal = (
            f"The network of stack {self.options.stack} has resources of {', '.join(stacks)}, such as {guests[0].kind} {guests[0].id}, and Google "
            f"deletes no network in use. Run {' and '.join(commands)} first."
        )
        if self.options.dry_run or self.options.over_limit:
            self.warnings.append(refusal)
        else:
            raise CommandRefusedError(f"{refusal} Nothing was changed.")

    def _require_no_other_state(self) -> None:
        """Reject a state that names what another stack of this backend, or another Pulumi project, has. A dry run warns."""
        owners = {item.owner for item in self.searches[-1].claimed}
        if self.options.stack:
            owners |= {replace(one.owner, stack=one.former_name) for one in self.known.states if one.former_name}
        deployed = states.deployed_names() if owners else None  # unknown: the state is doubted, so it needs a yes
        for other in sorted(owners, key=lambda one: (one.project, one.stack)):
            is_other_project = other.project != self.known.pulumi_project
            if not is_other_project and other.stack not in (deployed or ()):
                continue
            refusal = f"{self._claim(other)}. " + (
                "Delete them with that project's program."
                if is_other_project
                else f"That stack has a state of its own in this backend. To delete them, run `gemma teardown {other.stack}`; "
                f"to forget the other state alone, run `pulumi stack rm {self.options.stack} --force`."
            )
            if not self.options.dry_run:
                raise CommandRefusedError(f"{refusal} Nothing was changed.")
            self.warnings.append(refusal)

    def _claim(self, other: Ownership) -> str:
        """Return that a state names resources of another owner, as a clause."""
        state = f"The state of stack {self.options.stack}" if self.options.stack else "A state of this backend"
        whose = f" of the Pulumi project {other.project}" if other.project != self.known.pulumi_project else ""
        return f"{state} names resources with the labels of stack {other.stack}{whose}"

    # Confirmation

    def _confirm(self) -> None:
        """Prompt once for all known resources, without what only Google kept. Raises CommandRefusedError unless the answer is yes."""
        self._confirm_unstated(self.leaked)
        self._confirm_doubted()
        count = sum(len(self._beyond(one, self.held)) for one in self._to_destroy if one.stack not in self.agreed)
        others = [item for item in self._owned if item.name not in self.confirmed]
        self.confirmed |= {*self.held, *(item.name for item in others)}
        if self.options.yes or not (count or others):
            return
        project = f"of the Pulumi project {self.known.pulumi_project}"
        name = f"stack {self.options.stack} {project}" if self.options.stack else f"all stacks {project}"
        only_state = f"{number_of(count, 'resource')} of the state, none of which was found in Google Cloud"
        resources = f"{resource_counts(others)} in Google Cloud{self._named(others)}" if others else only_state
        is_own = self.known.pulumi_project == PRODUCT
        how = "Pass --yes to confirm." if is_own else "Run the command in a terminal to confirm."
        confirm(
            f"Delete {name}: {resources}?",
            without_terminal=f"Teardown of {name} deletes {resources}. stdin is not a terminal. {how}",
            declined=_DECLINED,
        )

    def _confirm_more(self) -> None:
        """Prompt for the resources that the first search did not find."""
        self._confirm_unstated(self.leaked)
        more = [item for item in self._owned if item.name not in self.confirmed]
        self.confirmed |= {item.name for item in more}
        if more and not self.options.yes:
            show("Found since:", more)
            refusal = f"{resource_counts(more)} appeared after the confirmation, and stdin is not a terminal. Pass --yes to confirm."
            confirm(f"Delete {resource_counts(more)} too?", without_terminal=refusal, declined=_NO_MORE)

    def _confirm_unstated(self, found: Sequence[FoundResource]) -> None:
        """Prompt, even with --yes, for resources of a stack that no state of this backend has; without a yes, leave them.

        All stacks, and a limit in the labels, need no state. Raises CommandRefusedError for a no if there is nothing else to delete.
        """
        asked = self.left | self.confirmed
        new = [item for item in self._unstated(found) if item.name not in asked]
        if not new:
            return
        names = {item.name for item in new}
        lacks = self._lacks(new)
        is_agreed = agreed(f"{lacks} Delete them?")
        if is_agreed:
            self.confirmed |= names
            self.agreed |= {state.stack for state in self.known.states if self._doubt(state)}
            return
        if is_agreed is not None and not self.begun and len(new) == len(self.leaked) and not self._stated_count:
            raise CommandRefusedError(_DECLINED)
        self.left |= names
        command = f"`gemma teardown {self.options.stack}`"
        self.warnings.append(f"{lacks} They were left. To delete them, run {command} in a terminal.")

    def _confirm_doubted(self) -> None:
        """Prompt, even with --yes, before the engine destroys what only a doubted state names; without a yes, leave it."""
        for state in self.known.states:
            why = self._doubt(state)
            if not why or state.stack in self.agreed or not self._beyond(state, self.held):
                continue
            count = number_of(len(state.resources), "resource")
            if not self.left and agreed(f"{why} Delete the {count} that its state names?"):
                self.agreed |= {state.stack}
                continue
            self.doubted |= {state.stack}
            left = f"The {count} that the state of stack {state.stack} names were left."
            how = f"To delete them, run `gemma teardown {state.stack}` in a terminal."
            self.warnings.append(left if self.left else f"{why} {left} {how}")

    def _doubt(self, state: StackState) -> str:
        """Return why a state is no proof of what is deleted, in sentences; empty if it is one."""
        claims = [f"{self._claim(item.owner)}." for item in self.searches[-1].claimed[:1]]
        return " ".join([*filter(None, [doubt(state, renamed=bool(self.options.stack))]), *claims])

    def _unstated(self, found: Sequence[FoundResource]) -> Sequence[FoundResource]:
        """Return what no state of this backend has of one stack. All stacks, and a limit in the labels, need no state."""
        return unstated(self.known, found) if self.options.stack and not self.options.over_limit else ()

    def _lacks(self, found: Sequence[FoundResource]) -> str:
        """Return that no state of this backend, or only a doubted one, has these resources, in sentences."""
        if doubts := [*filter(None, map(self._doubt, self.known.states))]:
            return f"{' '.join(doubts)} {resource_counts(found)} in Google Cloud{self._named(found)}, and what else its state names, may be another's."
        return (
            f"No state of this backend has {resource_counts(found)} with the labels of stack {self.options.stack} of the Pulumi project "
            f"{self.known.pulumi_project}, so another folder may have made them{self._named(found)}."
        )

    def _named(self, found: Sequence[FoundResource]) -> str:
        """Return the end of a sentence about what is deleted: what costs money or holds data, and what ends with it."""
        ends = first_start(found, retains_bucket=bool(self.retained))
        return f"{named(found)}; {ends}" if ends else named(found)

    @property
    def _stated_count(self) -> int:
        """Number of resources in the states, without what only Google kept."""
        return sum(len(self._beyond(one, self.held)) for one in self._to_destroy)

    @property
    def _to_destroy(self) -> Sequence[StackState]:
        """The states that the engine may destroy."""
        return [state for state in self.known.states if state.stack not in self.doubted]

    # Engine

    @staticmethod
    def _beyond(state: StackState, names: Collection[str]) -> Sequence[Mapping[str, object]]:
        """Return the resources in a state; none if it has only these names and their components."""
        ids = {item.get("id") for item in state.resources if item.get("custom")}
        return () if ids and ids <= {*names} else state.resources

    def _wait_for_google(self) -> None:
        """Wait until Google has released what it holds, or should have an hour ago, and delete it."""
        names = [name for name in self.held if "/subnetworks/" in name]
        left_s = ((self.held_until or GOOGLE_CLOCK.now() + HOLD) - GOOGLE_CLOCK.now()).total_seconds()
        end_s = self.clock.now_s() + left_s + GRACE.total_seconds() + _POLL_S
        with engine_run.show_step("waiting for Google to release the network") as show:
            while self.clock.now_s() < end_s and any(addresses_in(self.api, name) for name in names):
                show(
                    f"waiting for Google to release {names[0]}: {(end_s - self.clock.now_s()) / 60:.0f} minutes left at most",
                    "",
                )
                self.clock.sleep(_POLL_S)
        self._clear()

    def _destroy(self, state: StackState) -> None:
        """Run `pulumi destroy`. A failure becomes a warning; the search shows its effect.

        The networks of Cloud Run stay for the search, because Google refuses to delete those that it holds.
        """
        proof = state.proof
        kept = [] if state.printed.get("target") == "tpu" else [*_networks(state)]
        if proof is None or not self._beyond(state, kept):
            return
        deployment = deployment_of(state.stack, state.raw)
        changed = unprotected(deployment, keep_bucket=self.options.keep_bucket)
        if changed != deployment:
            self._import(state.stack, changed)
        self._engine(state, proof, *_without(state, kept))
        after = states.read(state.stack)
        self.destroyed += max(0, len(state.resources) - len(after.resources)) if after.status == "read" else 0

    def _engine(self, state: StackState, proof: Proof, *options: str) -> None:
        """Run `pulumi destroy` with its progress on stderr. It also deletes the stack itself, a step more."""
        destroy = partial(engine_run.destroy, state.stack, proof, *options, name="teardown", describe=self._seen)
        steps = len(state.resources) + 1
        self._past_locks(state.stack, partial(destroy, steps=steps, after_failure="Continuing with the search."))

    def _seen(self, step: str) -> str:
        """Note the engine's first deletion."""
        self.has_deleted |= "delet" in step
        return ""

    def _import(self, stack: str, deployment: StackDeployment) -> None:
        """Replace the state without a change in the cloud."""
        self._past_locks(stack, partial(write_deployment, stack, deployment))

    def _past_locks(self, stack: str, work: Callable[[], None]) -> bool:
        """Run an engine command past a lock. Return whether it succeeded; a failure becomes a warning."""

        def end(found: Sequence[StackLock]) -> None:
            self._remove_locks(stack, found or [StackLock(place="", user="", host="", pid=0, since="")])
            runner.query(["cancel", "--yes", "--stack", stack])

        try:
            with no_new_file(stack):
                past_locks(work, end)
        except CommandRefusedError:
            raise
        except ScriptError as error:
            self.warnings.append(str(error))
            return False
        return True

    def _remove_locks(self, stack: str, held: Sequence[StackLock]) -> None:
        """Remove stale locks, live ones after a yes, even with --yes. Raises CommandRefusedError."""
        for lock in held:
            if lock.is_dead:
                progress(f"removing stale lock of stack {stack} ({lock.holder} is no longer running)")
                continue
            how = locked([lock])
            refusal = (
                f"Stack {stack} is {how}. Wait for it to finish, or run this command in a terminal to confirm. "
                f"If it has stopped, run `pulumi cancel --yes --stack {stack}`."
            )
            question = f"Stack {stack} is {how}, which may still be running. Remove the lock?"
            confirm(question, without_terminal=refusal, declined=_NO_MORE)
        if held:
            remove_lock_files(stack)

    # Leaked resources

    def _clear(self) -> None:
        """Search and delete through the API until no resource is left or a round deletes none."""
        for _ in range(_ROUNDS):
            self.search()
            self._confirm_more()
            if not self._owned:
                return
            waited = {item.resource.name for item in self.deletions if item.timed_out}
            chosen = [item for item in self._owned if item.name not in waited]
            self.has_deleted = True
            done = delete_all(self.api, chosen, self.known.asker, report=progress, clock=self.clock)
            self.deletions += done
            if all(item.outcome not in {"deleted", "already deleted"} for item in done):
                break
        self.search()

    def _update_state(self, state: StackState) -> None:
        """Remove deleted resources from the state. Report an unreadable state."""
        after, proof = states.read(state.stack), self._absence(state.stack)
        if state.stack in self.doubted:
            self.state_left += tuple(after.resources)
            return
        if proof is not None and self._beyond(after, self.held):
            after = self._emptied(after, proof)
        elif isinstance(self.remaining(), Unknown) and after.resources:
            self.warnings.append(
                f"The state of stack {state.stack} was not changed because some lists could not be read. "
                "Fix the failed checks, then run the same command again."
            )
        if after.status == "read":
            self.state_left += tuple(self._beyond(after, self.held))
        elif after.is_cut_off and proof is not None and not self.left:
            warning = f"The state of stack {state.stack} was truncated. It is now empty."
            self._write_empty(state.stack, proof, file_text(state.stack), warning)
        elif after.status == "unreadable":
            self.warnings.append(after.detail)
        elif after.resources:
            self.warnings.append(
                f"The state of stack {state.stack} still has {len(after.resources)} resources, but the Pulumi engine is not installed. "
                f"Run `{INSTALL_PULUMI}`, then `gemma teardown {state.stack}`."
            )

    def _emptied(self, after: StackState, absence: Proof) -> StackState:
        """Return the state without deleted resources, by the engine or else empty."""
        stack, named = after.stack, after.proof
        if named is not None and after.resources:
            self._engine(after, named, "--refresh", *_without(after, self.held))
            after = states.read(stack)
        if after.status == "read" and after.pending:
            self._import(stack, deployment_of(stack, after.raw).changed(pending=()))
            after = states.read(stack)
        if after.status == "read" and after.resources and not _without(after, self.held):
            self._write_empty(
                stack,
                absence,
                json.dumps(after.raw),
                f"The engine could not remove {len(after.resources)} resources from the state of stack {stack}, although the search read "
                "every list and found no resource. The state is now empty.",
            )
            after = states.read(stack)
        return after

    def _write_empty(self, stack: str, proof: Proof, before: str, warning: str) -> None:
        """Replace a state with an empty one and keep a copy."""
        try:
            copied = f" A copy is in {back_up(stack, before)}." if before else ""
        except OSError as error:
            self.warnings.append(
                f"{not_written(error)} The state of stack {stack} stays, because it could not be copied."
            )
            return
        if self._past_locks(stack, partial(write_empty, stack, proof)):
            self.warnings.append(f"{warning}{copied}")


def _known_stacks(stack: str) -> str:
    """Return the probable name of a stack, or else those with a state or settings, as a sentence after a space; empty without any."""
    known = {*runner.settings_names()}
    with suppress(ScriptError):  # the search needs no engine
        known |= runner.listed_stacks()
    return did_you_mean(stack, known) or (f" Stacks: {', '.join(sorted(known))}." if known else "")


def _networks(state: StackState) -> Iterator[str]:
    """Yield the full names of the networks and subnetworks in a state."""
    types = {by_name(kind).type_ for kind in (NETWORK, SUBNETWORK)}
    return (str(item.get("id")) for item in state.resources if item.get("type") in types)


def _without(state: StackState, names: Collection[str]) -> Sequence[str]:
    """Return the engine's options that keep resources, by their full names."""
    return [f"--exclude={item.get('urn')}" for item in state.resources if item.get("id") in names]


def read_inputs(options: TeardownOptions) -> SearchedStacks:
    """Read states, settings and environment. Raises CommandRefusedError for a name that no stack has, or if no project is known."""
    if options.stack is not None:
        try:
            check_stack_name(options.stack)
        except NamingError as error:
            raise CommandRefusedError(f"{error} Nothing was deleted.") from None
    found = [states.read(options.stack)] if options.stack else states.all_states()
    # The network of another stack goes after the TPU VMs in it.
    known = searched_stacks(options.stack, sorted(found, key=lambda state: state.printed.get("target") != "tpu"))
    if not (options.dry_run and known.projects):  # the text of a dry run has them
        for error in known.read_errors:
            progress(error)
    if not known.projects:
        raise CommandRefusedError(
            "No project set: no state, settings or environment variable names one. Set GOOGLE_CLOUD_PROJECT."
        )
    return known


def connected(projects: Sequence[str]) -> GoogleApi:
    """Return a session for the projects. Raises CommandRefusedError without a login, and ScriptError if Google rejects it."""
    api = connect(*projects)
    path, body = f"v1/projects/{projects[0]}:testIamPermissions", {"permissions": ["resourcemanager.projects.get"]}
    answer = answer_of("cloudresourcemanager", partial(api.post, "cloudresourcemanager", path, body))
    if isinstance(answer, Unknown) and answer.cause == "no login":
        raise ScriptError(answer.why)
    return api


def guard(options: TeardownOptions) -> ExitCode:
    """Search, tear down the stacks that exceed their limits, and print the receipts. Raises ScriptError."""
    found = read_inputs(options)
    api = connected(found.projects)
    scan = Teardown(options=options, known=found, api=api)
    scan.search()
    seen = scan.searches[-1]
    stacks = spending(api, [item for item in seen.found if item.name not in scan.held], GOOGLE_CLOCK.now())
    for item in stacks:
        progress(item.sentence())
        for line in (*item.read, *(f"unknown: {sentence}" for sentence in item.unknown)):
            progress(f"  {line}")
    for sentence in seen.unknown:
        progress(sentence)
    over = [item for item in stacks if item.exceeded]
    others = others_over_limit(api, seen.foreign)
    for sentence in others:
        progress(sentence)
    receipts = [receipt for item in over if (receipt := _enforced(options, item.owner, api)) is not None]
    answer = seen.answer_about(seen.found)
    if isinstance(answer, Absent):
        progress("no stack of this product has resources in the project")
    if isinstance(answer, Unknown):
        progress("unknown whether a stack of this product has resources in the project, see above")
    all_read = not seen.unknown and not any(item.unknown for item in stacks)
    clean = all_read and all(receipt.clean and path for receipt, path in receipts)
    if options.as_json:
        rest = {"unknown": list(seen.unknown), "others": others, "clean": clean, "simulated": is_simulated()}
        print_text(json.dumps({**_to_json(stacks, receipts), **rest}))
    else:
        for receipt, path in receipts:
            print_text(f"{text_of(receipt)}\nReceipt: {path or 'above'}")
    return exit_code(clean=clean, others=others)


def others_over_limit(api: GoogleApi, foreign: Sequence[FoundResource]) -> Sequence[str]:
    """Return a sentence for each stack of another Pulumi project that exceeds a limit in its labels. It is not torn down."""
    spent = spending(api, foreign, GOOGLE_CLOCK.now()) if foreign else ()
    return [
        f"Stack {one.owner.stack} of the Pulumi project {one.owner.project} exceeds {' and '.join(one.exceeded)}. It was left. Run "
        f"`pulumi destroy --stack {one.owner.stack}` in its folder, or `gemma teardown --all --every-project` in a terminal."
        for one in spent
        if one.exceeded
    ]


def exit_code(*, clean: bool, others: Sequence[str]) -> ExitCode:
    """Return the exit code of a teardown. `others`: stacks of other Pulumi projects that exceed their limits."""
    if not clean:
        return ExitCode.FAILED
    return ExitCode.OTHERS_OVER_LIMIT if others else ExitCode.DONE


def _to_json(stacks: Sequence[StackSpending], receipts: Sequence[tuple[Receipt, Path | None]]) -> dict[str, object]:
    return {
        "stacks": [
            {
                "stack": item.owner.stack,
                "max_age_s": item.limits.max_age_s,
                "max_usd": item.limits.max_usd,
                "idle_after_s": item.limits.idle_after_s,
                "age_s": round(item.age_s),
                "usd": round(item.usd, 2),
                "usd_per_hour": None if item.usd_per_hour is None else round(item.usd_per_hour, 2),
                "idle": item.idle,
                "idle_s": None if item.idle_s is None else round(item.idle_s),
                "exceeded": list(item.exceeded),
                "unknown": list(item.unknown),
                "verdict": item.verdict,
                "since": item.since,
                "record": item.record,
                "read": list(item.read),
            }
            for item in stacks
        ],
        "receipts": [{**receipt.to_json(), "receipt": path and str(path)} for receipt, path in receipts],
    }


def _enforced(options: TeardownOptions, owner: Ownership, api: GoogleApi) -> tuple[Receipt, Path | None] | None:
    """Search a stack again and tear it down if it still exceeds a limit: earlier teardowns may have taken hours."""
    chosen = replace(options, stack=owner.stack)
    teardown = Teardown(options=chosen, known=read_inputs(chosen), api=api)
    teardown.search()
    now = next(
        (one for one in spending(api, teardown.leaked, GOOGLE_CLOCK.now()) if one.owner == owner),
        None,
    )
    proof = None if now is None else now.proof
    if now is None or proof is None:
        progress(f"stack {owner.stack} exceeds no limit any more and is kept")
        return None
    return _torn_down(teardown, now.exceeded, proof)


def _torn_down(teardown: Teardown, exceeded: Sequence[str], _proof: Proof) -> tuple[Receipt, Path | None]:
    teardown.run()
    receipt = replace(teardown.receipt(), reasons=tuple(exceeded))
    try:
        return receipt, receipt.write(None)
    except ReceiptError as error:
        if error.is_lost and not teardown.options.as_json:
            print_text(json.dumps(receipt.to_json()))
        progress(str(error))
        return receipt, None
