"""Delete found resources by the API, in dependency order.

Each resource is read again before its deletion. Without the labels of the same stack, or if that is not who asks, it is not deleted.
If the API takes an etag, only the version that was read is deleted. What no longer exists counts as deleted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Final, Literal, cast
from urllib.parse import quote

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from gemma_serving.cloud.clock import WaitClock
from gemma_serving.cloud.google_api import GoogleApi, GoogleListError, listed, read_resource
from gemma_serving.cloud.google_session import AT_ONCE
from gemma_serving.cloud.grants import PolicyHolder, accounts_of, without
from gemma_serving.cloud.kinds import BUCKET, GRANT, Item, ResourceKind, by_name, order_of
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.parallel import each
from gemma_serving.contracts.proof import Asker, NotOwnedError, Proof
from gemma_serving.contracts.search_results import FoundResource

Outcome = Literal["deleted", "already deleted", "not owned", "failed"]
Report = Callable[[str], None]

_DENIED, _MISSING = 403, 404
_CONFLICTS: Final = frozenset({400, 409, 412})
"""In use, being changed, another version, or a state that does not allow it: read again and retry."""
_ATTEMPTS: Final = 6
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_TELL_EACH_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedResource:
    """The result of deleting one resource."""

    resource: FoundResource
    outcome: Outcome
    """`already deleted`: it no longer existed. `not owned`: its labels name another owner now."""
    detail: str
    elapsed_s: float
    timed_out: bool
    """True if it was still being deleted when the wait timed out. It is not waited for again."""


class _StillThereError(ScriptError):
    """The wait for a deletion timed out."""


def delete_all(
    api: GoogleApi, found: Sequence[FoundResource], asker: Asker, *, report: Report, clock: WaitClock
) -> Sequence[DeletedResource]:
    """Delete resources of who asks, one step's concurrently, and return the result of each."""
    done: list[DeletedResource] = []
    for _, step in groupby(sorted(found, key=lambda item: order_of(item.kind)), key=lambda item: order_of(item.kind)):
        tasks = [*_tasks(api, tuple(step), asker, report, clock)]
        done += [deletion for deletions in each(tasks, workers=AT_ONCE) for deletion in deletions]
    return tuple(done)


def _tasks(
    api: GoogleApi, step: Sequence[FoundResource], asker: Asker, report: Report, clock: WaitClock
) -> Iterator[Callable[[], Sequence[DeletedResource]]]:
    """Yield one task per resource, and one per policy with all its grants."""
    holders: dict[PolicyHolder, list[FoundResource]] = {}
    for item in step:
        if item.kind == GRANT:
            holders.setdefault(cast("PolicyHolder", item.document["holder"]), []).append(item)
        else:
            kind = by_name(item.kind)
            deleting = _Deleting(api=api, kind=kind, item=item, asker=asker, clock=clock, report=report)
            yield partial(_done, [item], deleting.attempt, report, clock)
    for holder, grants in holders.items():
        yield partial(_done, grants, partial(_without_grants, api, holder, grants, asker), report, clock)


def _done(
    items: Sequence[FoundResource], attempt: Callable[[], Outcome], report: Report, clock: WaitClock
) -> Sequence[DeletedResource]:
    """Return the result of one task. Conflicts are retried, a limited number of times."""
    attempts = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, GoogleListError) and error.status in _CONFLICTS),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_exponential(multiplier=_FIRST_PAUSE_S, exp_base=3, max=_LONGEST_PAUSE_S),
        sleep=clock.sleep,
        reraise=True,
    )
    started_s = clock.now_s()
    detail, timed_out = "", False
    try:
        outcome: Outcome = attempts(attempt)
    except NotOwnedError:
        outcome = "not owned"
    except (GoogleListError, ScriptError) as error:
        outcome = "failed"
        detail = str(error)
        timed_out = isinstance(error, _StillThereError)
    for item in items:
        report(f"{item.kind} {item.name}: {outcome}{f': {detail}' if detail else ''}")
    elapsed_s = clock.now_s() - started_s
    return [
        DeletedResource(resource=item, outcome=outcome, detail=detail, elapsed_s=elapsed_s, timed_out=timed_out)
        for item in items
    ]


