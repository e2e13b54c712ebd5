"""Content of a stack's state, as far as it is readable.

A state that is lost, broken or out of reach is not a reason to stop, because the search by labels needs none.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import ContractError, as_mapping, as_sequence, from_json
from gemma_serving.contracts.labels import PRODUCT, Ownership, owner_of
from gemma_serving.contracts.naming import allowed_name
from gemma_serving.contracts.outputs import DETAILS_TYPE, StackOutputs
from gemma_serving.contracts.parallel import each
from gemma_serving.contracts.proof import Asker, Proof
from gemma_serving.contracts.resource_types import CAPACITY_COMPONENT, SERVER_TYPES
from gemma_serving.engine import runner
from gemma_serving.engine.backend import file_text, state_folder
from gemma_serving.engine.exported_state import (
    ResourceState,
    StackDeployment,
    StateUnreadableError,
    parse_deployment,
    read_deployment,
)

Status = Literal["read", "missing", "unreadable", "no engine"]
Item = Mapping[str, object]

STACK_TYPE: Final = "pulumi:pulumi:Stack"
NO_CAPACITY: Final = "The last request for capacity failed, or the last `up` stopped before it."
_READERS: Final = 4
"""States that are read in parallel; each starts an engine."""
_HIDDEN: Final = ("pulumi:pulumi:", "pulumi:providers:")
_PROJECT: Final = re.compile(r'"project"\s*:\s*"([a-z][a-z0-9.:-]{4,}[a-z0-9])"')


@dataclass(frozen=True, slots=True, kw_only=True)
class StackState:
    """A stack's state."""

    stack: str
    status: Status
    detail: str = ""
    is_cut_off: bool = False
    """True for an incomplete document, of which nothing can be used."""
    resources: Sequence[Item] = ()
    """Resources without the stack itself and its providers."""
    pending: Sequence[Item] = ()
    """Resources with an unfinished creation: `type`, `urn` and `inputs`."""
    written: str = ""
    """Time at which the state was written (RFC 3339)."""
    projects: Sequence[str] = ()
    """Google Cloud projects in the state, the outputs' first."""
    raw: Item = field(default_factory=dict[str, object])
    """Output of `pulumi stack export`, or the file of a local backend in that form."""
    before: "StackState | None" = None
    """The copy from before the last write, if a local backend has one of a broken state. What is made after a rename has the new name."""

    @property
    def owner(self) -> Ownership:
        """The Pulumi project and stack of the state, by the project in its URNs."""
        projects = (one.urn.split("::")[1:2] for one in self._stated())
        return Ownership(project=next((one[0] for one in projects if one), PRODUCT), stack=self.stack)

    @property
    def proof(self) -> Proof | None:
        """The proof that the state names its `resources`, for their deletion; None if it was not read, or for a name that no stack of this product has."""
        if self.status != "read" or allowed_name(self.stack) != self.stack:
            return None
        claim = f"the state of stack {self.stack} names {len(self.resources)} resources"
        return Proof(claim=claim, source=f"the state, written {self.written}", owners={self.stack: self.owner})

    @property
    def proof_of_loss(self) -> Proof | None:
        """The proof that the stack has no state that an empty one would replace: it is missing or cut off; otherwise None."""
        is_lost = self.status == "missing" or self.is_cut_off
        claim = f"the state of stack {self.stack} is missing or cut off"
        return Proof(claim=claim, source=self.detail, owners={self.stack: self.owner}) if is_lost else None

    @property
    def by_urn(self) -> Mapping[str, Item]:
        """The resources by URN, without those that only wait for their deletion."""
        return {str(item.get("urn")): item for item in self.resources if not item.get("delete")}

    @property
    def is_out_of_reach(self) -> bool:
        """True if this machine can read no state, because it has no engine or no login to the backend."""
        return not self.raw and (self.status == "no engine" or self.detail == runner.NOT_LOGGED_IN)

    @property
    def servers(self) -> Sequence[Item]:
        """Its machine, service and requests for capacity, also those on which an operation was interrupted."""
        return [item for item in (*self.resources, *self.pending) if item.get("type") in SERVER_TYPES]

    @property
    def has_server(self) -> bool:
        """True if it has one of `servers`."""
        return bool(self.servers)

    @property
    def lacks_capacity(self) -> bool:
        """True if an `up` got as far as the request for capacity, but the state has none: Google granted none."""
        is_declared = any(item.get("type") == CAPACITY_COMPONENT for item in self.resources)
        return is_declared and not self.has_server and not self.outputs

    @property
    def former_name(self) -> str:
        """Name of the stack in the labels of its resources if `pulumi stack rename` changed it since; otherwise empty."""
        if self.before is not None:
            return self.before.former_name
        owners = [
            owner_of(labels=as_mapping(inputs.get("labels")), description=str(inputs.get("description") or ""))
            for inputs in map(_inputs, self.resources)
        ]
        names = {owner.stack for owner in owners if owner is not None and owner.project == self.owner.project}
        return "" if self.stack in names else min(names, default="")

    @property
    def rename(self) -> str:
        """Sentence about a renamed stack, with the command that renames it back; empty if its resources have its name."""
        former = self.former_name
        return former and (
            f"Stack {self.stack} was renamed: its resources have the name {former}. "
            f"To rename it back, run `pulumi stack rename {former} --stack {self.stack}`."
        )

    @property
    def zones(self) -> Sequence[str]:
        """Zones in the state."""
        given = map(_inputs, (*self.resources, *self.pending))
        named = [zone for inputs in given for zone in (inputs.get("zone"), *as_sequence(inputs.get("zones")))]
        return tuple(dict.fromkeys(str(zone) for zone in named if zone))

    @property
    def buckets(self) -> Sequence[str]:
        """Buckets on which the stack has grants."""
        items = (*self.resources, *self.pending)
        grants = [item for item in items if str(item.get("type")).startswith("gcp:storage/bucketIAMMember:")]
        return tuple(dict.fromkeys(str(_inputs(item).get("bucket") or "").removeprefix("b/") for item in grants))

    @property
    def printed(self) -> Item:
        """Outputs of the stack as the engine prints them, of any version of the project."""
        stack = next((one for one in self._stated() if one.type == STACK_TYPE), None)
        return stack.outputs if stack is not None else {}

    @property
    def outputs(self) -> StackOutputs | None:
        """Outputs of the stack, or None if it is not deployed, or by another version of the project."""
        try:
            return outputs_in(self.stack, self._stated())
        except CommandRefusedError:
            return None

    def _stated(self) -> Sequence[ResourceState]:
        found = as_sequence(as_mapping(self.raw.get("deployment")).get("resources"))
        return [ResourceState(as_mapping(item)) for item in found]


