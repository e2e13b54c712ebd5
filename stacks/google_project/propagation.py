"""Require the APIs of a stack, and wait until recent changes at Google take effect.

The provider `gcp` retries none of them (google/transport/error_retry_predicates.go of hashicorp/terraform-provider-google, 2026-11: 429, 500,
502, 503 and a few texts). So hooks of the Pulumi engine create a resource again that could not be created.
"""

import asyncio
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import pulumi

from gcp_tpu_provider import refusals
from gemma_serving.cloud.clock import WaitClock, real_s
from gemma_serving.cloud.enabled import await_api, require_apis
from gemma_serving.cloud.google_api import connect, lookup
from gemma_serving.cloud.kinds import POLICIES, last_segments
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.three_answers import Answer, Present, Unknown
from gemma_serving.stacks.bound_hooks import bind
from gemma_serving.stacks.planned import doctor_hint

LIMIT_S: Final = 300.0
"""Maximum wait for one resource. Google's error text names "a few minutes" for an API; 60 s is usual for an account."""
GRANT_S: Final = 420.0
"""Maximum delay of a grant (cloud.google.com/iam/docs/access-change-propagation, 2026-11: "Typically 2 minutes, potentially 7 minutes")."""
GRANT_WAIT_S: Final = 120.0
"""Usual delay of a grant, from the same page. No call tells whether a grant to another account works already."""
ACCOUNT_S: Final = 120.0
"""Maximum wait for one resource if Google's error does not distinguish a new account, role or permission from a missing one: twice the usual
minute."""

_RESOURCE_MANAGER: Final = "cloudresourcemanager"
_FIRST_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 20.0
_REFUSED: Final = re.compile(r"\bError (?P<status>[45]\d\d)\b")
"""HTTP status in an error of the provider `gcp`. Google may return 500 to 504 after it has created the resource."""
_AWAITED: Final[Mapping[str, float]] = {
    refusals.API_OFF: LIMIT_S,
    refusals.AGENT_MISSING: GRANT_S,
    refusals.ACCOUNT_MISSING: LIMIT_S,
    refusals.ACT_AS: ACCOUNT_S,
    refusals.PERMISSION: ACCOUNT_S,
    refusals.ROLE_MISSING: ACCOUNT_S,
}
"""Longest wait in seconds for what Google's words name, by their meaning."""
_ALERT_TYPES: Final = "gcp:monitoring/"
ALERT_ROLES: Final = ("roles/monitoring.editor", "roles/logging.configWriter")
"""Roles that create alert policies, the second for policies on log lines (cloud.google.com/unified-maintenance/docs/access-control, 2025-08;
hashicorp/terraform-provider-google#14598: `roles/monitoring.admin` alone is denied)."""
_UPSTREAM: Final = frozenset({refusals.UPSTREAM, refusals.AGENT_MISSING, refusals.SECRET_MISSING})
_GRANT_TYPE: Final = re.compile(r"gcp:(?!cloudrunv2)\w+/\w*(?i:iammember):\w+")
"""Grants, except those on a service, because nothing in a stack calls it."""


def require_enabled(project: str, apis: Sequence[str]) -> None:
    """Raise CommandRefusedError if APIs of the stack are off. A preview only warns."""
    try:
        require_apis(project, apis, say=pulumi.log.info)
    except CommandRefusedError as error:
        if not pulumi.runtime.is_dry_run():
            raise
        pulumi.log.warn(f"`gemma up` will fail: {error}")


def require_resource_manager(project: str, clock: WaitClock | None = None) -> None:
    """Wait for Cloud Resource Manager. Raises CommandRefusedError if it stays off or the project cannot be read.

    The provider's getProject reads the billing account as well, and fails if the Cloud Billing API, which no stack uses, is off.
    A preview needs no such read, so it does not wait.
    """
    answer = _read_project(project, clock or WaitClock())
    is_off = isinstance(answer, Unknown) and answer.cause == "api off"
    if isinstance(answer, Present) or (is_off and pulumi.runtime.is_dry_run()):
        return
    why = answer.why if isinstance(answer, Unknown) else "no such project"
    names_fix = isinstance(answer, Unknown) and answer.cause in {"no connection", "no login"}
    hint = "" if names_fix else f" {doctor_hint(pulumi.get_stack())}"
    raise CommandRefusedError(f"Cannot read project {project}: {why.rstrip('.')}.{hint}")