def _existing(read: Callable[[], Item]) -> Item | None:
    """Return a document, or None if it does not exist. Raises GoogleListError and ScriptError."""
    try:
        return read()
    except GoogleListError as error:
        if error.status == _MISSING:
            return None
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deleting:
    """The deletion of one resource."""

    api: GoogleApi
    kind: ResourceKind
    item: FoundResource
    asker: Asker
    clock: WaitClock
    report: Report

    def attempt(self) -> Outcome:
        """Delete the resource and wait until it no longer exists."""
        fresh = _existing(partial(read_resource, self.api, self.kind, self.item.name))
        if fresh is None:
            return "already deleted"
        owner, address = self.kind.owner(fresh), self.kind.address(self.item.name)
        if owner is None or owner != self.item.owner:
            return "not owned"
        claim = f"the labels of {self.item.name} name stack {owner.stack} of the Pulumi project {owner.project}"
        proof = Proof(claim=claim, source=f"GET {address}", owners={self.item.name: owner})
        operation: Item = {}
        if not self._is_ending(fresh):
            try:
                if self.kind.kind == BUCKET:
                    self._empty(proof)
                path = self._address(fresh)
                operation = self.api.delete(
                    self.kind.api, path, proof, self.asker, parameters=self.kind.deletion(fresh)
                )
            except GoogleListError as error:
                if error.status == _MISSING:
                    return "deleted"
                raise
        self._wait(operation)
        return "deleted"

    @staticmethod
    def _is_ending(fresh: Item) -> bool:
        state = fresh.get("state")
        inner = state if isinstance(state, str) else as_mapping(state).get("state")
        return inner == "DELETING"

    def _address(self, fresh: Item) -> str:
        """Return the path to delete: an account by its unique id, because another one can get its email."""
        unique = str(fresh.get("uniqueId") or "")
        return self.kind.address(f"{self.item.name.rpartition('/')[0]}/{unique}" if unique else self.item.name)

    def _wait(self, operation: Item) -> None:
        """Wait until the resource no longer exists. Raises ScriptError if its operation fails or times out."""
        began_s = self.clock.now_s()
        told_s, pause_s = began_s, _FIRST_PAUSE_S
        while True:
            _raise_for(operation)
            try:
                read_resource(self.api, self.kind, self.item.name)
            except GoogleListError as error:
                # IAM also returns 403 for an account that does not exist. The search afterwards reads the list.
                if error.status == _MISSING or (error.status == _DENIED and self.kind.api == "iam"):
                    return
                raise
            now_s = self.clock.now_s()
            if now_s - began_s > self.kind.limit_s:
                raise _StillThereError(
                    f"still exists after {self.kind.limit_s:.0f} s. Run the same command again later."
                )
            if now_s - told_s >= _TELL_EACH_S:
                told_s = now_s
                self.report(
                    f"deleting {self.kind.kind} {self.item.name}: {now_s - began_s:.0f} of {self.kind.limit_s:.0f} s"
                )
            self.clock.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 1.5)
            operation = self._operation(operation)

    def _operation(self, before: Item) -> Item:
        name = str(before.get("selfLink") or before.get("name")).rpartition("/compute/v1/")[2]
        if "/operations/" not in name:
            return {}
        return _existing(partial(self.api.get, self.kind.api, self.kind.prefix + name)) or {}

    def _empty(self, proof: Proof) -> None:
        """Delete all objects of the bucket that the proof names, including their older versions."""
        bucket = f"storage/v1/b/{self.item.id}"
        for page in listed(self.api, "storage", f"{bucket}/o?versions=true").whole():
            objects = map(as_mapping, as_sequence(page.get("items")))
            each([partial(self._delete_object, bucket, item, proof) for item in objects], workers=AT_ONCE)

    def _delete_object(self, bucket: str, item: Item, proof: Proof) -> None:
        path = f"{bucket}/o/{quote(str(item.get('name')), safe='')}"
        try:
            generation = {"generation": str(item.get("generation"))}
            self.api.delete("storage", path, proof, self.asker, parameters=generation)
        except GoogleListError as error:
            if error.status != _MISSING:
                raise


def _raise_for(operation: Item) -> None:
    """Raise ScriptError with the error message of a failed operation."""
    error = as_mapping(operation.get("error"))
    first = as_mapping((as_sequence(error.get("errors")) or (error,))[0])
    if error:
        raise ScriptError(str(first.get("message") or error))


def _without_grants(api: GoogleApi, holder: PolicyHolder, grants: Sequence[FoundResource], asker: Asker) -> Outcome:
    """Remove grants from one policy: read it, and write it back with its etag."""
    try:
        policy, proof = without(holder.read(api), holder, grants, accounts_of(grants))
        if proof is not None:
            holder.write(api, policy, proof, asker)
    except GoogleListError as error:
        if error.status == _MISSING:
            return "already deleted"
        raise
    return "already deleted" if proof is None else "deleted"
