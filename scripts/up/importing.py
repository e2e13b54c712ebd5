"""Import into the state what Google has of a stack, in rounds: look up, import, refresh, and preview again.

Each round resolves more values: a version of a secret is looked up once the secret is in the state.
Every write replaces the whole state atomically, so the next run continues after an interruption.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from gemma_serving.cloud.google_api import GoogleApi
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import as_sequence
from gemma_serving.contracts.labels import PRODUCT, Ownership
from gemma_serving.contracts.parallel import each
from gemma_serving.contracts.resource_types import CAPACITY_TYPE, SERVER_TYPES
from gemma_serving.engine.exported_state import (
    ResourceState,
    StackDeployment,
    back_up,
    read_deployment,
    write_deployment,
)
from gemma_serving.engine.locks import past_dead_locks
from gemma_serving.engine.previewed import creations_in
from gemma_serving.planning.units import number_of
from gemma_serving.scripts.stack import engine_run
from gemma_serving.scripts.up.lookup import KINDS, LookupResult, LookupSession, lookup
from gemma_serving.scripts.up.state_edit import candidates, is_complete, with_resource, without_unknown

_MAX_ROUNDS: Final = 10
_AT_ONCE: Final = 8
_MOST_NAMED: Final = 3

Document = Mapping[str, object]
"""A preview in JSON."""
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A resource that may exist but is not in the state, and its lookup result; None if it cannot be looked up yet."""

    resource: ResourceState
    found: LookupResult | None

    @property
    def text(self) -> str:
        """Kind and name for people. The name of an alert policy in Google Cloud is a number."""
        is_titled = self.resource.type.startswith("gcp:monitoring/")
        name = self.found.name if self.found else self.resource.name
        title = (is_titled and self.resource.inputs.get("displayName")) or re.sub(r"^projects/[^/]+/", "", name)
        return f"{KINDS[self.resource.type].noun} {title}"

    @property
    def zones(self) -> Sequence[str]:
        """Zones that have capacity of this name, if the settings list others too."""
        if self.resource.type != CAPACITY_TYPE or self.found is None:
            return ()
        taken = re.findall(r"/(?:locations|zones)/([^/]+)/", self.found.name)
        return taken if {*map(str, as_sequence(self.resource.inputs.get("zones")))} - {*taken} else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Resources that a preview creates and that Google has already."""

    before: StackDeployment
    program: Mapping[str, ResourceState]
    owned: Sequence[Examined]

    @property
    def has_server(self) -> bool:
        """True if a machine or a service is among what the state lacks."""
        return any(one.resource.type in SERVER_TYPES for one in self.owned)

    @property
    def sentence(self) -> str:
        """The number of these resources and the first names, as a sentence."""
        named = [one.text for one in self.owned[:_MOST_NAMED]]
        more = len(self.owned) - len(named)
        listed = ", ".join([*named, *([f"{more} more"] if more else [])])
        return f"The state lacks {number_of(len(self.owned), 'resource')} that Google has of this stack: {listed}."


def examine(stack: str, api: GoogleApi, document: Document) -> Examination:
    """Look up what a preview creates. Raises CommandRefusedError if another owner has one of the names, and ScriptError."""
    before, program = read_deployment(stack), creations_in(document)
    search = LookupSession(api=api, owner=Ownership(project=PRODUCT, stack=stack))
    resources = candidates(before, program.values())
    results = each([partial(lookup, search, one.type, one.urn, one.inputs) for one in resources], workers=_AT_ONCE)
    found = [Examined(resource=one, found=result) for one, result in zip(resources, results, strict=True)]
    require_own(found)
    owned = [one for one in found if one.found is not None and one.found.owner == "owned"]
    return Examination(before=before, program=program, owned=owned)


def require_own(found: Sequence[Examined]) -> None:
    """Raise CommandRefusedError if another owner has one of the names."""
    foreign = [one for one in found if one.found is not None and one.found.owner == "not_owned"]
    if foreign:
        without = f" leave {' and '.join(foreign[0].zones)} out of `tpu.zones`," if foreign[0].zones else ""
        raise CommandRefusedError(
            f"{foreign[0].text} exists but does not have the labels of this stack. Delete it if it is yours,{without} or use another stack name. "
            "It was not modified."
        )


def import_all(
    stack: str,
    api: GoogleApi,
    first: Document,
    *,
    preview: Callable[[], Document],
    confirm: "Callable[[Examination], None]",
    report: Report,
) -> Document:
    """Import what the state lacks, and forget interrupted creations of what does not exist. Return the last preview.

    `confirm` raises CommandRefusedError if what was found may not be imported. Raises ScriptError.
    """
    document, is_allowed = first, False
    for _ in range(_MAX_ROUNDS):
        examination = examine(stack, api, document)
        if not examination.owned and not any(one.kind == "creating" for one in examination.before.pending):
            break
        if examination.owned and not is_allowed:
            confirm(examination)
            is_allowed = True
        _import(stack, examination, report)
        document = preview()
    return document


def _import(stack: str, examination: Examination, report: Report) -> None:
    # Complete ones first: they resolve the values of the others.
    chosen = [one for one in examination.owned if is_complete(one.resource)] or examination.owned
    before = examination.before
    after = without_unknown(before.changed(pending=()))
    for one in chosen:
        if one.found is not None:
            after = with_resource(after, one.resource, one.found.id, one.found.outputs, examination.program)
    if read_deployment(stack).text() != before.text():
        raise ScriptError(f"The state of stack {stack} changed during the import. Run `gemma up {stack}` again.")
    path = back_up(stack, before.text())
    past_dead_locks(stack, partial(write_deployment, stack, after), report=report)
    for one in chosen:
        report(f"imported {one.text}")
    report(f"the previous state is in {path}")
    hint = f"The resources are in the state but could not be refreshed. Run `gemma up {stack}` again."
    past_dead_locks(stack, partial(engine_run.change, stack, "refresh", name="up", after_failure=hint), report=report)
