"""The TPU VM of a stack: its document, guest attributes, metadata, and idle time by its own report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Final

from gemma_serving.cloud.capacity import pairs_of
from gemma_serving.cloud.clock import WaitClock
from gemma_serving.cloud.google_api import GoogleApi, GoogleListError, lookup_resource
from gemma_serving.cloud.kinds import INSTANCE, NODE, by_name
from gemma_serving.contracts import guest_attributes
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.three_answers import Absent, Answer, Present, Unknown
from gemma_serving.planning.units import age

_LIMIT_S: Final = 300.0
_PAUSE_S: Final = 1.0
LATEST_REPORT: Final = timedelta(minutes=10)
"""Age from which a report proves nothing. The agent writes one each minute."""
_STARTS: Final = guest_attributes.WAITING | {
    guest_attributes.STARTING,
    guest_attributes.PULLING_IMAGE,
    guest_attributes.FETCHING_WEIGHTS,
    guest_attributes.LOADING,
    guest_attributes.COMPILING,
    guest_attributes.RETRYING,
    guest_attributes.RESTORING,
}
"""Phases in which a server starts, so the TPU VM is busy."""

Item = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuMachine:
    """One machine, by its full name: projects/P/locations/Z/nodes/N or projects/P/zones/Z/instances/N."""

    api: GoogleApi
    name: str
    clock: WaitClock = field(default_factory=WaitClock)

    @property
    def is_instance(self) -> bool:
        """True for a Compute Engine instance, False for a node of Cloud TPU."""
        return "/instances/" in self.name

    @property
    def zone(self) -> str:
        """The zone."""
        return self.name.split("/")[3]

    def read(self) -> Answer[Item]:
        """Return whether it exists, with its document."""
        kind = by_name(INSTANCE if self.is_instance else NODE)
        return lookup_resource(self.api, kind, self.name)

    def published(self) -> Mapping[str, str]:
        """Return the agent's guest attributes; empty if it has published none. Raises ScriptError."""
        query = f"{guest_attributes.GUEST_ATTRIBUTE_NAMESPACE}/"
        try:
            if self.is_instance:
                path = f"compute/v1/{self.name}/getGuestAttributes?queryPath={query.replace('/', '%2F')}"
                return pairs_of(as_mapping(self.api.get("compute", path).get("queryValue")).get("items"))
            answer = self.api.post("tpu", f"v2alpha1/{self.name}:getGuestAttributes", {"queryPath": query})
        except GoogleListError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return {}
            raise ScriptError(f"Cannot read the guest attributes of {self.name}: {error}") from None
        workers = as_sequence(answer.get("guestAttributes"))
        first = as_mapping(workers[0] if workers else None)
        return pairs_of(as_mapping(first.get("queryValue")).get("items"))

    def metadata(self, document: Item) -> Mapping[str, str]:
        """Return the metadata in its document."""
        found = as_mapping(document.get("metadata"))
        return pairs_of(found.get("items")) if self.is_instance else {key: str(value) for key, value in found.items()}

    def set_metadata(self, key: str, value: str, owner: Ownership) -> None:
        """Set one key of the metadata, keep all others, and wait until Google has finished the change.

        Raises CommandRefusedError if the TPU VM is gone or is not `owner`'s, and ScriptError if Google rejects the change.
        """
        document = self.owned_document(owner)
        try:
            problem = self._settled(self._change(document, key, value))
        except (GoogleListError, ScriptError) as error:
            problem = str(error)
        if problem:
            raise ScriptError(
                f"Cannot change the metadata of {self.name}: {problem.rstrip('.')}. Run `gemma up {owner.stack} --restart` again."
            )

    def owned_document(self, owner: Ownership) -> Item:
        """Return its document. Raises CommandRefusedError if it is gone or not `owner`'s, and ScriptError."""
        match self.read():
            case Present(value=document):
                pass
            case Absent():
                raise CommandRefusedError(
                    f"Machine {self.name} of stack {owner.stack} does not exist: its run expired, "
                    f"Google reclaimed it, or another user deleted it. Run `gemma up {owner.stack}`."
                )
            case Unknown(why=why):
                raise ScriptError(f"Cannot read TPU VM {self.name}: {why}")
        if not owner.owns(labels=as_mapping(document.get("labels"))):
            raise CommandRefusedError(
                f"Machine {self.name} does not have the labels of stack {owner.stack}, so it was not changed. "
                f"Run `pulumi preview --refresh --stack {owner.stack}` to see whose it is."
            )
        return document

    def _change(self, document: Item, key: str, value: str) -> Item:
        merged = {**self.metadata(document), key: value}
        if not self.is_instance:
            mask = {"updateMask": "metadata"}
            return self.api.change("PATCH", "tpu", f"v2alpha1/{self.name}", body={"metadata": merged}, parameters=mask)
        items = [{"key": one, "value": text} for one, text in merged.items()]
        fingerprint = as_mapping(document.get("metadata")).get("fingerprint")
        body = {"items": items, "fingerprint": fingerprint}
        return self.api.post("compute", f"compute/v1/{self.name}/setMetadata", body)

    def _settled(self, operation: Item) -> str:
        """Wait for an operation and return why it did not succeed; empty if it did."""
        end_s = self.clock.now_s() + _LIMIT_S
        while not (operation.get("done") or operation.get("status") == "DONE"):
            if self.clock.now_s() > end_s:
                return f"it did not finish within {_LIMIT_S:.0f} s"
            self.clock.sleep(_PAUSE_S)
            name = str(operation.get("name"))
            zone = "/".join(self.name.split("/")[:4])
            is_short = self.is_instance and "/" not in name
            path = f"compute/v1/{zone}/operations/{name}" if is_short else f"v2alpha1/{name}"
            operation = self.api.get("compute" if self.is_instance else "tpu", path)
        error = as_mapping(operation.get("error"))
        each = [as_mapping(one) for one in as_sequence(error.get("errors"))] or ([error] if error else [])
        return "; ".join(f"{one.get('message') or 'no explanation'} ({one.get('code', '?')})" for one in each)


