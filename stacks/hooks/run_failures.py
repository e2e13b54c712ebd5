"""Report why a revision of the Cloud Run service did not start: its last lines in Cloud Logging, and the planner's hint.

The hook never changes the outcome, and takes no longer than `stacks.hooks.container_logs.LIMIT_S`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import pulumi
from pulumi.runtime import get_config_env, get_config_secret_keys_env

from gemma_serving.cloud.clock import GOOGLE_CLOCK
from gemma_serving.cloud.google_calls import GoogleCallError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.masking import LineMask, masked
from gemma_serving.contracts.plain_text import for_terminal
from gemma_serving.contracts.resource_types import SERVICE_TYPE
from gemma_serving.planning.settings.cloud_run import CloudRunSettings, ProbeSettings
from gemma_serving.planning.settings.secrets import API_KEY
from gemma_serving.planning.settings.text import format_memory
from gemma_serving.stacks.base import Context
from gemma_serving.stacks.bound_hooks import bind_types
from gemma_serving.stacks.google_project.propagation import NewGrants
from gemma_serving.stacks.hooks.container_logs import ContainerLine, RevisionLog, last_lines, why_unread
from gemma_serving.stacks.hooks.failure_hints import Cause, FailedStart, cause_of

_SHOWN: Final = 20
_LONGEST_LINE: Final = 400
_NOT_STARTED: Final = re.compile(
    r"user-provided container failed|Container failed to start|container exited|HealthCheckContainer|HEALTH_CHECK_CONTAINER_ERROR|ran out of memory",
    re.IGNORECASE,
)
_OVER_QUOTA: Final = re.compile(r"Quota violated:|Quota exceeded for total allowable|do not have quota for using GPUs")
_DENIED: Final = re.compile(
    r"Permission denied on secret: projects/|does not have storage\.(objects|buckets|folders)\.\w+ access"
)
"""In Cloud Run's error, or in the log of a revision that reads its bucket."""
_REVISION: Final = re.compile(r"revision_name%3D%22(?P<linked>[\w-]+)%22|Revision '(?P<named>[\w-]+)' is not ready")
OUTPUTS_KEPT: Final = "Stack outputs listed with a minus are kept. A failed update removes none."
"""A program with a failed resource registers no outputs. The state keeps the older ones."""
_CLOCK_SKEW: Final = timedelta(minutes=2)


