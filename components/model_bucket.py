"""Bucket for weights and compiled programs: private, uniform access, readable only by the server."""

from collections.abc import Mapping
from dataclasses import field

import pulumi
import pulumi_gcp as gcp

from gemma_serving.components.checks import Input, Labels, Owner, arguments, program_ownership, require_valid
from gemma_serving.contracts.compile_cache import ARCHIVE_PREFIX
from gemma_serving.contracts.labels import RETAINED, RETAINED_LABEL
from gemma_serving.planning.settings import text
from gemma_serving.planning.settings.fields import Block

_ABORT_UPLOAD_AFTER_DAYS = 1


@arguments
class ModelBucketArgs(Block):
    """A bucket of the stack, or an existing one."""

    project: Input[text.ProjectId] | None = None
    """Id of the Google Cloud project. A change replaces the bucket. Default: the provider's, such as `gcp:project`."""
    name: Input[text.BucketName]
    """Name of the bucket: globally unique, 3 to 63 lower-case letters, digits, hyphens and dots. A change replaces the bucket."""
    location: text.BucketLocation
    """Region. Weights from another region than the server's cost money and time at every start. A change replaces the bucket."""
    readers: Mapping[str, Input[text.Grantee]] = field(default_factory=dict[str, pulumi.Input[str]])
    """IAM members that can read the objects, by a short name. Each gets one grant."""
    ownership: Owner = field(default_factory=program_ownership)
    """Owner in the labels of the bucket. Default: the project and stack of the running program."""
    labels: Labels = field(default_factory=dict[str, pulumi.Input[str]])
    """Additional labels of the bucket. A change updates it in place."""
    existing: text.BucketName | None = None
    """Name of an existing bucket. The component then only grants access to it and creates none."""
    archivers: Mapping[str, Input[text.Grantee]] = field(default_factory=dict[str, pulumi.Input[str]])
    """IAM members that can also write, list and delete objects below `archive_folder`, by a short name."""
    archive_folder: text.Prefix = ARCHIVE_PREFIX
    """Folder of the archivers, for example one of Pods (`gemma_serving.gke.server_inputs.PROGRAMS_FOLDER`). A change replaces their grants."""
    archive_days: text.Positive | None = None
    """Age in days at which the bucket deletes archives. Default: never, because the writers delete old archives."""
    protect: bool = True
    """Keep the engine from deleting or replacing the bucket. With False, `pulumi destroy` deletes it with its objects."""
    retain: bool = False
    """Keep the bucket when the stack is destroyed. A label records that."""


class ModelBucket(pulumi.ComponentResource):
    """The bucket, a grant per reader to read its objects, and a grant per archiver to write one folder.

    An existing bucket is never changed or deleted. Only the grants on it belong to the stack.
    """

    bucket: pulumi.Output[str]
    """Name of the bucket."""
    url: pulumi.Output[str]
    """gs://NAME."""
    grants: list[pulumi.Resource]
    """All grants. A server must not start before those of its account."""

    def __init__(self, name: str, args: ModelBucketArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        require_valid(f'ModelBucket "{name}"', args, ModelBucketArgs)
        super().__init__("gemma-serving:index:ModelBucket", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        self.bucket = pulumi.Output.from_input(args.existing) if args.existing else self._own(name, args, child).name
        self.url = pulumi.Output.concat("gs://", self.bucket)
        self.grants = [
            gcp.storage.BucketIAMMember(
                f"{name}-{reader}",
                gcp.storage.BucketIAMMemberArgs(
                    bucket=self.bucket,
                    role="roles/storage.objectViewer",
                    member=member,
                ),
                opts=child,
            )
            for reader, member in args.readers.items()
        ]
        self.grants += [
            self._archiver(f"{name}-{each}-archive", member, args, child) for each, member in args.archivers.items()
        ]
        self.register_outputs({"bucket": self.bucket})

    def _archiver(
        self, name: str, member: pulumi.Input[str], args: ModelBucketArgs, child: pulumi.ResourceOptions
    ) -> gcp.storage.BucketIAMMember:
        """Grant access to the objects of one folder. Conditions name an object projects/_/buckets/BUCKET/objects/NAME."""

        def folder(bucket: str) -> gcp.storage.BucketIAMMemberConditionArgs:
            prefix = f"projects/_/buckets/{bucket}/objects/{args.archive_folder.strip('/')}/"
            condition = args.ownership.condition(f'resource.name.startsWith("{prefix}")')
            return gcp.storage.BucketIAMMemberConditionArgs(**condition)

        return gcp.storage.BucketIAMMember(
            name,
            gcp.storage.BucketIAMMemberArgs(
                bucket=self.bucket,
                role="roles/storage.objectUser",
                member=member,
                condition=self.bucket.apply(folder),
            ),
            opts=child,
        )

    @staticmethod
    def _own(name: str, args: ModelBucketArgs, child: pulumi.ResourceOptions) -> gcp.storage.Bucket:
        return gcp.storage.Bucket(
            name,
            gcp.storage.BucketArgs(
                name=args.name,
                project=args.project,
                location=args.location.upper(),
                storage_class="STANDARD",
                uniform_bucket_level_access=True,
                public_access_prevention="enforced",
                # Soft delete keeps deleted weights for a week and bills them. They can be staged again from the hub.
                soft_delete_policy=gcp.storage.BucketSoftDeletePolicyArgs(retention_duration_seconds=0),
                lifecycle_rules=_lifecycle(args),
                force_destroy=True,  # the objects too, once the bucket is no longer protected
                labels={
                    **args.labels,
                    **args.ownership.labels,
                    **({RETAINED_LABEL: RETAINED} if args.retain else {}),
                },
            ),
            opts=pulumi.ResourceOptions.merge(
                child, pulumi.ResourceOptions(protect=args.protect, retain_on_delete=args.retain or None)
            ),
        )


def _lifecycle(args: ModelBucketArgs) -> list[gcp.storage.BucketLifecycleRuleArgs]:
    abort = gcp.storage.BucketLifecycleRuleArgs(
        action=gcp.storage.BucketLifecycleRuleActionArgs(type="AbortIncompleteMultipartUpload"),
        condition=gcp.storage.BucketLifecycleRuleConditionArgs(age=_ABORT_UPLOAD_AFTER_DAYS),
    )
    if args.archive_days is None:
        return [abort]
    prune = gcp.storage.BucketLifecycleRuleArgs(
        action=gcp.storage.BucketLifecycleRuleActionArgs(type="Delete"),
        condition=gcp.storage.BucketLifecycleRuleConditionArgs(
            age=args.archive_days, matches_prefixes=[f"{ARCHIVE_PREFIX}/"]
        ),
    )
    return [abort, prune]