def idle_since(machines: Sequence[TpuMachine], now: datetime) -> Answer[datetime]:
    """Return the time since which all machines are idle, Absent if one is busy, and Unknown if one may be."""
    answers = [_of_machine(machine, now) for machine in machines]
    if any(isinstance(answer, Absent) for answer in answers):
        return Absent()
    unknown = next((answer for answer in answers if isinstance(answer, Unknown)), None)
    return unknown or Present(max(answer.value for answer in answers if isinstance(answer, Present)))


def _of_machine(machine: TpuMachine, now: datetime) -> Answer[datetime]:
    name = machine.name.rpartition("/")[2]
    try:
        answer = reported(machine.published(), now)
    except ScriptError as error:
        return Unknown(f"the guest attributes of {name} could not be read ({error})")
    return Unknown(f"{name} {answer.why}") if isinstance(answer, Unknown) else answer


def phase_of(published: Mapping[str, str], now: datetime) -> Answer[str]:
    """Return the phase in a machine's guest attributes. Unknown continues a sentence about the agent."""
    phase = published.get(guest_attributes.PHASE_KEY, "")
    updated = _time(published.get(guest_attributes.UPDATED_AT_KEY, ""))
    if updated is not None and now - updated > LATEST_REPORT:
        return Unknown(f"last reported {age((now - updated).total_seconds())} ago", read_at=updated)
    return Present(phase, read_at=updated) if phase else Absent()


def reported(published: Mapping[str, str], now: datetime) -> Answer[datetime]:
    """Return the idle time in a machine's guest attributes. Unknown continues a sentence about it."""
    report = phase_of(published, now)
    if not isinstance(report, Present):
        return Unknown("has published no phase") if isinstance(report, Absent) else report
    if report.read_at is None:
        return Unknown("last reported at an unknown time")
    phase = report.value
    if phase in _STARTS or (
        phase == guest_attributes.READY and published.get(guest_attributes.IDLE_SINCE_KEY) == guest_attributes.NOT_IDLE
    ):
        return Absent()
    if phase != guest_attributes.READY:
        return Unknown(f"is {phase}")
    since = _time(published.get(guest_attributes.IDLE_SINCE_KEY, ""))
    return Unknown("does not report whether requests are running") if since is None else Present(since)


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