def read(stack: str) -> StackState:
    """Return the state as exported by the engine, otherwise from the file of a local backend."""
    try:
        runner.pulumi()
    except CommandRefusedError as error:
        return _from_file(stack, "no engine", str(error))
    try:
        return of_deployment(stack, read_deployment(stack))
    except CommandRefusedError as error:
        return StackState(stack=stack, status="missing", detail=str(error))
    except ScriptError as error:
        is_cut_off = isinstance(error, StateUnreadableError) and error.cut_off
        return replace(_from_file(stack, "unreadable", str(error)), is_cut_off=is_cut_off)


def stored(stack: str) -> StackState:
    """Return the state in the file of a local backend, without an engine; with another backend, an empty one."""
    return _from_file(stack, "no engine", "The backend is not a local folder.")


def remove_empty(state: StackState) -> bool:
    """Remove a stack from the backend if its state, just read, has no resources. Return whether it did."""
    proof = state.proof
    return proof is not None and not (state.resources or state.pending) and _removed(state.stack, proof)


def _removed(stack: str, proof: Proof) -> bool:
    proof.require(Asker(stack=stack))
    return runner.run("stack", "rm", stack, "--yes", "--preserve-config").returncode == 0


def all_states() -> Sequence[StackState]:
    """Return the state of each stack in the backend or with a settings file, by name."""
    known = frozenset(runner.stacks_in(runner.project_folder()))
    listed = deployed_names()
    deployed = known if listed is None else listed
    absent = partial(StackState, status="missing", detail="It is not deployed.")
    names = sorted(known | deployed)
    return each([partial(read if name in deployed else absent, stack=name) for name in names], workers=_READERS)


