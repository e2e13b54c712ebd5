"""Roll out the latest revision, go back to an older one, and let state and cloud agree at the end."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

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
from scripts.rollout.hold import Clock, Hold, LostHoldError, refusal, this_run, utc_now
from scripts.rollout.look import RolloutLook, look_at
from scripts.rollout.patience import Patience
from scripts.rollout.report import Gate, Outcome, Progress, RolloutReport
from scripts.rollout.service import ServiceAtGoogle, ServiceChangedError
from stacks.hooks.rollout_state import command, holder_is_gone, refusal_text, shares_text, view_of, who


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A roll-out of one stack's service."""

    stack: str
    plan: RolloutPlan
    service: ServiceAtGoogle
    gates: TagGates
    refresh: Callable[[], None]
    """Lets the stack's state take over what Google has."""
    say: Callable[[str], None]
    now: Clock = utc_now
    patience: Patience = field(default_factory=Patience)

    def to_latest(self, *, again: bool = False) -> RolloutReport:
        """Check the latest revision and give it the traffic in steps; back to the old one if a check fails.

        `again`: also a revision that was refused before, or over a record that cannot be read. Raises ScriptError if the service cannot be
        read. Whatever ends it, a revision that passed its checks gets the requests, or the report says which one does not.
        """
        service = self.service.read()
        if known_shares(service) is None:
            raise ScriptError(
                f"Google does not say who gets the requests of {short_name(self.service.name)}, so that none were moved; try again in a minute."
            )
        state = state_of(service)
        if state.phase == "nothing serves":
            raise CommandRefusedError(
                f"No revision of {short_name(self.service.name)} serves yet; run `pulumi up --stack {self.stack}` until it succeeds."
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
        """Return what `to_latest`, or `to_revision` with this revision, would do. Nothing is changed.

        Raises CommandRefusedError if the revision cannot serve, and ScriptError if the service cannot be read.
        """
        service, revisions = self.service.read(), self.service.revisions()
        if known_shares(service) is None:
            raise ScriptError(
                f"Google does not say who gets the requests of {short_name(self.service.name)}; try again in a minute."
            )
        state = state_of(service)
        steps = steps_left(self.plan, state.share)
        if to is not None:
            _require_able(to, revisions)
            state, steps = replace(state, phase="roll back", latest=to, share=0), (ALL,)
        sentence = view_of(service, self.stack, self.now()).sentence
        return look_at(self.stack, service, revisions, state, steps=steps, again=again, sentence=sentence)

    def to_revision(self, revision: str) -> RolloutReport:
        """Give all traffic to an older revision at once. Raises CommandRefusedError if it cannot serve.

        A run that moves requests at that moment loses its hold, and stops: going back is never kept waiting.
        """
        _require_able(revision, self.patience.change(self.service.revisions, self.say))
        service = self.patience.change(self.service.read, self.say)
        found = read_record(service)
        record = found if isinstance(found, RolloutRecord) else NO_ROLLOUT
        progress = Progress(gates=[], took_over=self._took_over(record))
        self.say(f"giving all requests to {revision}; an instance starts first if none runs")
        hold = self._hold(service, record, revision=revision, serving=next(iter(known_shares(service) or {}), ""))
        reason = f"Revision {revision} gets all requests."
        refused = self._given_up(service, record, revision, hold)

        def shift() -> Service:
            hold.look()
            return hold.shift(
                whole(revision), share=ALL, outcome="rolled back manually", reason=reason, refused=refused
            )

        try:
            service = self.patience.change(shift, self.say)
        except ScriptError as error:
            reason = (
                f"The requests could not be given to {revision}, which was tried for up to {duration(self.patience.limit_s)}: {error} "
                f"Run {command(self.stack, '--to', revision)} again."
            )
            return self._report(self._last(), "not rolled back", revision, reason, progress)
        return self._refreshed(self._report(service, "rolled back manually", revision, reason, progress))

    def _refused(
        self, service: Service, state: RolloutState, record: RolloutRecord | UnreadableRecord, *, again: bool
    ) -> RolloutReport | None:
        """Return the report of a run that must not begin; None if it may."""
        if isinstance(record, UnreadableRecord):
            if again:
                return None
            sentence = view_of(service, self.stack, self.now()).sentence
            return self._report(service, "unknown", state.latest, sentence)
        if record.runs and record.holder is not None and not holder_is_gone(record, self.now()):
            reason = (
                f"{who(record.holder)} rolls out {record.revision}, so that nothing was changed here. Run the same command again when that has "
                f"ended; {command(self.stack, '--to', record.serving)} takes over at once and goes back."
            )
            return self._report(service, "held", state.latest, reason)
        refused = record.refusal_of(state.latest)
        if refused is not None and state.phase == "roll out" and not again:
            reason = refusal_text(refused, self.stack, self.now())
            if state.share:
                back = command(self.stack, "--to", state.serving)
                reason = f"{state.share} % of the requests go to {state.latest}, and {back} goes back. {reason}"
            return self._report(service, "refused", state.latest, reason)
        return None

    def _took_over(self, record: RolloutRecord) -> str:
        """Return whose roll-out this run ends, as a sentence; empty if none runs."""
        if not record.runs or record.holder is None:
            return ""
        gone = holder_is_gone(record, self.now())
        sentence = f"Took over the roll-out of {who(record.holder)}: {gone or 'going back does not wait for it'}."
        self.say(sentence)
        return sentence

    def _hold(self, service: Service, before: RolloutRecord, *, revision: str, serving: str) -> Hold:
        record = RolloutRecord(holder=this_run(self.now()), revision=revision, serving=serving, refused=before.refused)
        return Hold(service=self.service, record=record, now=self.now, seen=service)

    def _given_up(self, service: Service, record: RolloutRecord, revision: str, hold: Hold) -> RefusedRevision | None:
        """Return the refusal of the latest revision if `--to` takes requests away from it, so that no later run gives them back unasked."""
        latest = short_name(service.get("latestCreatedRevision"))
        had_some = latest in (known_shares(service) or {}) or (record.runs and record.revision == latest)
        if latest == revision or not had_some or hold.record.holder is None:
            return None
        words = f"{who(hold.record.holder)} gave all requests to {revision} with --to."
        return record.refusal_of(latest) or refusal(latest, words, self.now())

    def _not_ready(self, service: Service, state: RolloutState) -> RolloutReport:
        shares = known_shares(service) or {}
        serves = f"{state.serving} serves." if len(shares) == 1 else f"the requests go to {shares_text(shares)}."
        back = f" {command(self.stack, '--to', state.serving)} gives all of them to it." if len(shares) > 1 else ""
        reason = (
            f"Revision {state.latest} did not start, so that it gets no requests; {serves}{back} "
            f"`pulumi up --stack {self.stack}` says why. Change the settings and run it again."
        )
        return self._refreshed(self._report(service, "failed", state.latest, reason))

    def _held(
        self, hold: Hold, state: RolloutState, progress: Progress, work: Callable[[], RolloutReport]
    ) -> RolloutReport:
        """Do the work of a hold, and end with a report whatever happens: never with a change over another's work."""
        try:
            return work()
        except (LostHoldError, ServiceChangedError) as error:
            hold.interrupted(str(error))
            return self._report(self._last(), "stopped", state.latest, str(error), progress)
        except ScriptError as error:
            hold.interrupted(str(error))
            service = self._last()
            reason = (
                f"{error} The requests stay as they were divided last. {command(self.stack)} continues, "
                f"{command(self.stack, '--to', state.serving)} goes back."
            )
            return self._report(service, "interrupted", state.latest, reason, progress)
        except KeyboardInterrupt:
            hold.interrupted("The run was ended by Ctrl-C or SIGTERM.")
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
        self.say(f"{new} gets the tag {NEXT_TAG} and {state.share} % of the requests; {old} serves the others")
        service = hold.shift(divided(old, new, state.share), share=state.share)
        fault = self._gate(service, state.share, progress, smoke=True)
        for share in steps_left(self.plan, state.share):
            if fault:
                break
            self.say(f"{new} gets {share} % of the requests")
            service = hold.shift(divided(old, new, share), share=share)
            fault = self._gate(service, share, progress, smoke=False)
        if fault:
            return self._back(hold, state, progress)
        return self._finish(hold, replace(state, share=ALL), progress, "rolled out", write=True)

    def _gate(self, service: Service, share: int, progress: Progress, *, smoke: bool) -> str:
        """Check the new revision, keep the result, and return what is wrong with it; empty if nothing is.

        A check that cannot be made is a fault: a revision that does not answer must not keep its requests. If this machine cannot reach
        Google or may not call the service, the gate is not `checked`.
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
            raise ScriptError(f"Google gave no URL for the tags {NEXT_TAG} and {LAST_TAG}.")
        if smoke:
            self.say("checking what it answers")
            fault = self.gates.smoke(urls[NEXT_TAG])
            if fault:
                return Gate(share=share, fault=fault)
            progress.before = self._measured_before(urls[LAST_TAG])
        self.say(f"measuring the new revision at {share} % of the requests")
        measured = self.gates.measure(urls[NEXT_TAG], self.plan.requests)
        return Gate(share=share, fault=fault_of(self.plan, progress.before, measured), measured=measured)

    def _measured_before(self, url: str) -> Measured | None:
        """Measure the old revision; None if it does not answer, because then the new one is what helps."""
        self.say("measuring the old revision")
        try:
            return self.gates.measure(url, self.plan.requests)
        except ScriptError as error:
            self.say(f"the old revision could not be measured, so that nothing is compared with it: {error}")
            return None

    def _back(self, hold: Hold, state: RolloutState, progress: Progress) -> RolloutReport:
        """Give all requests to the old revision, for minutes if Google does not answer."""
        old, new, last = state.serving, state.latest, progress.gates[-1]
        self.say(f"going back to {old}: {last.fault}")
        failed = f"Revision {new} failed its check at {last.share} % of the requests. {last.fault}"
        outcome: RecordedOutcome = "rolled back"
        reason = f"{failed} All requests go to {old} again."
        if not last.checked:
            outcome = "not verified"
            reason = (
                f"Revision {new} could not be checked at {last.share} % of the requests, so that {old} has all of them. {last.fault} "
                f"When this machine reaches the service, {command(self.stack)} continues."
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
            hold.interrupted(f"{failed} The way back was ended by Ctrl-C or SIGTERM.", refused)
            raise
        return self._refreshed(self._report(service, outcome, new, reason, progress))

    def _not_rolled_back(
        self, hold: Hold, state: RolloutState, progress: Progress, error: ScriptError, refused: RefusedRevision | None
    ) -> RolloutReport:
        """Return the report of a revision that failed and may still get requests."""
        new, last, service = state.latest, progress.gates[-1], self._last()
        shares = None if service is None else known_shares(service)
        what = (
            f"which failed its check at {last.share} % of the requests"
            if last.checked
            else "which could not be checked"
        )
        still = (
            f"Whether {new} still gets requests, {what}, is unknown: it had {hold.record.share} % when Google last answered."
            if shares is None
            else f"{shares.get(new, 0)} % of the requests still go to {new}, {what}."
        )
        reason = (
            f"{still} {last.fault} Going back was tried for up to {duration(self.patience.limit_s)}: {error} "
            f"Run {command(self.stack, '--to', state.serving)}."
        )
        hold.interrupted(f"{last.fault} Google took no change for the way back.", refused)
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
        """Pin the traffic by name without tags, delete stale revisions, and refresh the state."""
        reason = f"Revision {state.latest} {'gets' if outcome == 'rolled out' else 'has'} all requests."
        service = hold.seen
        if write:
            service = hold.shift(whole(state.latest), share=ALL, outcome=outcome, reason=reason)
        retired = self._retired(service, [state.latest, state.serving])
        report = self._report(service, outcome, state.latest, reason, progress)
        return self._refreshed(replace(report, retired=tuple(retired)))

    def _retired(self, service: Service, kept: Sequence[str]) -> Sequence[str]:
        """Delete what is stale. A revision that cannot be deleted is told and left: the traffic is what it should be."""
        try:
            revisions = self.service.revisions()
        except ScriptError as error:
            self.say(str(error))
            return ()
        if kept[0] == kept[1]:
            # After a roll-out that was interrupted at its end, the newest of the others is the last good one.
            kept = [*kept, *_newest_ready(revisions, other_than=kept[0])]
        retired: list[str] = []
        for revision in stale_revisions(service, revisions, kept):
            try:
                self.service.delete_revision(revision)
            except ScriptError as error:
                self.say(str(error))
                continue
            self.say(f"deleted the stale revision {revision}")
            retired.append(revision)
        return retired

    def _last(self) -> Service | None:
        """Return the service as it is now; None if it cannot be read."""
        with suppress(ScriptError):
            return self.service.read()
        return None

    def _refreshed(self, report: RolloutReport) -> RolloutReport:
        """Let the state take over the traffic. A report says it if that fails: the requests are where it says."""
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
    """Refuse a revision that never started. Raises CommandRefusedError."""
    known = {short_name(each.get("name")): each for each in revisions}
    able = sorted(name for name, each in known.items() if is_ready(each))
    if revision not in able:
        why = "did not start" if revision in known else "does not exist"
        raise CommandRefusedError(f"Revision {revision} {why}; those that can serve are {', '.join(able) or 'none'}.")


def _newest_ready(revisions: Sequence[Mapping[str, object]], *, other_than: str) -> Sequence[str]:
    ready = [each for each in revisions if is_ready(each) and short_name(each.get("name")) != other_than]
    newest = sorted(ready, key=lambda each: str(each.get("createTime")))[-1:]
    return [short_name(each.get("name")) for each in newest]
