"""Roll out the latest revision or roll back to an older one, then refresh the state."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from cloud.clock import GOOGLE_CLOCK
from contracts.errors import CommandRefusedError, ScriptError
from contracts.outputs import RolloutPlan
from contracts.rollout_record import (
    NO_ROLLOUT,
    RecordedOutcome,
    RefusedRevision,
    RolloutRecord,
    UnreadableRecord,
    read_record,
)
from contracts.service_traffic import ALL, LAST_TAG, NEXT_TAG, Service, is_ready, known_shares, short_name, tag_urls
from planning.units import duration
from scripts.cli.access import AccessError
from scripts.rollout.decisions import (
    Measured,
    RolloutState,
    divided,
    fault_of,
    has_traffic,
    stale_revisions,
    state_of,
    steps_left,
    whole,
)
from scripts.rollout.gates import TagGates
from scripts.rollout.hold import Clock, Hold, LostHoldError, refusal, this_run
from scripts.rollout.look import RolloutLook, look_at
from scripts.rollout.patience import Patience
from scripts.rollout.report import Gate, Outcome, Progress, RolloutReport
from scripts.rollout.service import ServiceAtGoogle, ServiceChangedError
from stacks.hooks.rollout_state import command, holder_is_gone, refusal_text, shares_text, view_of, who


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A rollout of one stack's service."""

    stack: str
    plan: RolloutPlan
    service: ServiceAtGoogle
    gates: TagGates
    refresh: Callable[[], None]
    """Refreshes the service in the stack's state."""
    say: Callable[[str], None]
    now: Clock = GOOGLE_CLOCK.now
    patience: Patience = field(default_factory=Patience)

    def to_latest(self, *, again: bool = False) -> RolloutReport:
        """Check the latest revision and shift traffic to it in steps. Roll back if a check fails.

        `again`: even if the revision was refused before or the record is unreadable. Raises ScriptError if the service cannot be read. In every
        case, either a revision that passed its checks has the traffic or the report names the revision that has it.
        """
        service = self.service.read()
        if known_shares(service) is None:
            raise ScriptError(
                f"Google did not return the traffic split of {short_name(self.service.name)}, so no traffic was moved. Retry in a minute."
            )
        state = state_of(service)
        if state.phase == "nothing serves":
            raise CommandRefusedError(
                f"No revision of {short_name(self.service.name)} serves yet. Run `gemma up {self.stack}` until it succeeds."
            )
        found = read_record(service)
        refused = self._refused(service, state, found, again=again)
        if refused is not None:
            return refused
        record = found if isinstance(found, RolloutRecord) else NO_ROLLOUT
        if state.phase == "not ready":
            return self._not_ready(service, state)
        progress = Progress(gates=[], took_over=self._took_over(record))
        hold = self._hold(service, record, revision=state.latest, serving=state.serving)
        return self._held(hold, state, progress, lambda: self._moved(hold, state, record, progress))

    def look(self, to: str | None = None, *, again: bool = False) -> RolloutLook:
        """Return the dry run of `to_latest`, or of `to_revision` with this revision, without a change.

        Raises CommandRefusedError if the revision cannot serve, and ScriptError if the service cannot be read.
        """
        service, revisions = self.service.read(), self.service.revisions()
        if known_shares(service) is None:
            raise ScriptError(
                f"Google did not return the traffic split of {short_name(self.service.name)}. Retry in a minute."
            )
        state = state_of(service)
        steps = steps_left(self.plan, state.share)
        if to is not None:
            _require_able(to, revisions)
            state, steps = replace(state, phase="roll back", latest=to, share=0), (ALL,)
        sentence = view_of(service, self.stack, self.now()).sentence
        return look_at(self.stack, service, revisions, state, steps=steps, again=again, sentence=sentence)

    def to_revision(self, revision: str) -> RolloutReport:
        """Route all traffic to an older revision immediately. Raises CommandRefusedError if it cannot serve.

        A concurrent rollout loses its hold and stops, because a rollback never waits.
        """
        _require_able(revision, self.patience.change(self.service.revisions, self.say))
        service = self.patience.change(self.service.read, self.say)
        found = read_record(service)
        record = found if isinstance(found, RolloutRecord) else NO_ROLLOUT
        progress = Progress(gates=[], took_over=self._took_over(record))
        self.say(f"routing 100% of traffic to {revision} (cold start if it has no instance)")
        hold = self._hold(service, record, revision=revision, serving=next(iter(known_shares(service) or {}), ""))
        reason = f"Revision {revision} gets all traffic."
        refused = self._given_up(service, record, revision, hold)

        def shift() -> Service:
            hold.reread()
            return hold.shift(
                whole(revision), share=ALL, outcome="rolled back manually", reason=reason, refused=refused
            )

        try:
            service = self.patience.change(shift, self.say)
        except ScriptError as error:
            reason = (
                f"Cannot route traffic to {revision} after retries for up to {duration(self.patience.limit_s)}: {error} "
                f"Run {command(self.stack, '--to', revision)} again."
            )
            return self._report(self._last(), "not rolled back", revision, reason, progress)
        return self._refreshed(self._report(service, "rolled back manually", revision, reason, progress))

    def _refused(
        self, service: Service, state: RolloutState, record: RolloutRecord | UnreadableRecord, *, again: bool
    ) -> RolloutReport | None:
        """Return the report of a run that must not start; None if it can start."""
        if isinstance(record, UnreadableRecord):
            if again:
                return None
            sentence = view_of(service, self.stack, self.now()).sentence
            return self._report(service, "unknown", state.latest, sentence)
        if record.runs and record.holder is not None and not holder_is_gone(record, self.now()):
            reason = (
                f"{who(record.holder)} is rolling out {record.revision}, so this run changed nothing. Run the same command again when that rollout "
                f"has finished. To roll back now, run {command(self.stack, '--to', record.serving)}."
            )
            return self._report(service, "held", state.latest, reason)
        refused = record.refusal_of(state.latest)
        if refused is not None and state.phase == "roll out" and not again:
            reason = refusal_text(refused, self.stack, self.now())
            if state.share:
                back = command(self.stack, "--to", state.serving)
                reason = f"{state.share} % of the traffic goes to {state.latest}; {back} rolls back. {reason}"
            return self._report(service, "refused", state.latest, reason)
        return None

    def _took_over(self, record: RolloutRecord) -> str:
        """Return a sentence that names the rollout that this run takes over; empty if none is active."""
        if not record.runs or record.holder is None:
            return ""
        gone = holder_is_gone(record, self.now())
        sentence = f"Took over the rollout of {who(record.holder)}: {gone or 'a rollback does not wait'}."
        self.say(sentence)
        return sentence

    def _hold(self, service: Service, before: RolloutRecord, *, revision: str, serving: str) -> Hold:
        record = RolloutRecord(
            holder=this_run(datetime.now(UTC)), revision=revision, serving=serving, refused=before.refused
        )
        return Hold(service=self.service, record=record, now=self.now, seen=service)

    def _given_up(self, service: Service, record: RolloutRecord, revision: str, hold: Hold) -> RefusedRevision | None:
        """Return the refusal of the latest revision if `--to` takes traffic from it, so that a later run does not roll it out again."""
        latest = short_name(service.get("latestCreatedRevision"))
        had_some = latest in (known_shares(service) or {}) or (record.runs and record.revision == latest)
        if latest == revision or not had_some or hold.record.holder is None:
            return None
        reason = f"{who(hold.record.holder)} routed all traffic to {revision} with --to."
        return record.refusal_of(latest) or refusal(latest, reason, self.now())

    def _not_ready(self, service: Service, state: RolloutState) -> RolloutReport:
        shares = known_shares(service) or {}
        serves = f"{state.serving} serves." if len(shares) == 1 else f"Traffic: {shares_text(shares)}."
        back = (
            f" {command(self.stack, '--to', state.serving)} routes all traffic to {state.serving}."
            if len(shares) > 1
            else ""
        )
        reason = (
            f"Revision {state.latest} did not start and gets no traffic. {serves}{back} "
            f"`gemma up {self.stack}` reports the cause. Change the settings and run it again."
        )
        return self._refreshed(self._report(service, "failed", state.latest, reason))

    def _held(
        self, hold: Hold, state: RolloutState, progress: Progress, work: Callable[[], RolloutReport]
    ) -> RolloutReport:
        """Run the work of a hold and always return a report. Never overwrites a change of another client."""
        try:
            return work()
        except (LostHoldError, ServiceChangedError) as error:
            hold.interrupted(str(error))
            return self._report(self._last(), "stopped", state.latest, str(error), progress)
        except ScriptError as error:
            hold.interrupted(str(error))
            service = self._last()
            reason = (
                f"{error} The traffic split stays as it is. {command(self.stack)} continues, "
                f"{command(self.stack, '--to', state.serving)} rolls back."
            )
            return self._report(service, "interrupted", state.latest, reason, progress)
        except KeyboardInterrupt:
            hold.interrupted("The run was stopped by Ctrl-C or SIGTERM.")
            raise

    def _moved(self, hold: Hold, state: RolloutState, record: RolloutRecord, progress: Progress) -> RolloutReport:
        if state.phase == "finish":
            is_pinned = has_traffic(hold.seen, whole(state.latest))
            is_done = is_pinned and not record.runs and record.outcome != "interrupted"
            return self._finish(hold, state, progress, "nothing to do", write=not is_done)
        with hold.renewed():
            return self._step_by_step(hold, state, progress)

    def _step_by_step(self, hold: Hold, state: RolloutState, progress: Progress) -> RolloutReport:
        old, new = state.serving, state.latest
        self.say(f"tagging {new} as {NEXT_TAG} with {state.share} % of the traffic, {old} serves the rest")
        service = hold.shift(divided(old, new, state.share), share=state.share)
        fault = self._gate(service, state.share, progress, smoke=True)
        for share in steps_left(self.plan, state.share):
            if fault:
                break
            self.say(f"routing {share} % of the traffic to {new}")
            service = hold.shift(divided(old, new, share), share=share)
            fault = self._gate(service, share, progress, smoke=False)
        if fault:
            return self._back(hold, state, progress)
        return self._finish(hold, replace(state, share=ALL), progress, "rolled out", write=True)

    def _gate(self, service: Service, share: int, progress: Progress, *, smoke: bool) -> str:
        """Check the new revision, record the result, and return why it fails; empty if it passes.

        A check that cannot run is a failure, because a revision that does not respond must not keep its traffic. If this machine cannot reach
        Google or has no permission to call the service, the gate is not `checked`.
        """
        try:
            gate = self._checked(service, share, progress, smoke=smoke)
        except AccessError as error:
            gate = Gate(share=share, fault=f"It could not be reached: {error}", checked=False)
        except ScriptError as error:
            gate = Gate(share=share, fault=f"It could not be checked: {error}")
        progress.gates.append(gate)
        return gate.fault

    def _checked(self, service: Service, share: int, progress: Progress, *, smoke: bool) -> Gate:
        urls = tag_urls(service)
        if not {NEXT_TAG, LAST_TAG} <= {*urls}:
            raise ScriptError(f"Google returned no URL for the tags {NEXT_TAG} and {LAST_TAG}.")
        if smoke:
            self.say("running the smoke checks on the new revision")
            fault = self.gates.smoke(urls[NEXT_TAG])
            if fault:
                return Gate(share=share, fault=fault)
            progress.before = self._measured_before(urls[LAST_TAG])
        self.say(f"measuring the new revision at {share} % of the traffic")
        measured = self.gates.measure(urls[NEXT_TAG], self.plan.requests)
        return Gate(share=share, fault=fault_of(self.plan, progress.before, measured), measured=measured)

    def _measured_before(self, url: str) -> Measured | None:
        """Measure the old revision. Return None if it does not respond, so that the new one can still replace it."""
        self.say("measuring the old revision")
        try:
            return self.gates.measure(url, self.plan.requests)
        except ScriptError as error:
            self.say(f"skipping the comparison because the old revision could not be measured: {error}")
            return None

    def _back(self, hold: Hold, state: RolloutState, progress: Progress) -> RolloutReport:
        """Route all traffic to the old revision, with retries for minutes if Google does not respond."""
        old, new, last = state.serving, state.latest, progress.gates[-1]
        self.say(f"rolling back to {old}: {last.fault}")
        failed = f"Revision {new} failed its check at {last.share} % of the traffic. {last.fault}"
        outcome: RecordedOutcome = "rolled back"
        reason = f"{failed} All traffic goes to {old} again."
        if not last.checked:
            outcome = "not verified"
            reason = (
                f"Revision {new} could not be checked at {last.share} % of the traffic, so {old} has all traffic. {last.fault} "
                f"When this machine can reach the service, run {command(self.stack)} to continue."
            )
        refused = refusal(new, failed, self.now()) if last.checked else None

        def shift() -> Service:
            return hold.shift(whole(old), share=0, outcome=outcome, reason=reason, refused=refused)

        try:
            service = self.patience.change(shift, self.say)
        except LostHoldError:
            raise
        except ScriptError as error:
            now = self._last()
            if now is None or not has_traffic(now, whole(old)):
                return self._not_rolled_back(hold, state, progress, error, refused)
            service = now
        except KeyboardInterrupt:
            hold.interrupted(f"{failed} The rollback was stopped by Ctrl-C or SIGTERM.", refused)
            raise
        return self._refreshed(self._report(service, outcome, new, reason, progress))

    def _not_rolled_back(
        self, hold: Hold, state: RolloutState, progress: Progress, error: ScriptError, refused: RefusedRevision | None
    ) -> RolloutReport:
        """Return the report of a revision that failed and may still get traffic."""
        new, last, service = state.latest, progress.gates[-1], self._last()
        shares = None if service is None else known_shares(service)
        result = (
            f"which failed its check at {last.share} % of the traffic" if last.checked else "which could not be checked"
        )
        still = (
            f"It is unknown how much traffic goes to {new}, {result}. It had {hold.record.share} % when Google last responded."
            if shares is None
            else f"{shares.get(new, 0)} % of the traffic still goes to {new}, {result}."
        )
        reason = (
            f"{still} {last.fault} The rollback failed after retries for up to {duration(self.patience.limit_s)}: {error} "
            f"Run {command(self.stack, '--to', state.serving)}."
        )
        hold.interrupted(f"{last.fault} Google accepted no change for the rollback.", refused)
        return self._report(service, "not rolled back", new, reason, progress)

    def _finish(
        self,
        hold: Hold,
        state: RolloutState,
        progress: Progress,
        outcome: Literal["rolled out", "nothing to do"],
        *,
        write: bool,
    ) -> RolloutReport:
        """Route all traffic to the named revision without tags, delete stale revisions, and refresh the state."""
        reason = f"Revision {state.latest} {'gets' if outcome == 'rolled out' else 'has'} all traffic."
        service = hold.seen
        if write:
            service = hold.shift(whole(state.latest), share=ALL, outcome=outcome, reason=reason)
        retired = self._retired(service, [state.latest, state.serving])
        report = self._report(service, outcome, state.latest, reason, progress)
        return self._refreshed(replace(report, retired=tuple(retired)))

    def _retired(self, service: Service, kept: Sequence[str]) -> Sequence[str]:
        """Delete stale revisions and return their names. A failure is reported and ignored, because the traffic is right."""
        try:
            revisions = self.service.revisions()
        except ScriptError as error:
            self.say(str(error))
            return ()
        if kept[0] == kept[1]:
            # After a rollout that was interrupted at its last step, the newest of the others is the last good one.
            kept = [*kept, *_newest_ready(revisions, other_than=kept[0])]
        retired: list[str] = []
        for revision in stale_revisions(service, revisions, kept):
            try:
                self.service.delete_revision(revision)
            except ScriptError as error:
                self.say(str(error))
                continue
            self.say(f"deleted stale revision {revision}")
            retired.append(revision)
        return retired

    def _last(self) -> Service | None:
        """Return the current service; None if it cannot be read."""
        with suppress(ScriptError):
            return self.service.read()
        return None

    def _refreshed(self, report: RolloutReport) -> RolloutReport:
        """Refresh the state. The report includes a failure, which does not affect the traffic."""
        try:
            self.refresh()
        except ScriptError as error:
            return replace(report, state_is_behind=True, reason=f"{report.reason} {error}")
        return report

    def _report(
        self, service: Service | None, outcome: Outcome, revision: str, reason: str, progress: Progress | None = None
    ) -> RolloutReport:
        return RolloutReport(
            stack=self.stack,
            outcome=outcome,
            revision=revision,
            reason=f"{progress.took_over} {reason}".strip() if progress else reason,
            traffic=None if service is None else known_shares(service),
            gates=tuple(progress.gates) if progress else (),
            before=progress.before if progress else None,
        )


def _require_able(revision: str, revisions: Sequence[Mapping[str, object]]) -> None:
    """Reject a revision that never became ready. Raises CommandRefusedError."""
    known = {short_name(each.get("name")): each for each in revisions}
    able = sorted(name for name, each in known.items() if is_ready(each))
    if revision not in able:
        why = "did not start" if revision in known else "does not exist"
        raise CommandRefusedError(f"Revision {revision} {why}. Ready revisions: {', '.join(able) or 'none'}.")


def _newest_ready(revisions: Sequence[Mapping[str, object]], *, other_than: str) -> Sequence[str]:
    ready = [each for each in revisions if is_ready(each) and short_name(each.get("name")) != other_than]
    newest = sorted(ready, key=lambda each: str(each.get("createTime")))[-1:]
    return [short_name(each.get("name")) for each in newest]