def _read_project(project: str, local: WaitClock) -> Answer[Mapping[str, object]]:
    google, path = connect(project), f"v1/projects/{project}"
    if pulumi.runtime.is_dry_run():
        return lookup(google, _RESOURCE_MANAGER, path)
    clock = WaitClock(now_s=lambda: local.now_s() / real_s(1.0), sleep=lambda seconds: local.sleep(real_s(seconds)))
    try:
        return await_api(google, _RESOURCE_MANAGER, path, say=pulumi.log.info, clock=clock)
    except ScriptError as error:
        return Unknown(str(error))


def awaited_change(message: str) -> tuple[str, float] | None:
    """Return the API, account or role that an error waits for, and for how many seconds."""
    found = refusals.read(message)
    what, limit_s = found.names.get("what"), _AWAITED.get(found.meaning)
    return (what, limit_s) if what and limit_s else None


def exists_hint(message: str) -> str | None:
    """Return the fix if an error reports that a resource exists or may exist."""
    meaning, status = refusals.read(message).meaning, _status(message)
    if meaning == refusals.EXISTS or (status == HTTPStatus.CONFLICT and meaning != refusals.CONFLICT):
        cause = "A resource of this stack already exists."
    elif HTTPStatus.INTERNAL_SERVER_ERROR <= status <= HTTPStatus.GATEWAY_TIMEOUT:
        cause = "Google failed, and a resource may exist that is not in the state."
    else:
        return None
    stack = pulumi.get_stack()
    return f"{cause} Run `gemma up {stack}`, which imports what has this stack's labels and names the others."


def image_advice(name: str, message: str) -> str | None:
    """Return the setting to check after an error of an image or its repository."""
    meaning = refusals.read(message).meaning
    if name.startswith(("image", "docker-hub-token")) and meaning in _UPSTREAM:
        return (
            "Artifact Registry cannot use the account of gemma-serving:dockerHub. Check that username is the account, and that tokenSecret is an "
            "enabled version with its access token (`gcloud secrets versions describe`)."
        )
    if meaning == refusals.IMAGE:
        return (
            "Cloud Run reports this if the image does not exist, if its service agent cannot read the repository, or if Docker Hub denies the pull "
            "to Artifact Registry. Check gemma-serving:image with `gemma doctor`. "
            "Beyond the limit for pulls without an account, set gemma-serving:dockerHub."
        )
    return None


def deleted_account_hint(message: str, type_: str, inputs: Mapping[str, object], *, project: str) -> str | None:
    """Return the command that removes the grant of a deleted account that blocks a grant.

    Google keeps the grants of a deleted account as `deleted:serviceAccount:EMAIL?uid=N` for a time, and rejects a policy that also names a
    new account with that e-mail (GoogleCloudPlatform/k8s-config-connector#279).
    """
    deleted = refusals.read(message).names.get("deleted")
    if deleted is None or type_ not in POLICIES:
        return None
    words = POLICIES[type_].format_map(last_segments({"project": project, **inputs}))
    return (
        "Google rejects the grant because the policy still names the deleted account of that e-mail. "
        f"Run `gcloud {words} --member={shlex.quote(deleted)} --role={inputs.get('role')}`, then "
        f"`gemma up {pulumi.get_stack()}`."
    )


def alerts_advice(type_: str, message: str, *, project: str) -> str | None:
    """Return the missing roles after a denied call for alerts, and the setting without alerts."""
    if not type_.startswith(_ALERT_TYPES) or refusals.read(message).meaning not in refusals.DENIED:
        return None
    stack = pulumi.get_stack()
    return (
        f"You do not have permission to create the alerts in project {project}: you need {' and '.join(ALERT_ROLES)}. "
        f"To deploy without alerts and metrics, run `pulumi config set --path gemma-serving:alerts.enabled false --stack {stack}`. {doctor_hint(stack)}"
    )


