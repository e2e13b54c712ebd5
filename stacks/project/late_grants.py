"""Create a Cloud Run service again until new grants to its account take effect.

No call tells whether a grant to another account works already: `testIamPermissions` answers for the caller, and the policy shows a grant
immediately. Cloud Run itself reports it, because a revision that cannot read its secret or its bucket fails. So nothing waits before the first attempt. A
failure caused by a grant of this run is followed by another attempt, until an attempt fails that started GRANT_S after the last grant.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Final
from urllib.parse import quote

import pulumi

from cloud.google_calls import GoogleCallError, call
from contracts.labels import Ownership
from stacks.planned import doctor_hint
from stacks.project.propagation import GRANT_S, NewGrants, real_s

CALL_LIMIT_S: Final = 20.0
DELETION_LIMIT_S: Final = 300.0
"""Time limit for deleting a failed service, in seconds at Google."""
_FIRST_PAUSE_S: Final = 10.0
_LONGEST_PAUSE_S: Final = 40.0
_POLL_S: Final = 5.0
_LEAST_POLL_S: Final = 0.05
_NOT_FOUND: Final = 404
_SECRET: Final = re.compile(r"Permission denied on secret: (?P<what>projects/[^/]+/secrets/[^/\s]+)")
"""Cloud Run's error when it deploys a revision."""
_BUCKET: Final = re.compile(r"does not have storage\.(objects|buckets|folders)\.\w+ access")
"""Cloud Storage's error in the log of a revision that mounts a bucket or streams from it."""


def denied_secret(message: str) -> str | None:
    """Return the secret that a revision's account cannot read, from the error of its deployment, or None."""
    found = _SECRET.search(message)
    return None if found is None else found["what"]


def denies_bucket(line: str) -> bool:
    """Return whether a log line reports that the account cannot read its bucket."""
    return _BUCKET.search(line) is not None


@dataclass(slots=True, kw_only=True)
class LateGrants:
    """Decides whether a failed service is created again, and deletes the failed one first."""

    project: str
    ownership: Ownership
    account: str
    """E-mail address of the account that the service runs as."""
    grants: NewGrants
    clock: Callable[[], float] = monotonic
    began_s: float | None = field(default=None, init=False)
    """Start of the last failed attempt. None for the first attempt, which starts when the grants are created."""

    def may_help(self) -> bool:
        """Return whether a grant of this run may have been too new for the failed attempt."""
        newest_s = self.grants.newest_s
        return newest_s is not None and (self.began_s or newest_s) - newest_s < real_s(GRANT_S)

    async def again(self, args: pulumi.ErrorHookArgs, what: str) -> bool:
        """Wait, delete a created service that never served, and return whether to try again.

        Args:
            args: the failure.
            what: the secret or bucket that the account cannot read.
        """
        if not self.may_help():
            if self.grants.newest_s is not None:
                pulumi.log.warn(
                    f"Access to {what} for {self.account} was still unavailable after {GRANT_S / 60:.0f} min, although this run granted it. "
                    f"Run `pulumi up --stack {pulumi.get_stack()}` again. {doctor_hint(pulumi.get_stack())}"
                )
            return False
        age_s = (self.clock() - (self.grants.newest_s or 0.0)) / real_s(1)
        pulumi.log.info(
            f"Waiting up to {GRANT_S / 60:.0f} min for {self.account} to get access to {what} (granted {age_s:.0f} s ago). "
            "The service will be tried again."
        )
        if args.failed_operation == "create" and not await self._removed(args.new_inputs or {}):
            return False
        await asyncio.sleep(real_s(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * len(args.errors))))
        self.began_s = self.clock()
        return True

    async def _removed(self, inputs: Mapping[str, object]) -> bool:
        """Delete the service that the failed creation left, because the engine creates it again. Return whether it is absent.

        Only a service with this stack's labels is deleted, and only if none of its revisions was ever ready.
        """
        path = f"v2/projects/{self.project}/locations/{inputs.get('location')}/services/{inputs.get('name')}"
        try:
            found = await self._found(path)
            if found is None:
                return True
            labels = found.get("labels")
            ours = isinstance(labels, Mapping) and self.ownership.labels.items() <= labels.items()
            if not ours or found.get("latestReadyRevision"):
                return False
            await call(
                "run",
                f"{path}?etag={quote(str(found.get('etag', '')), safe='')}",
                project=self.project,
                limit_s=CALL_LIMIT_S,
                verb="DELETE",
            )
            return await self._gone(path)
        except GoogleCallError as error:
            pulumi.log.warn(f"Cannot delete the failed service, so it will not be tried again: {error}")
            return False

    async def _gone(self, path: str) -> bool:
        end_s = self.clock() + max(real_s(DELETION_LIMIT_S), CALL_LIMIT_S)
        while self.clock() < end_s:
            if await self._found(path) is None:
                return True
            await asyncio.sleep(max(real_s(_POLL_S), _LEAST_POLL_S))
        return False

    async def _found(self, path: str) -> Mapping[str, object] | None:
        try:
            return await call("run", path, project=self.project, limit_s=CALL_LIMIT_S)
        except GoogleCallError as error:
            if error.status == _NOT_FOUND:
                return None
            raise
