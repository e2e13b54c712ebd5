"""Check the latest revision of a service at its tag, and move all traffic to it; or roll back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import monotonic, sleep
from typing import Final, Literal

from cloud.google_api import GoogleApi, GoogleListError
from cloud.prices import container_usd_per_hour
from contracts.errors import CommandRefusedError, ScriptError
from contracts.fields import as_mapping, as_sequence
from contracts.outputs import StackOutputs
from contracts.service_traffic import (
    ALL,
    NEXT_TAG,
    Service,
    TrafficTarget,
    is_ready,
    known_shares,
    serving_shares,
    shares_text,
    short_name,
    tag_urls,
    targets_of,
)
from scripts.cli.access import AccessError, IdTokenSource, open_stack_access
from scripts.cli.dry_run_id import dry_run_id
from scripts.smoke.face import run_smoke, stack_target

IMAGE_PULL_S: Final = 15 * 60
"""Import of an image and overhead of a start, in addition to the start-up budget. Assumed."""
PAUSE_S: Final = 2.0

Outcome = Literal["rolled out", "rolled back", "rolled back manually", "nothing to do"]
"""`rolled back`: a check failed. `rolled back manually`: by --to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutDryRun:
    """Result of a dry run."""

    stack: str
    phase: Literal["roll out", "finish", "roll back"]
    """`finish`: the latest revision has all traffic. `roll back`: by --to."""
    revision: str
    serving: str
    """The revision that has the most traffic now, other than `revision` if one exists."""
    traffic: Mapping[str, int]
    usd_per_hour: float | None
    """Maximum cost per hour of the new revision and those with traffic; None if unknown."""
    usd_per_hour_after: float | None

    @property
    def plan(self) -> str:
        """Id of the dry run: a hash of all its fields."""
        return dry_run_id(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReport:
    """Result of a rollout."""

    stack: str
    outcome: Outcome
    revision: str
    reason: str
    traffic: Mapping[str, int] | None
    """Traffic percentage of each revision; None if unknown."""
    state_is_behind: bool = False
    """True if the refresh of the stack's state failed. Run `pulumi refresh`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A rollout of one stack's service."""

    stack: str
    name: str
    """Full name of the service."""
    api: GoogleApi
    start_s: float
    smoke: Callable[[str, str], str]
    """See `smoke_fault`; called with the URL of a tag and of the service."""
    refresh: Callable[[], None]
    say: Callable[[str], None]

    def look(self, to: str | None = None) -> tuple[RolloutDryRun, Service]:
        """Return what `run` will do, without a change, and the service that it was read from.

        Raises CommandRefusedError if that revision cannot serve, and ScriptError.
        """
        service = self._get(self.name)
        revisions = self._revisions()
        name = short_name(self.name)
        shares = known_shares(service)
        if shares is None:
            raise ScriptError(f"Google did not return the traffic split of {name}. Retry in a minute.")
        if not shares:
            raise CommandRefusedError(
                f"No revision of {name} serves yet. Run `gemma up {self.stack}` until it succeeds."
            )
        latest = short_name(service.get("latestCreatedRevision"))
        ready = short_name(service.get("latestReadyRevision"))
        new = to or latest
        able = sorted(revision for revision, each in revisions.items() if is_ready(each))
        if to is not None and to not in able:
            why = "did not start" if to in revisions else "does not exist"
            raise CommandRefusedError(f"Revision {to} {why}. Ready revisions: {', '.join(able) or 'none'}.")
        if to is None and ready != latest:
            raise CommandRefusedError(
                f"Revision {latest} did not start and gets no traffic. `gemma up {self.stack}` reports the cause. "
                f"Change the settings and run it again. {shares_text(shares)} serves."
            )
        rates = {each: _most_usd_per_hour(revisions.get(each, {}), self.name) for each in {new, *shares}}
        known = [rate for rate in rates.values() if rate is not None]
        look = RolloutDryRun(
            stack=self.stack,
            phase="roll back" if to is not None else "finish" if [*shares] == [latest] else "roll out",
            revision=new,
            serving=next((revision for revision in shares if revision != new), new),
            traffic=dict(shares),
            usd_per_hour=round(sum(known), 4) if len(known) == len(rates) else None,
            usd_per_hour_after=rates[new],
        )
        return look, service

    def run(self, look: RolloutDryRun, service: Service) -> RolloutReport:
        """Apply the dry run, if the service has not changed since.

        Raises AccessError if the revision was not reached, and ScriptError. No traffic was moved then.
        """
        new, reason = look.revision, f"Revision {look.revision} has all traffic."
        outcome: Outcome = "nothing to do"
        if look.phase == "roll out":
            service = self._tagged(service, new)
            self.say(f"running the smoke checks on {new}, {look.serving} serves")
            fault = self.smoke(tag_urls(service)[NEXT_TAG], str(service.get("uri")))
            outcome = "rolled back" if fault else "rolled out"
            if fault:
                reason = f"Revision {new} failed its checks, so {look.serving} has all traffic. {fault}"
            service = self._shift(service, _whole(look.serving if fault else new))
        elif look.phase == "roll back":
            self.say(f"routing 100% of traffic to {new} (cold start if it has no instance)")
            outcome, service = "rolled back manually", self._shift(service, _whole(new))
        traffic = known_shares(service)
        report = RolloutReport(stack=self.stack, outcome=outcome, revision=new, reason=reason, traffic=traffic)
        try:
            self.refresh()
        except ScriptError as error:
            return replace(report, state_is_behind=True, reason=f"{reason} {error}")
        return report

    def _tagged(self, service: Service, new: str) -> Service:
        """Return the service with the tag, as `pulumi up` leaves it. A failed check removes it."""
        if any(target.tag == NEXT_TAG and target.revision in {None, new} for target in targets_of(service)):
            return service
        self.say(f"tagging {new} as {NEXT_TAG}")
        shares = {new: 0, **serving_shares(service)}
        return self._shift(
            service,
            [
                TrafficTarget(revision=each, percent=percent, tag=NEXT_TAG if each == new else None)
                for each, percent in shares.items()
            ],
        )

    def _get(self, name: str) -> Service:
        try:
            return self.api.get("run", f"v2/{name}")
        except GoogleListError as error:
            raise ScriptError(f"Cannot read {name}: {error} Run `gemma status {self.stack}`.") from None

    def _revisions(self) -> Mapping[str, Mapping[str, object]]:
        try:
            pages = list(self.api.pages("run", f"v2/{self.name}/revisions"))
        except GoogleListError as error:
            raise ScriptError(f"Cannot list the revisions of {short_name(self.name)}: {error}") from None
        found = [as_mapping(each) for page in pages for each in as_sequence(page.get("revisions"))]
        return {short_name(each.get("name")): each for each in found}

    def _shift(self, seen: Service, targets: Sequence[TrafficTarget]) -> Service:
        """Set the traffic of the service as `seen`, and return the service after it."""
        body = {"traffic": [target.to_api() for target in targets], "etag": seen.get("etag")}
        again = f"Another client may have changed it: run `gemma status {self.stack}`, then this again."
        try:
            operation = self.api.change(
                "PATCH", "run", f"v2/{self.name}", body=body, parameters={"updateMask": "traffic"}
            )
        except GoogleListError as error:
            raise ScriptError(f"Cannot move the traffic of {short_name(self.name)}: {error} {again}") from None
        end_s = monotonic() + self.start_s + IMAGE_PULL_S
        while not operation.get("done") and monotonic() < end_s:
            sleep(PAUSE_S)
            operation = self._get(str(operation.get("name")))
        after = self._get(self.name)
        # If the latest revision failed, the operation has an error although the traffic changed.
        shares = {target.revision: target.percent for target in targets if target.percent}
        if serving_shares(after) != shares or {*targets_of(after)} != {*targets}:
            why = as_mapping(operation.get("error")).get("message") or "the change has not finished."
            raise ScriptError(f"The traffic of {short_name(self.name)} was not moved: {why} {again}")
        return after


def smoke_fault(stack: str, outputs: StackOutputs, say: Callable[[str], None], url: str, service_url: str) -> str:
    """Run all smoke checks at the URL of a tag. Return the failures as a sentence; empty if none.

    Cloud Run accepts tokens for the service's own URL there. Raises AccessError.
    """
    with open_stack_access(outputs) as access:
        tokens = IdTokenSource(service_url) if access.id_tokens is not None else None
        tagged = replace(access, base_url=url.rstrip("/"), id_tokens=tokens)
        report = run_smoke(tagged, stack_target(stack, outputs), say)
    if report.interrupted:
        raise KeyboardInterrupt
    if report.verdict == "unreachable":
        raise AccessError("; ".join(check.outcome.detail for check in report.of_state("unknown")))
    if report.passed:
        return ""
    failed = [f"{check.name}: {check.outcome.measured} {check.outcome.detail}".strip() for check in report.failed]
    return f"The smoke checks failed: {'; '.join(failed) or 'some did not run'}."


def _whole(revision: str) -> Sequence[TrafficTarget]:
    """Return the targets after a rollout: no tag, because a tag keeps instances running."""
    return (TrafficTarget(revision=revision, percent=ALL),)


def _most_usd_per_hour(revision: Mapping[str, object], service: str) -> float | None:
    """Return the maximum cost of a revision per hour; None if Google does not report it."""
    most = as_mapping(revision.get("scaling")).get("maxInstanceCount")
    region = service.partition("/locations/")[2].partition("/")[0]
    rate = container_usd_per_hour({"template": revision}, region) if revision else 0.0
    return round(rate * int(str(most)), 4) if rate and most else None
