"""A bucket that an earlier deployment left, or that belongs to others, is named before Google answers 409.

The Pulumi engine calls the hook when the stack's bucket is about to be created, so that nothing is asked afterwards. It costs one call of
Cloud Storage within LIMIT_S.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

import pulumi

from cloud.google_calls import GoogleCallError, call
from contracts.labels import Ownership

LIMIT_S: Final = 10.0
_BUCKET_TYPE: Final = "gcp:storage/bucket:Bucket"
_NOT_FOUND: Final = 404


class BucketInTheWayError(ValueError):
    """A bucket of the stack's name exists already. The message is one sentence with what to do."""


def watch_for_bucket(*, project: str, bucket: str, ownership: Ownership) -> None:
    """Let a bucket that is declared from now on be made only if there is none of its name. A preview warns."""
    check = BucketCheck(project=project, bucket=bucket, ownership=ownership)
    hook = pulumi.ResourceHook("bucket-in-the-way", check.require, pulumi.ResourceHookOptions(on_dry_run=True))

    def transform(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        if args.type_ != _BUCKET_TYPE:
            return None
        hooks = pulumi.ResourceHookBinding(before_create=[hook])
        return pulumi.ResourceTransformationResult(
            props=args.props, opts=pulumi.ResourceOptions.merge(args.opts, pulumi.ResourceOptions(hooks=hooks))
        )

    pulumi.runtime.register_stack_transformation(transform)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketCheck:
    """The bucket that a stack is about to make."""

    project: str
    bucket: str
    ownership: Ownership

    async def require(self, _args: pulumi.ResourceHookArgs) -> None:
        """Raise BucketInTheWayError if the bucket exists; in a preview, warn. What is unknown stops nothing."""
        found = await self.finding()
        if found is None:
            return
        if not pulumi.runtime.is_dry_run():
            raise BucketInTheWayError(found)
        pulumi.log.warn(found)

    async def finding(self) -> str | None:
        """Return whose bucket is in the way and what to do; None if there is none, or if it is unknown."""
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
                f"The bucket {self.bucket} is kept from an earlier deployment of this stack. Run "
                f"`python -m scripts.recover --stack {stack}`, which takes it over with its weights, then "
                f"`pulumi up --stack {stack}`."
            )
        return (
            f"The bucket {self.bucket} exists and does not carry this stack's labels. To use its weights set "
            f"gemma-serving:bucket.existing to its name; otherwise delete or rename it, or choose another stack name."
        )
