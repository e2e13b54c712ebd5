"""Restart on a TPU machine: a new nonce in its metadata, which the agent follows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from secrets import token_hex
from typing import Final

from cloud.capacity import Instance, QueuedResource
from cloud.capacity import Node as NodeDocument
from cloud.google_api import GoogleApi, GoogleListError, lookup
from cloud.kinds import QUEUED, by_name
from cloud.tpu_machine import Item, TpuMachine
from contracts.answers import Present
from contracts.capacity_states import ACTIVE
from contracts.errors import CommandRefusedError, ScriptError
from contracts.guest_attributes import (
    DETAIL_KEY,
    ENDING,
    FAILED,
    PAUSE_BEGAN_KEY,
    PAUSE_ENDED_KEY,
    PHASE_KEY,
    READY,
    RESTART_KEY,
    serving_document,
)
from contracts.labels import PRODUCT, Ownership
from contracts.outputs import StackOutputs
from contracts.rollout import ROLLOUT_METADATA_KEY, RolloutLimits, parse_rollout
from contracts.serving_document import RESTART_METADATA_KEY
from planning.units import duration
from scripts.restart.report import Outcome, PlannedTimes, RestartLook, RestartReport, Say

POLL_S: Final = 2.0
_HASH_DIGITS: Final = 12


@dataclass(slots=True, kw_only=True)
class MachineRestart:
    """A restart of the server on one machine."""

    stack: str
    outputs: StackOutputs
    request: str
    """Full name of the queued resource; for an instance the machine itself."""
    machine: TpuMachine
    times: PlannedTimes
    say: Say
    _limits: RolloutLimits = field(default_factory=RolloutLimits)

    @classmethod
    def of(
        cls, stack: str, outputs: StackOutputs, recorded: Item, times: PlannedTimes, *, api: GoogleApi, say: Say
    ) -> "MachineRestart":
        """Return the restart of the machine in the stack's state. Raises CommandRefusedError if the state has none."""
        name = recorded.get("nodeName")
        if not isinstance(name, str) or not name:
            raise CommandRefusedError(
                f"The capacity of stack {stack} is {recorded.get('state') or 'unknown'}, not ACTIVE, so no server is running. "
                f"Run `gemma up {stack}` to continue the wait."
            )
        machine = TpuMachine(api=api, name=name)
        request = str(recorded.get("name") or name)
        return cls(stack=stack, outputs=outputs, request=request, machine=machine, times=times, say=say)

    @property
    def _owner(self) -> Ownership:
        return Ownership(project=PRODUCT, stack=self.stack)

    def look(self) -> RestartLook:
        """Return what the restart will do. Raises CommandRefusedError if the machine cannot do it."""
        document = self.machine.owned_document(self._owner)
        self._require_active(document)
        published = self._published()
        self._require_able(published)
        self._limits = _limits(self.machine.metadata(document))
        rate = self.outputs.plan.cost.usd_per_hour
        return RestartLook(
            stack=self.stack,
            target="tpu",
            server=self.machine.name,
            serving=serving_document(published),
            requests_fail_s=round(self.times.restart_s),
            start_s=round(self.times.start_s),
            usd_per_hour=rate,
            usd_per_hour_after=rate,
            sentences=tuple(self._sentences(published)),
        )

    def run(self) -> RestartReport:
        """Request the restart and wait until the server is ready again."""
        began_s, before = self.machine.clock.now_s(), self._published()
        nonce = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}-{token_hex(4)}"
        self.machine.set_metadata(RESTART_METADATA_KEY, nonce, self._owner)
        self.say(f"requested restart {nonce} on {self.machine.name.rpartition('/')[2]}")
        limit_s = self.outputs.smoke.startup_budget_s + self._limits.drain_s + 2 * 60
        shown, published = "", before
        while True:
            elapsed_s = self.machine.clock.now_s() - began_s
            published = self._polled(published)
            # Another restart at the same time stands for this one: the agent follows the last one.
            is_taken = published.get(RESTART_KEY, "") not in {"", before.get(RESTART_KEY, "")}
            phase = published.get(PHASE_KEY, "") if is_taken else ""
            if phase == READY and serving_document(published):
                return self._restarted(before, published, elapsed_s)
            if phase in {FAILED, ENDING}:
                return self._report("failed", self._failure(published), elapsed_s)
            if elapsed_s > limit_s:
                return self._report("timed out", self._unfinished(phase, limit_s), elapsed_s)
            text = phase or "waiting for the machine to read the request"
            if text != shown:
                shown = text
                self.say(f"{duration(elapsed_s)}: {text}")
            self.machine.clock.sleep(POLL_S)

    def _require_active(self, document: Item) -> None:
        """Refuse if the capacity is not ACTIVE or the machine is not up."""
        if self.machine.is_instance:
            state = Instance(document).state
        else:
            kind = by_name(QUEUED)
            found = lookup(self.machine.api, kind.api, kind.address(self.request))
            node = NodeDocument(document)
            state = (
                QueuedResource(found.value).state if isinstance(found, Present) else ACTIVE
            )  # a node without request
            state = state if node.state == "READY" or state != ACTIVE else f"ACTIVE, but its node is {node.state}"
        if state != ACTIVE:
            raise CommandRefusedError(
                f"The capacity of stack {self.stack} is {state}, so its server cannot be restarted. "
                f"Run `gemma status {self.stack}` for the next command."
            )

    def _require_able(self, published: Mapping[str, str]) -> None:
        phase = published.get(PHASE_KEY)
        if not phase:
            raise CommandRefusedError(
                f"Machine {self.machine.name} has not published a phase yet, because it is booting. "
                f"Wait until `gemma status {self.stack}` shows one, then retry."
            )
        if phase == ENDING:
            raise CommandRefusedError(
                f"The run of stack {self.stack} is about to expire, so its server does not start again. Run `gemma up {self.stack} --refresh` "
                "for a new machine."
            )

    def _sentences(self, published: Mapping[str, str]) -> list[str]:
        machine, phase, serving = self.machine, published.get(PHASE_KEY, ""), serving_document(published)
        about, at_most = duration(self.times.restart_s), duration(self.times.start_s)
        where = f"{machine.name.rpartition('/')[2]} in {machine.zone}"
        if phase == FAILED:
            now = f" Document {serving[:_HASH_DIGITS]} serves instead." if serving else ""
            first = f"The document of {where} failed.{now} The machine tries it again, and restores the same state if it fails again."
        else:
            first = f"The server on {where} is {phase}. The machine restarts it with the same document."
        if serving:
            wait = f"Running requests get {self._limits.drain_s:g} s to finish. " if self._limits.drain_s else ""
            effect = (
                f"{wait}Then requests fail for about {about} (planned), up to {at_most} if the server compiles again."
            )
        else:
            effect = f"No server is ready now. The restart takes about {about} (planned), up to {at_most} if the server compiles again."
        cost = (
            f"Capacity and address stay the same, and so does the cost: ${self.outputs.plan.cost.usd_per_hour:.2f}/h."
        )
        return [first, effect, cost]

    def _published(self) -> Mapping[str, str]:
        try:
            return self.machine.published()
        except GoogleListError as error:
            raise ScriptError(f"Cannot read the guest attributes of {self.machine.name}: {error}") from None

    def _polled(self, last: Mapping[str, str]) -> Mapping[str, str]:
        """Return the guest attributes, or the last ones if Google does not return them now."""
        try:
            return self._published()
        except ScriptError as error:
            self.say(f"{error} Retrying.")
            return last

    def _restarted(self, before: Mapping[str, str], after: Mapping[str, str], elapsed_s: float) -> RestartReport:
        paused_s = _paused_s(before, after)
        paused = "" if paused_s is None else f" Requests failed for {duration(paused_s)}."
        reason = (
            f"Document {serving_document(after)[:_HASH_DIGITS]} is serving again after {duration(elapsed_s)}.{paused}"
        )
        return self._report("restarted", reason, elapsed_s, paused_s)

    def _failure(self, published: Mapping[str, str]) -> str:
        detail = published.get(DETAIL_KEY, "").strip().rpartition("\n")[2] or "no reason reported"
        serving = serving_document(published)
        now = f"Document {serving[:_HASH_DIGITS]} is serving." if serving else "No server is running."
        return f"{detail.rstrip('.')}. {now} Run `gemma logs {self.stack}` for the server's log."

    def _unfinished(self, phase: str, limit_s: float) -> str:
        return (
            f"The server was not ready within {duration(limit_s)} (phase: {phase or 'the machine has not read the request'}). The restart continues on the "
            f"machine. Run `gemma status {self.stack} --watch`."
        )

    def _report(self, outcome: Outcome, reason: str, elapsed_s: float, paused_s: float | None = None) -> RestartReport:
        return RestartReport(
            stack=self.stack,
            server=self.machine.name,
            outcome=outcome,
            reason=reason,
            elapsed_s=elapsed_s,
            paused_s=paused_s,
        )


def _limits(metadata: Mapping[str, str]) -> RolloutLimits:
    try:
        return parse_rollout(metadata.get(ROLLOUT_METADATA_KEY))
    except ValueError:
        return RolloutLimits()


def _paused_s(before: Mapping[str, str], after: Mapping[str, str]) -> float | None:
    """Return the pause of this restart; None if the machine published none since, because no server was running."""
    began, ended = after.get(PAUSE_BEGAN_KEY, ""), after.get(PAUSE_ENDED_KEY, "")
    if began == before.get(PAUSE_BEGAN_KEY, ""):
        return None
    try:
        return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()
    except ValueError:
        return None
