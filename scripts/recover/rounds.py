"""The rounds of a recovery: find, import into the state, refresh, and run the program again.

Each round resolves more values: a version of a secret is looked up once the secret is in the state.
Every write replaces the whole state atomically, so the next run continues after an interruption.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from gemma_serving.cloud.google_api import GoogleApi
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.labels import PRODUCT, Ownership
from gemma_serving.engine import runner
from gemma_serving.engine.backend import file_text
from gemma_serving.engine.deployment import (
    ResourceState,
    StackDeployment,
    back_up,
    read_deployment,
    write_deployment,
    write_empty,
)
from gemma_serving.engine.locks import end_dead_locks, past_dead_locks
from gemma_serving.engine.previewed import declared, scratch_backend
from gemma_serving.engine.secrets_provider import create_state
from gemma_serving.engine.state import StackState, read
from gemma_serving.scripts.recover.lookup import KINDS, LookupResult, LookupSession, lookup
from gemma_serving.scripts.recover.state_edit import candidates, is_complete, with_resource, without_unknown
from gemma_serving.scripts.stack import engine_run
from gemma_serving.scripts.stack.facts import facts_of, read_facts
from gemma_serving.scripts.stack.serves import GOOGLE_LIMIT_S, serves_now, unfinished_teardown

GROUPS: Final = {
    "owned": "To import",
    "not_owned": "Not imported, because they have another owner",
    "pending": "Checked after the others are imported",
    "missing": "Not found in Google Cloud",
}
_GRANTS: Final = "Not imported, because `gemma up` creates them again"
_MAX_ROUNDS: Final = 10

Report = Callable[[str], None]
Confirm = Callable[[Sequence["Examined"]], None]
"""Prompts for the resources to import. Raises CommandRefusedError unless the answer is yes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A resource that may exist but is not in the state, and its lookup result if one exists."""

    resource: ResourceState
    interrupted: bool
    found: LookupResult | None

    @property
    def group(self) -> str:
        """Its key in GROUPS."""
        return self.found.owner if self.found else "pending"

    @property
    def noun(self) -> str:
        """Human-readable kind of the resource."""
        return KINDS[self.resource.type].noun if self.resource.type in KINDS else self.resource.type

    @property
    def name(self) -> str:
        """Name in Google Cloud, or the name in the program."""
        return self.found.name if self.found else self.resource.name

    @property
    def text(self) -> str:
        """Kind and name for people. The name of an alert policy in Google Cloud is a number."""
        is_titled = self.resource.type.startswith("gcp:monitoring/")
        title = (is_titled and self.resource.inputs.get("displayName")) or re.sub(r"^projects/[^/]+/", "", self.name)
        return f"{'IAM grant' if self.is_grant else self.noun} {title}"

    @property
    def is_grant(self) -> bool:
        """True for a member of an IAM policy. It has no labels, so it is not imported."""
        return self.resource.type.lower().endswith("iammember")

    def to_json(self) -> dict[str, object]:
        """Return the finding as `--json` prints it."""
        return {"kind": self.noun, "name": self.name, "urn": self.resource.urn, "interrupted": self.interrupted}


@dataclass(slots=True)
class Recovery:
    """Result of a recovery. `cleared`: interrupted operations without a resource to import."""

    stack: str
    state_was: str
    imported: list[Examined] = field(default_factory=list[Examined])
    cleared: list[str] = field(default_factory=list[str])
    not_owned: Sequence[Examined] = ()
    backups: list[Path] = field(default_factory=list[Path])

    def to_json(self) -> dict[str, object]:
        """Return the recovery in JSON types."""
        return {
            "stack": self.stack,
            "state_was": self.state_was,
            "imported": [finding.to_json() for finding in self.imported],
            "cleared": self.cleared,
            "not_owned": [finding.to_json() for finding in self.not_owned],
            "backups": [str(path) for path in self.backups],
            "clean": not self.not_owned,
        }


def as_lines(findings: Sequence[Examined]) -> Iterator[str]:
    """Yield the findings by group, each group with its count."""
    titled = [(_GRANTS if one.is_grant else GROUPS[one.group], one.text) for one in findings]
    for title in (*GROUPS.values(), _GRANTS):
        group = sorted(text for of, text in titled if of == title)
        if group:
            yield f"{title} ({len(group)}):"
            yield from (f"  {text}" for text in group)


def inspect_stack(stack: str, api: GoogleApi, *, report: Report) -> Sequence[Examined]:
    """Return the findings of a first round without a change. Raises ScriptError.

    A missing or unreadable state is replaced by an empty one in a temporary backend.
    """
    was = _state_is(read(stack))
    if was == "whole":
        return _examined(stack, api, read_deployment(stack), declared(stack))
    report(f"the state of stack {stack} is {was}, so a recovery starts from an empty one")
    with scratch_backend(stack):
        create_state(stack)
        return _examined(stack, api, read_deployment(stack), declared(stack))


def recover(stack: str, api: GoogleApi, *, report: Report, confirm: Confirm) -> Recovery:
    """Import owned resources, clear operations without one, and refresh. Raises ScriptError."""
    state = read(stack)
    if locks := read_facts(state, "locks", limit_s=GOOGLE_LIMIT_S).locks:
        end_dead_locks(stack, locks, report=report)
    recovery = Recovery(stack, _readable(state, report, confirm))
    for _ in range(_MAX_ROUNDS):
        program = declared(stack)
        before = read_deployment(stack)
        findings = _examined(stack, api, before, program)
        recovery.not_owned = [each for each in findings if each.group == "not_owned"]
        owned = [each for each in findings if each.group == "owned"]
        # Complete ones first: they resolve the values of the others.
        chosen = [each for each in owned if is_complete(each.resource)] or owned
        if not chosen and not before.pending:
            break
        if chosen and not recovery.imported:
            confirm(chosen)
        after = without_unknown(before.changed(pending=()))
        for each in chosen:
            if each.found is not None:
                after = with_resource(after, each.resource, each.found.id, each.found.outputs, program)
        if read_deployment(stack).text() != before.text():
            raise ScriptError(f"The state of stack {stack} changed during the recovery. Run recover again.")
        recovery.backups.append(back_up(stack, before.text()))
        report(f"backed up the previous state to {recovery.backups[-1]}")
        past_dead_locks(stack, partial(write_deployment, stack, after), report=report)
        urns = {each.resource.urn for each in chosen}
        for each in chosen:
            report(f"imported {each.text}")
        recovery.imported += chosen
        recovery.cleared += [f"{one.kind} {one.resource.urn}" for one in before.pending if one.resource.urn not in urns]
        _refresh(stack, report)
    if not recovery.backups:  # an earlier recovery may have been interrupted before its refresh
        _refresh(stack, report)
    return recovery


def _examined(
    stack: str, api: GoogleApi, deployment: StackDeployment, program: Mapping[str, ResourceState]
) -> Sequence[Examined]:
    """Look up each candidate in Google Cloud."""
    search = LookupSession(api=api, owner=Ownership(project=PRODUCT, stack=stack))
    return [
        Examined(resource=each, interrupted=interrupted, found=lookup(search, each.type, each.urn, each.inputs))
        for each, interrupted in candidates(deployment, program.values())
    ]


def _refresh(stack: str, report: Report) -> None:
    hint = "The resources are in the state but could not be refreshed. Run recover again."
    refresh = partial(engine_run.change, stack, "refresh", name="recover", after_failure=hint)
    past_dead_locks(stack, refresh, report=report)


def deletion_of(stack: str) -> str:
    """Return that `gemma teardown` continues an unfinished deletion of a stack, in sentences; empty if there is none."""
    facts = facts_of(read(stack))
    return unfinished_teardown(facts, serves_now(facts))


def _state_is(state: StackState) -> str:
    """Return how the state is: whole, missing or unreadable. Raises CommandRefusedError and ScriptError if that is unknown."""
    if state.rename:
        raise CommandRefusedError(f"{state.rename} Nothing was changed.")
    is_missing = state.status == "missing"
    if state.status == "read":
        return "whole"
    if state.is_cut_off:
        return "unreadable"
    if is_missing and (runner.project_folder() / f"Pulumi.{state.stack}.yaml").is_file():
        return "missing"
    raise (CommandRefusedError if is_missing or state.status == "no engine" else ScriptError)(state.detail)


def _readable(state: StackState, report: Report, confirm: Confirm) -> str:
    """Ensure a readable state, and return how it was: whole, missing or unreadable."""
    stack, was, proof = state.stack, _state_is(state), state.proof_of_loss
    if proof is None:
        return was
    confirm(())
    report(f"the state of stack {stack} is {was}, starting from an empty one")
    if before := file_text(stack):
        report(f"copied the previous state to {back_up(stack, before)}")
    if was == "missing":
        create_state(stack)
    past_dead_locks(stack, partial(write_empty, stack, proof), report=report)
    return was
