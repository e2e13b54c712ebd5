"""Keep the record of a stack's machines (contracts.run_record): before any change, and after a machine is created.

Pulumi does not manage the record, because the account's description is one of its `ignoreChanges`, so neither an `up` nor a refresh removes it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pulumi
from tenacity import retry, retry_if_exception, stop_after_attempt

from cloud.capacity import QueuedResource, capacity_names
from cloud.clock import GOOGLE_CLOCK
from cloud.google_calls import GoogleCallError, call_now
from cloud.guard import limits_line
from cloud.prices import seen_instance, seen_queued, seen_service
from contracts.errors import CommandRefusedError
from contracts.resource_types import CAPACITY_TYPE, SERVICE_TYPE
from contracts.run_record import MOST_BYTES, RecordError, RunRecord, Seen
from stacks.base import Context
from stacks.bound_hooks import bind
from stacks.planned import doctor_hint

LIMIT_S: Final = 20.0
_TRIES: Final = 3
_PAUSE_S: Final = 1.0
_NOT_FOUND: Final = 404
_NO_SUCH_ZONE: Final = frozenset({403, _NOT_FOUND})
"""Google answers 403 for a zone that does not exist, and if the caller lacks permission."""
_CHANGED: Final = 409
_FATAL: Final = 500
_TOO_MANY: Final = 429


def _may_pass(error: BaseException) -> bool:
    """Return whether the response was lost or Google requests a pause."""
    return isinstance(error, GoogleCallError) and (error.status in {0, _TOO_MANY} or error.status >= _FATAL)


def _was_changed(error: BaseException) -> bool:
    return isinstance(error, GoogleCallError) and error.status == _CHANGED


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKeeper:
    """Names of a stack's record and its machines."""

    project: str
    stack: str
    account: str
    """Full name of the account."""
    identity: str
    """Words in the description that identify the stack's account."""
    machines: Sequence[str] = ()
    """Possible full names of its queued resources or instances, or the name of its Cloud Run service."""
    has_limits: bool = False

    @retry(retry=retry_if_exception(_was_changed), stop=stop_after_attempt(_TRIES), reraise=True)
    def note(self) -> None:
        """Record Google's current values. Raises GoogleCallError, RecordError."""
        account = self._account()
        if account is None:
            return
        description = str(account.get("description") or "")
        if not set(self.identity.split()) <= set(description.split()):
            return  # another owner's account of the same name, so Google will reject ours
        before = RunRecord.of(description) or RunRecord()
        seen, complete = self._seen()
        text = before.after(seen, int(GOOGLE_CLOCK.now().timestamp()), complete=complete).written_into(description)
        if text == description:
            return
        if len(text.encode()) > MOST_BYTES:
            raise RecordError(text)
        changed = {"description": text, **({"etag": account["etag"]} if "etag" in account else {})}
        body = {"serviceAccount": changed, "updateMask": "description"}
        self._call("iam", f"v1/{self.account}", body)

    def note_first(self) -> None:
        """Record what this `up` may delete. Raises CommandRefusedError if the stack has limits."""
        try:
            self.note()
        except (GoogleCallError, RecordError) as error:
            text = (
                f"First start and cost of stack {self.stack} could not be recorded in the description of {self.account} "
                f"({_why(error)})."
            )
            if self.has_limits:
                raise CommandRefusedError(
                    f"{text} Nothing was changed, because `maxAge` and `maxUsd` rely on the record. Try again. {doctor_hint(self.stack)}"
                ) from None
            pulumi.log.info(f"{text} The stack has no limits, so the update continues.")

    async def note_failed(self, args: pulumi.ErrorHookArgs) -> bool:
        """Record the machine of a failed `up`, which costs money too. Never retries."""
        await self.note_after(args)
        return False

    async def note_after(self, _args: pulumi.ResourceHookArgs | pulumi.ErrorHookArgs) -> None:
        """Record the existing service, and warn on failure. The next `up` records it."""
        try:
            await asyncio.to_thread(self.note)
        except Exception as error:  # noqa: BLE001 - an error of the hook must not fail an update that succeeded
            pulumi.log.warn(
                f"The start of stack {self.stack} could not be recorded in the description of {self.account} ({_why(error)}). "
                "The next `pulumi up` will try again."
            )

    def _account(self) -> Mapping[str, object] | None:
        try:
            return self._call("iam", f"v1/{self.account}")
        except GoogleCallError as error:
            if error.status == _NOT_FOUND or error.reason == "SERVICE_DISABLED":
                return None
            raise

    def _seen(self) -> tuple[Sequence[Seen], bool]:
        """Return the existing machines and the service, and whether all of them could be read."""
        found: list[Seen] = []
        complete = True
        for name in self.machines:
            try:
                one = self._seen_now(name)
            except GoogleCallError as error:
                if error.status not in _NO_SUCH_ZONE:
                    raise
                complete = complete and error.status == _NOT_FOUND
                continue
            if one is not None:
                found.append(one)
        return found, complete

    def _seen_now(self, name: str) -> Seen | None:
        place = name.split("/")[3]
        if "/services/" in name:
            return seen_service(self._call("run", f"v2/{name}"), place)
        if "/instances/" in name:
            return seen_instance(self._call("compute", f"compute/v1/{name}"), place)
        return self._queued(name)

    def _queued(self, name: str) -> Seen | None:
        document = self._call("tpu", f"v2alpha1/{name}")
        made = QueuedResource(document).node_name
        try:
            node = self._call("tpu", f"v2alpha1/{made}") if made else None
        except GoogleCallError as error:
            if error.status != _NOT_FOUND:
                raise
            node = None
        return seen_queued(document, node)

    @retry(
        retry=retry_if_exception(_may_pass),
        stop=stop_after_attempt(_TRIES),
        wait=lambda _: _PAUSE_S,
        reraise=True,
    )
    def _call(self, api: str, path: str, body: Mapping[str, object] | None = None) -> Mapping[str, object]:
        """Return the response of a GET, or of a PATCH with a body. Raises GoogleCallError."""
        verb = None if body is None else "PATCH"
        return call_now(api, path, project=self.project, limit_s=LIMIT_S, body=body, verb=verb)


