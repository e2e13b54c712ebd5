"""Bucket for weights and compiled programs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from gemma_serving.contracts.chat_template import TemplateAge
from gemma_serving.planning.settings.annotations import OnChange
from gemma_serving.planning.settings.fields import Block
from gemma_serving.planning.settings.text import BucketName, ManifestHash, Prefix, Region


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings(Block):
    """The bucket for the weights and, with `tpu.compileCache: bucket`, for compiled programs."""

    existing: BucketName | None = None
    """Existing bucket, which the stack reads and never changes or deletes. Default: the stack creates a bucket."""
    region: Annotated[Region | None, OnChange("nothing")] = None
    """Region of the existing bucket.

    The planner includes traffic to zones in other regions. The stack's own bucket is in the first region.
    """
    prefix: Prefix | None = None
    """Folder of the weights in the bucket, without the hash that staging adds. Default: the last part of the model's id."""
    manifest: ManifestHash | None = None
    """Hash of the staged weights, written by `gemma stage_model`.

    A new hash creates a revision, or restarts the TPU's server. The weights are in the folder `PREFIX-` plus the first 16 digits.
    """
    parts: Mapping[str, ManifestHash] = field(default_factory=dict[str, str])
    """Hash of each staged drafter and adapter by Hugging Face id or gs:// folder, written by `gemma stage_model`.

    Each part is in a separate folder, like the weights. Parts without a hash are downloaded from the hub.
    """
    templates: Annotated[Mapping[str, TemplateAge], OnChange("nothing")] = field(default_factory=dict[str, TemplateAge])
    """Newest of Google's fixes in each staged chat template, written by `gemma stage_model`. `older` lacks one of April 2026 too."""
    protect: Annotated[bool, OnChange("update")] = True
    """Let the engine refuse to delete or replace the stack's own bucket while it has weights. `gemma teardown` asks, and deletes it anyway."""
    retain_on_destroy: Annotated[bool, OnChange("update")] = False
    """Keep the stack's own bucket and its weights when the stack is destroyed. It is billed until you delete it."""

    @property
    def manifest_hash(self) -> str | None:
        """Hash of the weights that the server is pinned to, or None."""
        from gemma_serving.contracts.staged_weights import OWN_FOLDER  # noqa: PLC0415 - 3 ms, and the planner asks for no hash

        return None if self.manifest is None else self.manifest.removeprefix(OWN_FOLDER)

    def problems(self) -> Iterator[str]:
        """Yield each contradiction between keys of the block, and what to change."""
        if self.retain_on_destroy and self.existing is not None:
            yield "retainOnDestroy applies to the stack's own bucket, but an existing bucket is never deleted; remove one of the two"
        if self.region is not None and self.existing is None:
            yield "region applies to an existing bucket only; set existing or remove region"