@dataclass(slots=True)
class _Waits:
    """First failure of each resource, and the messages already printed."""

    project: str
    since_s: dict[str, float] = field(default_factory=dict[str, float])
    said: set[str] = field(default_factory=set[str])

    async def again(self, args: pulumi.ErrorHookArgs) -> bool:
        """Pause and return True if the failed operation should be retried."""
        message = args.errors[0] if args.errors else ""
        found = awaited_change(message)
        if found is None:
            self._hint(args, message)
            return False
        what, limit_s = found
        now_s = asyncio.get_running_loop().time()
        waited_s = now_s - self.since_s.setdefault(args.urn, now_s)
        denied = refusals.read(message).names.get("permission")
        fresh = "recently enabled" if what.endswith(" API") else "recently created"
        cause = f"{fresh}, or you lack {denied} on it" if denied else f"{fresh} or missing"
        if waited_s > real_s(limit_s):
            self._hint(args, message)
            pulumi.log.warn(
                f"{what} was still unavailable after {limit_s / 60:.0f} min ({cause}). {doctor_hint(pulumi.get_stack())}"
            )
            return False
        if what not in self.said:
            self.said.add(what)
            pulumi.log.info(f"Waiting up to {limit_s / 60:.0f} min for {what} to become available ({cause}).")
        await asyncio.sleep(real_s(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * len(args.errors))))
        return True

    def _hint(self, args: pulumi.ErrorHookArgs, message: str) -> None:
        """Print the cause and the fix, or that Google's words are new, once per run."""
        alerts = alerts_advice(args.type, message, project=self.project)
        deleted = deleted_account_hint(message, args.type, args.new_inputs or {}, project=self.project)
        hints = [*filter(None, (exists_hint(message), deleted, image_advice(args.name, message), alerts))]
        is_new = refusals.read(message).meaning == refusals.UNKNOWN_WORDS
        if _status(message) and (is_new or not (hints or awaited_change(message))):
            hints.append(refusals.advice(message, project=self.project, consumer=self.project))
        for hint in hints:
            if hint and hint not in self.said:
                self.said.add(hint)
                pulumi.log.warn(hint)


def _status(message: str) -> int:
    """Return the HTTP status in an error of the provider; 0 without one."""
    found = _REFUSED.search(message)
    return int(found["status"]) if found else 0


def _is_server_denied(line: str) -> bool:
    """Return whether a line of Cloud Run's error, or of a server's log, denies its account a secret or the bucket."""
    found = refusals.read(line)
    return found.meaning == refusals.SECRET_ACCESS or found.names.get("permission", "").startswith("storage.")


@dataclass(slots=True)
class NewGrants:
    """Grants created by this run. Google may deny access that relies on them for GRANT_S after the newest."""

    newest_s: float | None = None
    """Time of the newest grant on the clock of the event loop, or None if this run created none."""

    def may_be_denied(self, error: str) -> bool:
        """Return whether an error may only report that a grant of this run does not work yet."""
        return self.newest_s is not None and any(map(_is_server_denied, error.splitlines()))

    async def note(self, _args: pulumi.ResourceHookArgs) -> None:
        """Record that a grant was created."""
        await asyncio.sleep(0)
        self.newest_s = asyncio.get_running_loop().time()

    async def settle(self, _args: pulumi.ResourceHookArgs) -> None:
        """Wait until the grants of this run usually work."""
        now_s = asyncio.get_running_loop().time()
        left_s = 0.0 if self.newest_s is None else self.newest_s + real_s(GRANT_WAIT_S) - now_s
        if left_s > 0:
            simulated = " (simulated)" if real_s(1) != 1 else ""
            waits = f"Waiting {left_s / real_s(1):.0f} s{simulated} for the new grants of the service's account"
            pulumi.log.info(f"{waits} to take effect.")
            await asyncio.sleep(left_s)


def wait_for_google(*, project: str) -> NewGrants:
    """Register hooks that retry every later `gcp` resource. Return the record of new grants."""
    real_s(0)  # rejects an invalid speed before any resource is declared
    grants = NewGrants()
    again = pulumi.ErrorHook("wait-for-google", _Waits(project).again)
    noted = pulumi.ResourceHook("note-grant", grants.note)
    retried = pulumi.ResourceHookBinding(on_error=[again])
    granted = pulumi.ResourceHookBinding(on_error=[again], after_create=[noted])

    def binding(type_: str) -> pulumi.ResourceHookBinding | None:
        if not type_.startswith("gcp:"):
            return None
        return granted if _GRANT_TYPE.fullmatch(type_) else retried

    bind(binding)
    return grants
