"""Report an existing bucket of the stack's name before Google answers 409."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

import pulumi

from gemma_serving.cloud.google_calls import GoogleCallError, call
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.resource_types import BUCKET_TYPE
from gemma_serving.stacks.bound_hooks import bind_types

LIMIT_S: Final = 10.0
_NOT_FOUND: Final = 404


def require_free_bucket_name(*, project: str, bucket: str, ownership: Ownership) -> None:
    """Register a hook that fails the creation if the name is taken. A preview only warns."""
    check = BucketCheck(project=project, bucket=bucket, ownership=ownership)
    hook = pulumi.ResourceHook("bucket-in-the-way", check.require, pulumi.ResourceHookOptions(on_dry_run=True))

    bind_types({BUCKET_TYPE}, pulumi.ResourceHookBinding(before_create=[hook]))


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketCheck:
    """The bucket that a stack is about to create."""

    project: str
    bucket: str
    ownership: Ownership

    async def require(self, _args: pulumi.ResourceHookArgs) -> None:
        """Raise CommandRefusedError if the bucket exists. A failed check stops nothing."""
        found = await self.finding()
        if found is None:
            return
        if not pulumi.runtime.is_dry_run():
            raise CommandRefusedError(found)
        pulumi.log.warn(found)

    async def finding(self) -> str | None:
        """Return whose bucket it is and the fix; None if the name is free or the check failed."""
        stack = self.ownership.stack
        try:
            path = f"storage/v1/b/{self.bucket}?fields=labels"
            answer = await call("storage", path, project=self.project, limit_s=LIMIT_S)
        except GoogleCallError as error:
            if error.status != _NOT_FOUND:
                pulumi.log.debug(f"Could not check whether {self.bucket} exists: {error}")
            return None
        if self.ownership.owns(labels=cast("Mapping[str, object]", answer.get("labels") or {})):
            return (
                f"Bucket {self.bucket} was retained by an earlier deployment of this stack. "
                f"Run `gemma up {stack}`, which imports it with its weights."
            )
        return (
            f"Bucket {self.bucket} exists without this stack's labels. To use its weights, set "
            f"gemma-serving:bucket.existing: {self.bucket}. Otherwise delete the bucket or choose another stack name."
        )
