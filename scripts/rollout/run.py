"""Roll out the latest revision, go back to an older one, and let state and cloud agree at the end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from contracts.exit_codes import ExitCode
from contracts.outputs import RolloutPlan
from contracts.service_traffic import ALL, LAST_TAG, NEXT_TAG, Service, is_ready, serving_shares, short_name, tag_urls
from scripts.client.access import AccessError
from scripts.errors import CommandRefusedError, ScriptError
from scripts.rollout.decisions import (
    Measured,
    RolloutState,
    divided,
    fault_of,
    stale_revisions,
    state_of,
    steps_left,
    whole,
)
from scripts.rollout.gates import Gates
from scripts.rollout.service import ServiceAtGoogle

Outcome = Literal["rolled out", "rolled back", "not verified", "gone back", "nothing to do", "failed"]
"""`not verified`: the new revision could not be reached for its check, so that the old one has the requests; nothing is known against the new one."""
_GOOD: frozenset[Outcome] = frozenset({"rolled out", "gone back", "nothing to do"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One check of the new revision, at a share of the traffic."""

    share: int
    fault: str
    """Empty if it passed."""
    checked: bool = True
    """Whether the revision was reached: if not, the fault is not the revision's."""
    measured: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReport:
    """How a roll-out ended."""

    stack: str
    outcome: Outcome
    revision: str
    """The revision that was made last, or that `--to` names."""
    reason: str
    """What happened, whole sentences."""
    traffic: Mapping[str, int]
    """Share of each revision that gets requests."""
    gates: Sequence[Gate] = ()
    before: Measured | None = None
    """What was measured of the revision that served before."""
    retired: Sequence[str] = ()
    """Revisions that were deleted."""

    @property
    def exit_code(self) -> ExitCode:
        """0 if the revision that was asked for serves."""
        return ExitCode.DONE if self.outcome in _GOOD else ExitCode.FAILED

    def to_json(self) -> dict[str, Any]:
        """Return the report in JSON types."""
        return {"schema_version": 1, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A roll-out of one stack's service."""

    stack: str
    plan: RolloutPlan
    service: ServiceAtGoogle
    gates: Gates
    refresh: Callable[[], None]
    """Lets the stack's state take over what Google has."""
    say: Callable[[str], None]

    def to_latest(self) -> RolloutReport:
        """Check the latest revision and give it the traffic in steps; back to the old one if a check fails.

        Raises ScriptError if Google or the engine fails. Whatever ends it, a revision that passed its checks gets the requests.
        """
        service = self.service.read()
        state = state_of(service)
        if state.phase == "nothing serves":
            raise CommandRefusedError(
                f"No revision of {short_name(self.service.name)} serves yet; run `pulumi up --stack {self.stack}` until it succeeds."
            )
        if state.phase == "not ready":
            self.refresh()
            return self._report(
                service,
                "failed",
                state.latest,
                f"Revision {state.latest} did not start, so that it gets no requests; {state.serving} serves. "
                f"`pulumi up --stack {self.stack}` says why. Change the settings and run it again.",
            )
        if state.phase == "finish":
            return self._finish(service, state, Progress(gates=[]), "nothing to do")
        return self._step_by_step(service, state)

    def to_revision(self, revision: str) -> RolloutReport:
        """Give all traffic to an older revision at once. Raises CommandRefusedError if it cannot serve."""
        known = {short_name(each.get("name")): each for each in self.service.revisions()}
        able = sorted(name for name, each in known.items() if is_ready(each))
        if revision not in able:
            why = "did not start" if revision in known else "does not exist"
            raise CommandRefusedError(
                f"Revision {revision} {why}; those that can serve are {', '.join(able) or 'none'}."
            )
        self.say(f"giving all requests to {revision}; an instance starts first if none runs")
        service = self.service.shift(self.service.read(), whole(revision))
        self.refresh()
        return self._report(service, "gone back", revision, f"Revision {revision} gets all requests.")

    def _step_by_step(self, service: Service, state: RolloutState) -> RolloutReport:
        old, new = state.serving, state.latest
        self.say(f"{new} gets the tag {NEXT_TAG} and {state.share} % of the requests; {old} serves the others")
        service = self.service.shift(service, divided(old, new, state.share))
        progress = Progress(gates=[])
        fault = self._gate(service, state.share, progress, smoke=True)
        for share in steps_left(self.plan, state.share):
            if fault:
                break
            self.say(f"{new} gets {share} % of the requests")
            service = self.service.shift(service, divided(old, new, share))
            fault = self._gate(service, share, progress, smoke=False)
        if fault:
            return self._back(service, old, new, fault, progress)
        return self._finish(service, replace(state, share=ALL), progress, "rolled out")

    def _gate(self, service: Service, share: int, progress: "Progress", *, smoke: bool) -> str:
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

    def _checked(self, service: Service, share: int, progress: "Progress", *, smoke: bool) -> Gate:
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

    def _back(self, service: Service, old: str, new: str, fault: str, progress: "Progress") -> RolloutReport:
        self.say(f"going back to {old}: {fault}")
        service = self.service.shift(service, whole(old))
        self.refresh()
        last = progress.gates[-1]
        if not last.checked:
            reason = (
                f"Revision {new} could not be checked at {last.share} % of the requests, so that {old} has all of them. {fault} "
                f"When this machine reaches the service, `python -m scripts.rollout --stack {self.stack}` continues."
            )
            return self._report(service, "not verified", new, reason, progress=progress)
        reason = f"Revision {new} failed its check at {last.share} % of the requests. {fault} All requests go to {old} again."
        return self._report(service, "rolled back", new, reason, progress=progress)

    def _finish(self, service: Service, state: RolloutState, progress: "Progress", outcome: Outcome) -> RolloutReport:
        """Pin the traffic by name without tags, delete stale revisions, and refresh the state."""
        service = self.service.shift(service, whole(state.latest))
        retired = self._retired(service, [state.latest, state.serving])
        self.refresh()
        words = "gets" if outcome == "rolled out" else "has"
        reason = f"Revision {state.latest} {words} all requests."
        return self._report(service, outcome, state.latest, reason, progress=progress, retired=retired)

    def _retired(self, service: Service, kept: Sequence[str]) -> Sequence[str]:
        """Delete what is stale. A revision that cannot be deleted is told and left: the traffic is what it should be."""
        revisions = self.service.revisions()
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

    def _report(
        self,
        service: Service,
        outcome: Outcome,
        revision: str,
        reason: str,
        *,
        progress: "Progress | None" = None,
        retired: Sequence[str] = (),
    ) -> RolloutReport:
        return RolloutReport(
            stack=self.stack,
            outcome=outcome,
            revision=revision,
            reason=reason,
            traffic=serving_shares(service),
            gates=tuple(progress.gates) if progress else (),
            before=progress.before if progress else None,
            retired=tuple(retired),
        )


@dataclass(slots=True, kw_only=True)
class Progress:
    """What was checked so far."""

    gates: list[Gate]
    before: Measured | None = None


def _newest_ready(revisions: Sequence[Mapping[str, object]], *, other_than: str) -> Sequence[str]:
    ready = [each for each in revisions if is_ready(each) and short_name(each.get("name")) != other_than]
    newest = sorted(ready, key=lambda each: str(each.get("createTime")))[-1:]
    return [short_name(each.get("name")) for each in newest]
