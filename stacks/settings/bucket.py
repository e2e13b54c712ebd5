"""The bucket of weights and compiled programs."""

from typing import Annotated

from pydantic import model_validator

from contracts.staged_weights import OWN_FOLDER
from stacks.settings.block import Block, Judged, OnChange
from stacks.settings.text import BucketName, ManifestHash, Prefix, Region


class BucketSettings(Block):
    """The bucket that holds the weights, and with `tpu.compileCache: bucket` compiled programs."""

    existing: Annotated[BucketName | None, Judged("existing_bucket")] = None
    """A bucket that exists already. The stack reads it and never changes or deletes it. By default the stack makes a bucket."""
    region: Annotated[Region | None, Judged("bucket_region"), OnChange("nothing")] = None
    """Region of the existing bucket. The planner counts the traffic to zones in other regions. The stack's own bucket is in the first region."""
    prefix: Prefix | None = None
    """Folder of the weights in the bucket, without the hash that staging adds. The default is the last part of the model's id."""
    manifest: ManifestHash | None = None
    """Hash of the staged weights, which `scripts.stage_model` writes. Another one is a new revision, or a restart of the TPU's server. With
    `sha256:` the weights are in a folder of their own, `PREFIX-` and the first 16 digits; a hash alone is of an earlier version and `PREFIX`."""
    force_destroy: Annotated[bool, OnChange("update")] = True
    """Delete the staged weights together with the stack. They can be staged again from the hub."""
    retain_on_destroy: Annotated[bool, OnChange("update")] = False
    """Keep the stack's own bucket with its weights when the stack is destroyed. It is billed until you delete it."""

    @property
    def manifest_hash(self) -> str | None:
        """The hash of the weights that the server is bound to; None if it is bound to none."""
        return None if self.manifest is None else self.manifest.removeprefix(OWN_FOLDER)

    @model_validator(mode="after")
    def _existing_always_stays(self) -> "BucketSettings":
        if self.retain_on_destroy and self.existing is not None:
            raise ValueError(
                "retainOnDestroy is for the stack's own bucket; an existing one always stays: remove one of the two"
            )
        return self

    @model_validator(mode="after")
    def _region_of_the_existing(self) -> "BucketSettings":
        if self.region is not None and self.existing is None:
            raise ValueError("region is that of an existing bucket; set existing, or remove region")
        return self
