"""Keep the record of a stack's machines (contracts.run_record): before any change, and after a machine is created.

No server is created again after the stack has used up `maxAge` or `maxUsd`.

Pulumi does not manage the record, because the account's description is one of its `ignoreChanges`, so neither an `up` nor a refresh removes it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pulumi
from tenacity import retry, retry_if_exception, stop_after_attempt

from gemma_serving.cloud.capacity import ListedQueuedResource, capacity_names
from gemma_serving.cloud.clock import GOOGLE_CLOCK
from gemma_serving.cloud.google_calls import GoogleCallError, call_now
from gemma_serving.cloud.guard import limit_keys, limits_line
from gemma_serving.cloud.kinds import INSTANCE, QUEUED, SERVICE, by_name
from gemma_serving.cloud.prices import seen_instance, seen_queued, seen_service
from gemma_serving.cloud.spending import StackSpending
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.labels import PRODUCT, Ownership, StackLimits
from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.resource_types import CAPACITY_TYPE, SERVICE_TYPE
from gemma_serving.contracts.run_record import MICROS, MOST_BYTES, RecordError, RunRecord, Seen
from gemma_serving.contracts.three_answers import Absent, Answer, Present, Unknown
from gemma_serving.planning.cost.costs import endless_forms
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.stacks.bound_hooks import bind
from gemma_serving.stacks.planned import doctor_hint

if TYPE_CHECKING:  # loads pulumi_gcp, which `gemma up` does not need
    from gemma_serving.stacks.base import Context

LIMIT_S: Final = 20.0
_TRIES: Final = 3
_PAUSE_S: Final = 1.0
_NOT_FOUND: Final = 404
_NO_SUCH_ZONE: Final = frozenset({403, _NOT_FOUND})
"""Google answers 403 for a zone that does not exist, and if the caller lacks permission."""
_CHANGED: Final = 409
_FATAL: Final = 500
_KINDS: Final = {"queuedResources": QUEUED, "instances": INSTANCE, "services": SERVICE}
"""Kind of a server by its collection."""
_TOO_MANY: Final = 429


def _may_pass(error: BaseException) -> bool:
    """Return whether the response was lost or Google requests a pause."""
    return isinstance(error, GoogleCallError) and (error.status in {0, _TOO_MANY} or error.status >= _FATAL)


def _was_changed(error: BaseException) -> bool:
    """Return whether the account changed since it was read (409)."""
    return isinstance(error, GoogleCallError) and error.status == _CHANGED


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRuns:
    """The record of a stack, and its TPU VMs as Google shows them."""

    record: RunRecord
    seen: Sequence[Seen]
    now_s: int
    complete: bool
    """False if a zone could not be read, so it may have a machine that `seen` lacks."""

    @property
    def first_start_s(self) -> int | None:
        """Start of the stack's first machine or service, or None."""
        return self.record.first_start_s(self.seen)

    @property
    def is_running(self) -> bool:
        """True if a machine or the service runs now."""
        return any(one.started_s is not None and one.stopped_s is None for one in self.seen)

    def spent(self, stack: str, limits: StackLimits) -> StackSpending | None:
        """Return the use of the limits, also of limits that are not deployed yet; None if nothing has started.

        The cost of a service is in Cloud Monitoring, so only its age counts here.
        """
        first_s = self.first_start_s
        if first_s is None:
            return None
        micros = self.record.spent_micros + sum(use.micros for use in self.record.uses(self.seen, self.now_s))
        return StackSpending(
            owner=Ownership(project=PRODUCT, stack=stack),
            limits=replace(limits, idle_after_s=None),
            age_s=float(self.now_s - first_s),
            usd=micros / MICROS,
            usd_per_hour=0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecorder:
    """Names of a stack's record and its TPU VMs."""

    project: str
    owner: Ownership
    """The stack, whose description the account must have, with its limits."""
    account: str
    """Full name of the account."""
    machines: Sequence[str] = ()
    """Possible full names of its queued resources or instances, or the name of its Cloud Run service."""

    @property
    def stack(self) -> str:
        """Name of the stack."""
        return self.owner.stack

    @property
    def limits(self) -> StackLimits:
        """Limits of the stack."""
        return self.owner.limits

    @property
    def has_limits(self) -> bool:
        """True if the stack has a limit that the record is needed for."""
        return self.limits.max_age_s is not None or self.limits.max_usd is not None

    @retry(retry=retry_if_exception(_was_changed), stop=stop_after_attempt(_TRIES), reraise=True)
    def note(self) -> StackRuns | None:
        """Record Google's current values, and return them; None without an account of the stack. Raises GoogleCallError, RecordError."""
        found = self._runs()
        if found is None:
            return None
        account, runs = found
        description = str(account.get("description") or "")
        text = runs.record.written_into(description)
        if text == description:
            return runs
        if len(text.encode()) > MOST_BYTES:
            raise RecordError(text)
        changed = {"description": text, **({"etag": account["etag"]} if "etag" in account else {})}
        body = {"serviceAccount": changed, "updateMask": "description"}
        self._call("iam", f"v1/{self.account}", body)
        return runs

    def runs(self) -> Answer[StackRuns]:
        """Return the stack's runs as of now, without recording them. Absent: the stack has no account, so no record."""
        try:
            found = self._runs()
        except (GoogleCallError, RecordError) as error:
            return Unknown(_why(error))
        if found is None:
            return Absent()
        if found[1].first_start_s is None and not found[1].complete:
            return Unknown("Google denied access to a zone of the stack, which may have a TPU VM")
        return Present(found[1])

    def past_limits(self) -> Answer[str]:
        """Return which limits the stack has used up, and the consequence, as a sentence without its full stop."""
        try:
            found = self._runs() if self.has_limits else None
        except (GoogleCallError, RecordError) as error:
            return Unknown(f"the use of {self._limit_names()} could not be read ({_why(error)})")
        return self._past(None if found is None else found[1])

    def note_first(self) -> Answer[str]:
        """Record what this `up` may delete, and return `past_limits` if nothing runs. Raises CommandRefusedError if the stack has limits."""
        try:
            runs = self.note()
            return Absent() if runs is not None and runs.is_running else self._past(runs)
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
            return Absent()

    async def note_failed(self, args: pulumi.ErrorHookArgs) -> bool:
        """Record the TPU VM of a failed `up`, which costs money too. Never retries."""
        await self.note_after(args)
        return False

    async def note_after(self, _args: pulumi.ResourceHookArgs | pulumi.ErrorHookArgs) -> None:
        """Record the existing service, and warn on failure. The next `up` records it."""
        try:
            await asyncio.to_thread(self.note)
        except Exception as error:  # noqa: BLE001 - an error of the hook must not fail an update that succeeded
            pulumi.log.warn(
                f"The start of stack {self.stack} could not be recorded in the description of {self.account} ({_why(error)}). "
                "The next `gemma up` will try again."
            )

    def _past(self, runs: StackRuns | None) -> Answer[str]:
        if not self.has_limits:
            return Absent()
        if runs is None:
            return Unknown(
                f"the use of {self._limit_names()} is unknown, because the account {self.account.rpartition('/')[2]}, which has the record, "
                "does not exist. A guard or another teardown deletes it with the stack, and the next start counts from zero"
            )
        spent = runs.spent(self.stack, self.limits)
        if spent is None or not spent.exceeded:
            return Absent()
        then = "the next run of a guard deletes its server" if runs.is_running else "its server is not created again"
        return Present(f"Stack {self.stack} exceeds {' and '.join(spent.exceeded)}, so {then}")

    @property
    def remedy(self) -> str:
        """What to do about limits that the stack has used up, without a full stop."""
        return (
            f"raise the limit in Pulumi.{self.stack}.yaml, or run `gemma teardown {self.stack}`, after which age and cost "
            "count from zero"
        )

    def _limit_names(self) -> str:
        """Return the limits that the record is needed for, by their keys."""
        return " and ".join(limit_keys(replace(self.limits, idle_after_s=None)))

    def _runs(self) -> tuple[Mapping[str, object], StackRuns] | None:
        """Return the account and the runs of the stack; None without an account of this stack."""
        account = self._account()
        if account is None:
            return None
        description = str(account.get("description") or "")
        if not self.owner.owns(description=description):
            return None  # another owner's account of the same name, so Google will reject ours
        before = RunRecord.of(description) or RunRecord()
        seen, complete = self._seen()
        now_s = int(GOOGLE_CLOCK.now().timestamp())
        record = before.after(seen, now_s, complete=complete)
        return account, StackRuns(record=record, seen=seen, now_s=now_s, complete=complete)

    def _account(self) -> Mapping[str, object] | None:
        try:
            return self._call("iam", f"v1/{self.account}")
        except GoogleCallError as error:
            if error.status == _NOT_FOUND or error.is_api_off:
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
        """Return a TPU VM or the service by its full name, as Google shows it; None if another owner has it. Raises GoogleCallError."""
        place, collection = name.split("/")[3:5]
        kind = by_name(_KINDS[collection])
        document = self._call(kind.api, kind.address(name))
        if kind.owner(document) != self.owner:
            return None
        if kind.kind == SERVICE:
            return seen_service(document, place)
        return seen_instance(document, place) if kind.kind == INSTANCE else self._queued(document)

    def _queued(self, document: Mapping[str, object]) -> Seen | None:
        made = ListedQueuedResource(document).node_name
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


def keep_runs(context: "Context") -> None:
    """Register hooks that keep the stack's record. Raises CommandRefusedError."""
    recorder = recorder_of(context.settings, context.names, context.ownership)
    starts: list[pulumi.ResourceHook] = []
    if not pulumi.runtime.is_dry_run():
        match recorder.note_first():
            case Present(value=exceeded):
                refusal = f"{exceeded}: {recorder.remedy}. Then run `gemma up {recorder.stack}`."

                def refuse(_args: pulumi.ResourceHookArgs) -> None:
                    raise CommandRefusedError(refusal)

                starts = [pulumi.ResourceHook("within-limits", refuse)]
            case _:
                pass
        endless = endless_forms(context.subject.resolved)
        if line := limits_line(context.ownership.limits, context.settings.project, endless):
            pulumi.log.info(line)
    hook = pulumi.ResourceHook("keep-runs", recorder.note_after)
    failed = pulumi.ErrorHook("keep-runs-of-a-failure", recorder.note_failed)

    bound = {
        SERVICE_TYPE: pulumi.ResourceHookBinding(before_create=starts, after_create=[hook], after_update=[hook]),
        CAPACITY_TYPE: pulumi.ResourceHookBinding(
            before_create=starts, after_create=[hook], after_update=[hook], on_error=[failed]
        ),
    }
    bind(bound.get)


def stack_recorder(settings: Settings, stack: str) -> RunRecorder:
    """Return the names of a stack's record and machines outside a program."""
    owner = Ownership(project=PRODUCT, stack=stack, limits=settings.limits)
    return recorder_of(settings, Names(project=settings.project, stack=stack), owner)


def recorder_of(settings: Settings, names: Names, owner: Ownership) -> RunRecorder:
    """Return the names of a stack's record and machines."""
    tpu, run = settings.tpu, settings.cloud_run
    capacity = {"project": settings.project, "queuedResourceId": names.base, "api": tpu.api if tpu else ""}
    return RunRecorder(
        project=settings.project,
        owner=owner,
        account=f"projects/{settings.project}/serviceAccounts/{names.account_email}",
        machines=[f"projects/{settings.project}/locations/{run.region}/services/{names.base}"]
        if run
        else capacity_names(capacity, tpu.zones if tpu else ()),
    )


def _why(error: Exception) -> str:
    text = f"its record cannot be read: {error}" if isinstance(error, RecordError) else str(error)
    return text.rstrip(".")
