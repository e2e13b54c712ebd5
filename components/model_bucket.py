"""The bucket that holds the weights: private, uniform access, readable by the server only."""

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from contracts.labels import Ownership

_ABORT_UPLOAD_AFTER_DAYS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBucketArgs:
    """A bucket that the stack makes, or an existing one."""

    project: str
    name: str
    """Name of the bucket that the stack makes; unique in the world, at most 63 characters."""
    location: str
    """Region, best the server's: weights from another region cost money and time at every start. A change replaces the bucket."""
    ownership: Ownership
    readers: Mapping[str, pulumi.Input[str]]
    """IAM members that may read the weights, by a short name."""
    labels: Mapping[str, str]
    existing: str | None = None
    """Name of a bucket that exists already. The stack then grants access to it and makes none."""
    force_destroy: bool = True
    """Let a teardown delete the staged weights. Without it a teardown of a bucket with objects fails."""


class ModelBucket(pulumi.ComponentResource):
    """The bucket, and a grant to read its objects for each reader.

    An existing bucket is never changed or deleted: only the grants on it belong to the stack.
    """

    bucket: pulumi.Output[str]
    grants: list[pulumi.Resource]

    def __init__(self, name: str, args: ModelBucketArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gemma-serving:index:ModelBucket", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        self.bucket = pulumi.Output.from_input(args.existing) if args.existing else self._own(name, args, child).name
        self.grants = [
            gcp.storage.BucketIAMMember(
                f"{name}-{reader}", bucket=self.bucket, role="roles/storage.objectViewer", member=member, opts=child
            )
            for reader, member in args.readers.items()
        ]
        self.register_outputs({"bucket": self.bucket})

    @staticmethod
    def _own(name: str, args: ModelBucketArgs, child: pulumi.ResourceOptions) -> gcp.storage.Bucket:
        return gcp.storage.Bucket(
            name,
            name=args.name,
            project=args.project,
            location=args.location.upper(),
            storage_class="STANDARD",
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            # Soft delete would keep deleted weights for a week, and bill them. They can be staged again from the hub.
            soft_delete_policy=gcp.storage.BucketSoftDeletePolicyArgs(retention_duration_seconds=0),
            lifecycle_rules=[
                gcp.storage.BucketLifecycleRuleArgs(
                    action=gcp.storage.BucketLifecycleRuleActionArgs(type="AbortIncompleteMultipartUpload"),
                    condition=gcp.storage.BucketLifecycleRuleConditionArgs(age=_ABORT_UPLOAD_AFTER_DAYS),
                )
            ],
            force_destroy=args.force_destroy,
            labels={**args.labels, **args.ownership.labels},
            opts=child,
        )