def explain_failures(context: Context, run: CloudRunSettings, probe: ProbeSettings, grants: NewGrants) -> None:
    """Register the hooks of the service: a wait for new grants, and the report."""
    start = FailedStart(
        stack=context.names.stack,
        settings=context.settings,
        run=run,
        plan=context.plan,
        probe=probe,
        bucket=context.settings.bucket.existing or context.names.bucket,
        account=context.names.account_email,
    )
    values = get_config_env()
    secrets = [values[key] for key in get_config_secret_keys_env() if values.get(key)]
    for value in context.secrets.values():  # masked even if the configuration does not mark them as secret
        value.apply(secrets.append)
    report = FailureReport(
        start=start, run=run, probe=probe, service=context.names.base, secrets=secrets, grants=grants
    )
    hook = pulumi.ErrorHook("explain-failed-revision", report.handle)
    settled = pulumi.ResourceHook("wait-for-grants", grants.settle)

    bind_types({SERVICE_TYPE}, pulumi.ResourceHookBinding(on_error=[hook], before_create=[settled]))


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReport:
    """Reports the failures of one service."""

    start: FailedStart
    run: CloudRunSettings
    probe: ProbeSettings
    service: str
    secrets: Sequence[str]
    """Values that must never be shown."""
    grants: NewGrants

    async def handle(self, args: pulumi.ErrorHookArgs) -> bool:
        """Log why the revision did not start. Return False: nothing is retried."""
        message = args.errors[0] if args.errors else ""
        shown = await self._explained(message)
        if self.grants.newest_s is not None and _DENIED.search(f"{message}\n{shown}"):
            stack = self.start.stack
            pulumi.log.warn(
                f"A new grant of {self.start.account} had not taken effect yet. Run `gemma up {stack}` again."
            )
        if args.failed_operation == "update":
            pulumi.log.info(OUTPUTS_KEPT)
        old_key = text_of_old_key(args, self.start.settings.project)
        if old_key:
            pulumi.log.warn(old_key)
        return False

    async def _explained(self, message: str) -> str:
        shown = ""
        try:
            if _OVER_QUOTA.search(message):
                shown = self._over_quota()
            elif _NOT_STARTED.search(message):
                shown = await self.text(message)
        except Exception as error:  # noqa: BLE001 - an error of the hook must not replace Google's
            pulumi.log.warn(f"Cannot explain the log of the revision ({type(error).__name__}).")
        if shown:
            pulumi.log.error(shown)
        return shown

    async def text(self, message: str) -> str:
        """Return the explanation of a failure with Cloud Run's error `message`."""
        log = self._log(message)
        name = f"Revision {log.revision}" if log.revision else f"The new revision of {self.service}"
        try:
            lines = self._masked(await last_lines(log))
        except GoogleCallError as error:
            said = f"{masked(str(error), self.secrets).rstrip('.')}."
            why = why_unread(log.project, status=error.status, reason=error.reason, said=said)
            return f"{name} did not start, and its log cannot be read: {why} To read it, run:\n  {log.command}"
        if not lines:
            return f"{name} did not start, and Cloud Logging has no log lines of it yet. To read them, run:\n  {log.command}"
        cause = cause_of([line.text for line in lines], self.start)
        hint = cause.hint if cause else "No log line shows a known cause."
        text = "\n".join(f"  {line[:_LONGEST_LINE]}" for line in _excerpt(lines, cause))
        return f"{name} did not start. {hint}\nLast log lines:\n{text}\nTo read the whole log, run:\n  {log.command}"

    def _over_quota(self) -> str:
        """Return the quota that the service needs, and the command that reads it."""
        run = self.run
        each = f"{run.cpu} vCPU and {format_memory(run.memory_mib)}"
        return (
            f"The quotas of Cloud Run in {run.region} do not allow cloudRun.maxInstances {run.max_instances} x one GPU, {each}. During an "
            "update, instances of the old revision count too. "
            f"To read the quotas and request more, run `gemma doctor {self.start.stack}`; or lower cloudRun.maxInstances, "
            "cloudRun.cpu or cloudRun.memory."
        )

    def _log(self, message: str) -> RevisionLog:
        found = _REVISION.search(message)
        longest = timedelta(seconds=self.probe.budget_s) + _CLOCK_SKEW  # the revision's probe has just timed out
        return RevisionLog(
            project=self.start.settings.project,
            location=self.run.region,
            service=self.service,
            revision=found["linked"] or found["named"] if found else None,
            since=(GOOGLE_CLOCK.now() - longest).isoformat(),
        )

    def _masked(self, lines: Sequence[ContainerLine]) -> Sequence[ContainerLine]:
        mask = LineMask(tuple(self.secrets))
        return [ContainerLine(source=line.source, text=for_terminal(mask(line.text))) for line in lines]


def text_of_old_key(args: pulumi.ErrorHookArgs, project: str) -> str:
    """Return a warning that the API key from before a rotation still works; empty without a rotation."""
    old, new = _api_key(args.old_inputs), _api_key(args.new_inputs)
    if old is None or new is None or old == new:
        return ""
    name, version = old
    parts = name.split("/")
    secret = parts[-1]
    owner = parts[1] if len(parts) > 1 else project
    return (
        "The API key was rotated, but the revision with the new key did not start. The old revision keeps serving, and the OLD KEY STILL WORKS "
        f"(version {version} of secret {secret}). Fix the cause and deploy again. If the old key has leaked, run "
        f"`gcloud secrets versions disable {version} --secret={secret} --project={owner}`. Then no instance of the old revision starts, and "
        "running ones keep the key until they stop."
    )


def _api_key(inputs: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """Return the secret and the version of the API key in a service's inputs, or None."""
    template = as_mapping(as_mapping(inputs).get("template"))
    for container in map(as_mapping, as_sequence(template.get("containers"))):
        for variable in map(as_mapping, as_sequence(container.get("envs"))):
            source = as_mapping(as_mapping(variable.get("valueSource")).get("secretKeyRef"))
            if variable.get("name") == API_KEY.variable and source.get("secret"):
                return str(source["secret"]), str(source.get("version"))
    return None


def _excerpt(lines: Sequence[ContainerLine], cause: Cause | None) -> Iterator[str]:
    """Yield the last lines, preceded by the line that shows the cause if it is older."""
    shown = lines[-_SHOWN:]
    if cause is not None and all(line.text != cause.line for line in shown):
        yield cause.line
        yield "..."
    for line in shown:
        yield f"[{line.source}] {line.text}"
