"""Report why a revision of the Cloud Run service did not start: its last lines in Cloud Logging, and the planner's hint.

The hook never changes the outcome, and takes no longer than `LIMIT_S`.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import pulumi
from pulumi.runtime import get_config_env, get_config_secret_keys_env

from gemma_serving.cloud.clock import real_s
from gemma_serving.cloud.google_calls import GoogleCallError
from gemma_serving.cloud.server_logs import LogQuery, ServerLine, newest_page, service_filter, why_unread
from gemma_serving.cloud.shortage import is_over_quota
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.masking import LineMask, masked
from gemma_serving.contracts.plain_text import for_terminal
from gemma_serving.contracts.resource_types import SERVICE_TYPE
from gemma_serving.contracts.server_errors import server_error
from gemma_serving.planning.settings.secrets import API_KEY
from gemma_serving.planning.settings.text import format_memory
from gemma_serving.stacks.base import Context
from gemma_serving.stacks.bound_hooks import bind_types
from gemma_serving.stacks.google_project.propagation import NewGrants
from gemma_serving.stacks.hooks.failure_hints import FailedStart, cause_of

LIMIT_S: Final = 15.0
"""Maximum wait for the log. Entries become listable some seconds after they are written."""
_PAUSE_S: Final = 2.0
_LEAST_PATIENCE_S: Final = 1.0
"""Minimum wait in real seconds, because a simulation's clock does not make this machine faster."""
_NEWEST: Final = 300
"""Entries to read. vLLM's tracebacks are long, and the cause is at their start."""
_END: Final = re.compile(r"Container called exit|terminated on signal|probe failed \d+ time|mount operation failed")
"""Cloud Run's final messages about an instance that did not start."""
_SHOWN: Final = 20
_LONGEST_LINE: Final = 400
_LOG_LINK: Final = re.compile(r"revision_name%3D%22(?P<revision>[\w-]+)%22")
"""Part of Cloud Run's link to the log of a revision that did not start. Other errors have no link."""


def explain_failures(context: Context, grants: NewGrants) -> None:
    """Register the hooks of the service: a wait for new grants, and the report."""
    start = FailedStart(stack=context.names.stack, settings=context.settings, plan=context.plan)
    values = get_config_env()
    secrets = [values[key] for key in get_config_secret_keys_env() if values.get(key)]
    for value in context.secrets.values():  # masked even if the configuration does not mark them as secret
        value.apply(secrets.append)
    report = FailureReport(start=start, service=context.names.base, secrets=secrets, grants=grants)
    hook = pulumi.ErrorHook("explain-failed-revision", report.handle)
    settled = pulumi.ResourceHook("wait-for-grants", grants.settle)

    bind_types({SERVICE_TYPE}, pulumi.ResourceHookBinding(on_error=[hook], before_create=[settled]))


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReport:
    """Reports the failures of one service."""

    start: FailedStart
    service: str
    secrets: Sequence[str]
    """Values that must never be shown."""
    grants: NewGrants

    async def handle(self, args: pulumi.ErrorHookArgs) -> bool:
        """Log why the revision did not start. Return False: nothing is retried."""
        message = args.errors[0] if args.errors else ""
        shown = await self._explained(message)
        if self.grants.may_be_denied(f"{message}\n{shown}"):
            stack = self.start.stack
            pulumi.log.warn(
                f"A new grant of {self.start.account} had not taken effect yet. Run `gemma up {stack}` again."
            )
        old_key = text_of_old_key(args, self.start.settings.project)
        if old_key:
            pulumi.log.warn(old_key)
        return False

    async def _explained(self, message: str) -> str:
        shown = ""
        try:
            if is_over_quota(message):
                shown = self._over_quota()
            elif found := _LOG_LINK.search(message):
                shown = await self.text(found["revision"])
        except Exception as error:  # noqa: BLE001 - an error of the hook must not replace Google's
            pulumi.log.warn(f"Cannot explain the log of the revision ({type(error).__name__}).")
        if shown:
            pulumi.log.error(shown)
        return shown

    async def text(self, revision: str) -> str:
        """Return why a revision did not start: its cause with the line that shows it, or its last lines."""
        settings, run = self.start.settings, self.start.run
        region = run.region if run is not None else ""
        of_revision = service_filter(self.service, region, f'resource.labels.revision_name="{revision}"')
        query = LogQuery(project=settings.project, filter=of_revision, page_size=_NEWEST)
        command = f"To read its log, run `gemma logs {self.start.stack}`."
        mask = LineMask(tuple(self.secrets))
        try:
            lines = [line.masked(mask).masked(for_terminal) for line in await _last_lines(query)]
        except GoogleCallError as error:
            said = f"{masked(str(error), self.secrets).rstrip('.')}."
            why = why_unread(query.project, status=error.status, reason=error.reason, said=said)
            return f"Revision {revision} did not start, and its log cannot be read: {why}"
        if not lines:
            return f"Revision {revision} did not start, and Cloud Logging has no log lines of it yet. {command}"
        texts = [line.text for line in lines]
        cause = cause_of(texts, self.start, reason=server_error(texts)[0])
        if cause is not None:
            denied = (line.text for line in lines if self.grants.may_be_denied(line.text))
            seen = dict.fromkeys((cause.line, *denied))
            shown = "".join(f"\n  {line[:_LONGEST_LINE]}" for line in seen)
            hint = cause.hint or "Its error has no known cause."
            return f"Revision {revision} did not start. {hint} {command}{shown}"
        last = "".join(f"\n  [{line.source}] {line.text}"[:_LONGEST_LINE] for line in lines[-_SHOWN:])
        return (
            f"Revision {revision} did not start, and no log line shows a known cause. {command} Its last lines:{last}"
        )

    def _over_quota(self) -> str:
        """Return the quota that the service needs, and the command that reads it. Empty on a TPU."""
        run = self.start.run
        if run is None:
            return ""
        each = f"{run.cpu} vCPU and {format_memory(run.memory_mib)}"
        zonal = "set cloudRun.zonalRedundancy: false, which uses another GPU quota, or " if run.zonal_redundancy else ""
        return (
            f"The quotas of Cloud Run in {run.region} do not allow cloudRun.maxInstances {run.max_instances} x one GPU, {each}. During an "
            "update, instances of the old revision count too. "
            f"To read the quotas and request more, run `gemma doctor {self.start.stack}`; or {zonal}lower cloudRun.maxInstances, "
            "cloudRun.cpu or cloudRun.memory."
        )


async def _last_lines(query: LogQuery) -> Sequence[ServerLine]:
    """Return the newest lines, oldest first. Waits up to LIMIT_S for Cloud Run's final message.

    Raises GoogleCallError if the log cannot be read at all.
    """
    started_s = monotonic()
    patience_s = max(real_s(LIMIT_S), _LEAST_PATIENCE_S)
    found: Sequence[ServerLine] = ()
    while True:
        try:
            newer = await newest_page(query, limit_s=started_s + LIMIT_S - monotonic())
        except GoogleCallError:
            if found:
                return found
            raise
        complete = len(newer) == len(found) and any(_END.search(line.text) for line in newer)
        found = newer
        pause_s = real_s(_PAUSE_S)
        if complete or monotonic() - started_s + pause_s >= patience_s:
            return found
        await asyncio.sleep(pause_s)


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
