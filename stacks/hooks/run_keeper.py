"""Keep the record of a stack's machines (contracts.run_record) in every `up`: before any change, and after a machine or service is created.

The first check records what this `up` may delete; the second records what it created. A preview writes nothing. Pulumi does not manage the
record: the account's description is one of its `ignoreChanges`, so neither an `up` nor a refresh shows or removes it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import pulumi

from cloud.capacity import QueuedResource, capacity_names
from cloud.clock import GOOGLE_CLOCK
from cloud.google_calls import GoogleCallError, call_now
from cloud.prices import seen_instance, seen_queued, seen_service
from contracts.resource_types import CAPACITY_TYPE, SERVICE_TYPE
from contracts.run_record import MOST_BYTES, RecordError, RunRecord, Seen
from stacks.base import Context
from stacks.bound_hooks import bind
from stacks.planned import doctor_hint

T = TypeVar("T")

LIMIT_S: Final = 20.0
_TRIES: Final = 3
_PAUSE_S: Final = 1.0
_NOT_FOUND: Final = 404
_NO_SUCH_ZONE: Final = frozenset({403, _NOT_FOUND})
"""Google answers 403 for a zone that does not exist, and if the caller lacks permission."""
_CHANGED: Final = 409
_FATAL: Final = 500
_TOO_MANY: Final = 429


class RunsNotKeptError(ValueError):
    """The record of a stack with limits could not be read or written. The message names the fix."""


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
    """Possible full names of its queued resources or instances."""
    service: str = ""
    """Full name of its Cloud Run service, or empty."""
    has_limits: bool = False

    def note(self) -> None:
        """Record what Google shows now; again if the account changed in between. Raises GoogleCallError, RecordError."""
        _retried(self._note, _was_changed, pauses=False)

    def _note(self) -> None:
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
        self._call("iam", f"v1/{self.account}", body, verb="PATCH")

    def note_first(self) -> None:
        """Record what this `up` may delete. Raises RunsNotKeptError if the stack has limits, which would otherwise be undercounted."""
        try:
            self.note()
        except (GoogleCallError, RecordError) as error:
            text = (
                f"First start and cost of stack {self.stack} could not be recorded in the description of {self.account} "
                f"({_why(error)})."
            )
            if self.has_limits:
                raise RunsNotKeptError(
                    f"{text} Nothing was changed, because `maxAge` and `maxUsd` rely on the record. Try again. {doctor_hint(self.stack)}"
                ) from None
            pulumi.log.info(f"{text} The stack has no limits, so the update continues.")

    async def note_failed(self, _args: pulumi.ErrorHookArgs) -> bool:
        """Record the machine of a failed `up`, because it costs money even if its server does not start. Never retries."""
        await self._note_after()
        return False

    async def note_after(self, _args: pulumi.ResourceHookArgs) -> None:
        """Record what this `up` has created."""
        await self._note_after()

    async def _note_after(self) -> None:
        """Record what exists, and warn on failure. The guard still sees the machine, and the next `up` records it."""
        try:
            await asyncio.to_thread(self.note)
        except Exception as error:  # noqa: BLE001 - an error of the hook would fail an update that succeeded
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
        for name in (*self.machines, *([self.service] if self.service else [])):
            try:
                one = self._seen_now(name)
            except GoogleCallError as error:
                if error.status not in _NO_SUCH_ZONE:
                    raise
                complete = complete and error.status == _NOT_FOUND
                continue
            found += [] if one is None else [one]
        return found, complete

    def _seen_now(self, name: str) -> Seen | None:
        """Return a machine or the service by its full name, as Google shows it. Raises GoogleCallError."""
        place = name.split("/")[3]
        if "/services/" in name:
            return seen_service(self._call("run", f"v2/{name}"), place)
        if "/instances/" in name:
            return seen_instance(self._call("compute", f"compute/v1/{name}"), place)
        return self._queued(name)

    def _call(
        self,
        api: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        verb: str | None = None,
    ) -> Mapping[str, object]:
        """Return the response of a call. Temporary errors are retried. Raises GoogleCallError."""

        def read() -> Mapping[str, object]:
            return call_now(api, path, project=self.project, limit_s=LIMIT_S, body=body, verb=verb)

        return _retried(read)

    def _queued(self, name: str) -> Seen | None:
        document = self._call("tpu", f"v2alpha1/{name}")
        node: Mapping[str, object] | None = None
        made = QueuedResource(document).node_name
        if made:
            try:
                node = self._call("tpu", f"v2alpha1/{made}")
            except GoogleCallError as error:
                if error.status != _NOT_FOUND:
                    raise
        return seen_queued(document, node)


def keep_runs(context: Context) -> None:
    """Register hooks that keep the stack's record. Raises RunsNotKeptError."""
    keeper = keeper_of(context)
    if not pulumi.runtime.is_dry_run():
        keeper.note_first()
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
        machines=capacity_names(capacity, tpu.zones if tpu else ()),
        service=f"projects/{settings.project}/locations/{run.region}/services/{names.base}" if run else "",
        has_limits=limits.max_age_s is not None or limits.max_usd is not None,
    )


def _may_pass(error: BaseException) -> bool:
    """Return whether another attempt can succeed, because the response was lost or Google requests a pause."""
    return isinstance(error, GoogleCallError) and (error.status in {0, _TOO_MANY} or error.status >= _FATAL)


def _was_changed(error: BaseException) -> bool:
    """Return whether the account changed in between."""
    return isinstance(error, GoogleCallError) and error.status == _CHANGED


def _retried(work: Callable[[], T], passes: Callable[[BaseException], bool] = _may_pass, *, pauses: bool = True) -> T:
    """Return the result of `work`, after up to three attempts if `passes` accepts the error. Raises the last error."""
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed  # noqa: PLC0415 - no preview needs it

    attempts = Retrying(
        stop=stop_after_attempt(_TRIES),
        wait=wait_fixed(_PAUSE_S if pauses else 0),
        retry=retry_if_exception(passes),
        reraise=True,
    )
    return attempts(work)


def _why(error: Exception) -> str:
    text = f"its record cannot be read: {error}" if isinstance(error, RecordError) else str(error)
    return text.rstrip(".")