def keep_runs(context: Context) -> None:
    """Register hooks that keep the stack's record. Raises CommandRefusedError."""
    keeper = keeper_of(context)
    if not pulumi.runtime.is_dry_run():
        keeper.note_first()
        if line := limits_line(context.ownership.limits, context.settings.project):
            pulumi.log.info(line)
    hook = pulumi.ResourceHook("keep-runs", keeper.note_after)
    failed = pulumi.ErrorHook("keep-runs-of-a-failure", keeper.note_failed)

    bound = {
        SERVICE_TYPE: pulumi.ResourceHookBinding(after_create=[hook], after_update=[hook]),
        CAPACITY_TYPE: pulumi.ResourceHookBinding(after_create=[hook], after_update=[hook], on_error=[failed]),
    }
    bind(bound.get)


def keeper_of(context: Context) -> RunKeeper:
    """Return the names of a stack's record and machines."""
    settings, names = context.settings, context.names
    tpu, run, limits = settings.tpu, settings.cloud_run, context.ownership.limits
    capacity = {"project": settings.project, "queuedResourceId": names.base, "api": tpu.api if tpu else ""}
    return RunKeeper(
        project=settings.project,
        stack=names.stack,
        account=f"projects/{settings.project}/serviceAccounts/{names.account_email}",
        identity=context.ownership.description,
        machines=[f"projects/{settings.project}/locations/{run.region}/services/{names.base}"]
        if run
        else capacity_names(capacity, tpu.zones if tpu else ()),
        has_limits=limits.max_age_s is not None or limits.max_usd is not None,
    )


def _why(error: Exception) -> str:
    text = f"its record cannot be read: {error}" if isinstance(error, RecordError) else str(error)
    return text.rstrip(".")
