"""Restart on Cloud Run: a new revision of the unchanged template, which gets traffic only as a deployment would give it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from cloud.clock import GOOGLE_CLOCK, WaitClock
from cloud.google_api import GoogleApi, GoogleListError
from cloud.google_prices import container_usd_per_hour
from contracts.errors import CommandRefusedError, ScriptError
from contracts.fields import as_mapping
from contracts.labels import PRODUCT, Ownership
from contracts.outputs import StackOutputs
from contracts.service_traffic import (
    ALL,
    TEMPLATE_LABEL,
    Service,
    declared_targets,
    known_shares,
    serving_shares,
    short_name,
)
from engine import runner
from engine.locks import past_dead_locks
from planning.units import duration
from scripts.restart.report import Outcome, PlannedTimes, RestartLook, RestartReport, Say
from scripts.rollout.face import IMAGE_PULL_S, ServiceAtGoogle, most_usd_per_hour, service_region
from stacks.hooks.rollout_state import view_of

POLL_S: Final = 5.0
_SAID_S: Final = 60.0
"""Interval between two lines of progress."""


@dataclass(slots=True, kw_only=True)
class ServiceRestart:
    """A restart of one service."""

    stack: str
    outputs: StackOutputs
    service: ServiceAtGoogle
    times: PlannedTimes
    refresh: Callable[[], None]
    """Refreshes the service in the stack's state."""
    say: Say
    clock: WaitClock
    _seen: Service | None = None

    @classmethod
    def of(
        cls,
        stack: str,
        outputs: StackOutputs,
        name: str,
        times: PlannedTimes,
        *,
        api: GoogleApi,
        say: Say,
        urn: str = "",
    ) -> "ServiceRestart":
        """Return the restart of the service in the stack's state."""
        hint = f"The server was restarted. Run `pulumi refresh --stack {stack}` when no other operation is running."

        def refresh() -> None:
            say("refreshing the service in the stack's state")
            work = partial(runner.change, stack, "refresh", "--target", urn, after_failure=hint)
            past_dead_locks(stack, work, report=say)

        limit_s = outputs.smoke.startup_budget_s + IMAGE_PULL_S
        service = ServiceAtGoogle(api=api, name=name, limit_s=limit_s)
        return cls(
            stack=stack, outputs=outputs, service=service, times=times, refresh=refresh, say=say, clock=WaitClock()
        )

    def look(self) -> RestartLook:
        """Return what the restart will do. Raises CommandRefusedError if it would deploy or move something else."""
        service = self._seen = self.service.read()
        self._require_ours(service)
        self._require_settled(service)
        region = service_region(self.service.name)
        template = as_mapping(service.get("template"))
        most = most_usd_per_hour(template, region)
        keeps = _keeps_traffic(service)
        return RestartLook(
            stack=self.stack,
            target="cloud-run",
            server=self.service.name,
            serving=next(iter(serving_shares(service)), ""),
            requests_fail_s=0,
            start_s=round(self.times.start_s),
            usd_per_hour=None if most is None else round(2 * most, 4),
            usd_per_hour_after=None if most is None else round(2 * most if keeps else most, 4),
            sentences=tuple(self._sentences(service, container_usd_per_hour({"template": template}, region))),
        )

    def run(self) -> RestartReport:
        """Request the revision and wait until it is ready and has its traffic."""
        assert self._seen is not None  # noqa: S101 - `look` comes first
        began_s, seen = self.clock.now_s(), self._seen
        # A first deployment's traffic follows the latest revision; with a rollout the new one must not get it.
        targets = declared_targets(seen, "") if _keeps_traffic(seen) else None
        operation = self.service.renew(seen, targets)
        self.say(f"requested a new revision of {short_name(self.service.name)}")
        after = self._settled(seen, operation, began_s)
        elapsed_s = self.clock.now_s() - began_s
        outcome, reason = self._result(seen, after, elapsed_s)
        report = RestartReport(
            stack=self.stack,
            server=self.service.name,
            outcome=outcome,
            reason=reason,
            elapsed_s=elapsed_s,
            revision=_new_revision(seen, after),
            traffic=known_shares(after),
        )
        return self._refreshed(report)

    def _require_ours(self, service: Service) -> None:
        if not Ownership(project=PRODUCT, stack=self.stack).owns(labels=as_mapping(service.get("labels"))):
            raise CommandRefusedError(
                f"Service {short_name(self.service.name)} does not have the labels of stack {self.stack}, so it was not changed. "
                f"Run `pulumi preview --refresh --stack {self.stack}` to see whose it is."
            )

    def _require_settled(self, service: Service) -> None:
        """Refuse while another change runs, or if the latest revision is not the one that serves."""
        name = short_name(self.service.name)
        if service.get("reconciling"):
            raise CommandRefusedError(
                f"Service {name} is being changed. Wait until `gemma status {self.stack}` shows READY."
            )
        if not _keeps_traffic(service):
            return
        if self.outputs.rollout is not None and self.outputs.rollout.traffic is not None:
            raise CommandRefusedError(
                f"The settings of stack {self.stack} fix the traffic split (cloudRun.rollout.traffic), so a restarted revision would get no traffic. "
                f"Remove it, run `gemma up {self.stack}`, and retry."
            )
        shares, view = known_shares(service), view_of(service, self.stack, GOOGLE_CLOCK.now())
        latest = short_name(service.get("latestCreatedRevision"))
        if view.phase != "none" or shares != {latest: ALL}:
            sentence = view.sentence or "Google does not return one revision with all the traffic."
            raise CommandRefusedError(
                f"A restart copies the latest revision, {latest}, but it does not have all the traffic of {name}. {sentence}"
            )

    def _sentences(self, service: Service, usd_per_hour: float) -> list[str]:
        name, start_s = short_name(self.service.name), self.times.start_s
        serving = ", ".join(serving_shares(service)) or "No revision"
        usd = usd_per_hour * start_s / 3600
        lines = [
            f"{serving} of {name} serves until a new revision of the same template is ready, within {duration(start_s)} (planned). No requests fail.",
            f"Until then both use GPU quota, and the new instance adds ${usd:.2f}.",
        ]
        if _keeps_traffic(service):
            lines.append(
                f"The stack has cloudRun.rollout: the new revision gets traffic only from `gemma rollout {self.stack}`."
            )
        return lines

    def _settled(self, seen: Service, operation: Mapping[str, object], began_s: float) -> Service:
        """Return the service when its new revision is ready or has failed, or as it is after the limit."""
        said_s, after = began_s, seen
        while True:
            try:
                operation, after = self._polled(operation), self.service.read()
            except CommandRefusedError:  # it was deleted
                raise
            except (GoogleListError, ScriptError) as error:
                self.say(f"Cannot read service {short_name(self.service.name)}: {error} Retrying.")
            now_s = self.clock.now_s()
            if (operation.get("done") and not after.get("reconciling")) or now_s - began_s > self.service.limit_s:
                return after
            if now_s - said_s >= _SAID_S:
                said_s = now_s
                self.say(f"{duration(now_s - began_s)}: waiting for {_new_revision(seen, after) or 'the new revision'}")
            self.clock.sleep(POLL_S)

    def _polled(self, operation: Mapping[str, object]) -> Mapping[str, object]:
        if operation.get("done"):
            return operation
        return self.service.api.get("run", f"v2/{operation.get('name')}")

    def _result(self, seen: Service, after: Service, elapsed_s: float) -> tuple[Outcome, str]:
        revision, serving = _new_revision(seen, after), ", ".join(serving_shares(after)) or "No revision"
        logs = f"Run `gemma logs {self.stack}` for the server's log."
        if after.get("reconciling"):
            return "timed out", (
                f"The new revision was not ready within {duration(self.service.limit_s)}. {serving} serves, and Cloud Run continues. "
                f"Run `gemma status {self.stack} --watch`."
            )
        if revision is None:
            return (
                "failed",
                f"Cloud Run created no new revision. {serving} serves. Retry, or run `gemma up {self.stack}`.",
            )
        if short_name(after.get("latestReadyRevision")) != revision:
            why = str(as_mapping(after.get("terminalCondition")).get("message") or "no reason reported").rstrip(".")
            return "failed", f"Revision {revision} did not start: {why}. {serving} serves. {logs}"
        if _keeps_traffic(after):
            return "waits for rollout", (
                f"Revision {revision} is ready without traffic after {duration(elapsed_s)}, and {serving} serves. "
                f"To move the traffic, run `gemma rollout {self.stack}`."
            )
        return "restarted", f"Revision {revision} is serving after {duration(elapsed_s)}."

    def _refreshed(self, report: RestartReport) -> RestartReport:
        """Refresh the state, which names the latest revision. The report includes a failure, which does not affect the server."""
        try:
            self.refresh()
        except ScriptError as error:
            return replace(report, state_is_behind=True, reason=f"{report.reason} {error}")
        return report


def _keeps_traffic(service: Service) -> bool:
    """Return whether `scripts.rollout` moves the traffic of a service."""
    return TEMPLATE_LABEL in as_mapping(service.get("labels"))


def _new_revision(seen: Service, after: Service) -> str | None:
    latest = after.get("latestCreatedRevision")
    return None if latest == seen.get("latestCreatedRevision") else short_name(latest)