def deployed_names() -> frozenset[str] | None:
    """Return the names of the stacks in the backend; of a local one also without an engine. None if they are unknown."""
    try:
        return runner.listed_stacks("--project", PRODUCT)
    except ScriptError:
        backend = state_folder()
        return frozenset(path.stem for path in (backend / "stacks" / PRODUCT).glob("*.json")) if backend else None


def renamed(stack: str) -> str:
    """Return the sentence about the state that has the resources of a stack under another name; empty without one. Raises as `runner.query`."""
    listed = runner.listed_stacks("--project", PRODUCT)
    others = () if stack in listed else map(read, sorted(listed))
    return next((other.rename for other in others if other.former_name == stack), "")


def of_deployment(stack: str, deployment: StackDeployment) -> StackState:
    """Return the content of a deployment as a stack's state."""
    manifest = as_mapping(as_mapping(deployment.document.get("deployment")).get("manifest"))
    unfinished = tuple(one.resource.raw for one in deployment.pending if one.kind == "creating")
    return StackState(
        stack=stack,
        status="read",
        resources=tuple(item.raw for item in deployment.resources if not item.type.startswith(_HIDDEN)),
        pending=unfinished,
        written=str(manifest.get("time") or ""),
        projects=_projects([*(item.raw for item in deployment.resources), *unfinished]),
        raw=deployment.document,
    )


def _from_file(stack: str, status: Status, detail: str) -> StackState:
    """Return the content of a local backend's file; of a broken one, at least the projects."""
    text = file_text(stack)
    if found := _parsed(stack, text):
        return replace(found, status=status, detail=detail)
    projects = tuple(dict.fromkeys(_PROJECT.findall(text)))
    before = _parsed(stack, file_text(stack, ".json.bak"))
    return StackState(stack=stack, status=status, detail=detail, projects=projects, before=before)


def _parsed(stack: str, text: str) -> StackState | None:
    with suppress(StateUnreadableError):
        return of_deployment(stack, parse_deployment(stack, text))
    return None


def _projects(items: Sequence[Item]) -> Sequence[str]:
    outputs = [item for item in items if item.get("type") in {STACK_TYPE, DETAILS_TYPE}]
    named = [as_mapping(item.get("outputs")).get("project") for item in outputs]
    named += [_inputs(item).get("project") for item in items]
    return tuple(dict.fromkeys(name for name in named if isinstance(name, str) and name))


def _inputs(item: Item) -> Item:
    return as_mapping(item.get("inputs"))


def outputs_in(stack: str, resources: Sequence[ResourceState]) -> StackOutputs:
    """Return a stack's outputs. Raises CommandRefusedError without any, or of another version."""
    raw = {**_outputs(resources, STACK_TYPE), **_outputs(resources, DETAILS_TYPE)}
    try:
        return from_json(StackOutputs, raw)
    except ContractError as error:
        raise CommandRefusedError(
            f"The outputs of stack {stack} are incomplete: {error} Its last `gemma up` failed, or was another version's. "
            f"Run `gemma up {stack}`."
        ) from None


def after_no_capacity(stack: str) -> str:
    """Return the commands after a request for capacity that failed."""
    return f"`gemma capacity {stack}` shows each zone's capacity. Fix the cause, then run `gemma up {stack}`."


def _outputs(resources: Sequence[ResourceState], kind: str) -> Mapping[str, object]:
    nothing: Mapping[str, object] = {}
    return next((resource.outputs for resource in resources if resource.type == kind and not resource.delete), nothing)
