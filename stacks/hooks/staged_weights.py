"""Weights that are not staged are found before the service is made, not by a container that looks for them for minutes.

The Pulumi engine calls the hook when a service is about to be created or changed, so that nothing is asked where nothing changes, and a
targeted `up` of the bucket (`scripts.stage_model`) is left alone. It costs one list of the folder and one read of its manifest, each
within LIMIT_S. The sizes and checksums of the list are compared with the manifest, as `scripts.doctor` does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import quote

import pulumi

from cloud.google_calls import GoogleCallError, call
from cloud.model_files import CONFIG
from contracts.answers import Absent, Answer, Present, Unknown
from contracts.resource_types import SERVICE_TYPE
from contracts.staged_weights import (
    MANIFEST,
    StoredFile,
    difference,
    folder_uri,
    listing_path,
    manifest_hash,
    object_name,
    stored_files,
)
from stacks.base import Context
from stacks.planned import doctor_hint

LIMIT_S: Final = 10.0
_OK, _NOT_FOUND = 200, 404


class WeightsNotStagedError(ValueError):
    """The bucket does not hold the checkpoint. The message is one sentence with the command that stages it."""


def require_staged_weights(context: Context) -> None:
    """Register a hook that stops `up` before it makes or changes a service whose weights are not staged whole. A preview warns."""
    settings = context.settings
    if settings.weights != "bucket":
        return
    check = StagedWeights(
        project=settings.project,
        bucket=settings.bucket.existing or context.names.bucket,
        prefix=settings.weights_prefix,
        stack=context.names.stack,
        existing=settings.bucket.existing is not None,
        manifest=settings.bucket.manifest_hash,
        is_own=settings.weights_prefix != settings.weights_name,
    )
    hook = pulumi.ResourceHook("weights-staged", check.require, pulumi.ResourceHookOptions(on_dry_run=True))

    def transform(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        if args.type_ != SERVICE_TYPE:
            return None
        hooks = pulumi.ResourceHookBinding(before_create=[hook], before_update=[hook])
        return pulumi.ResourceTransformationResult(
            props=args.props, opts=pulumi.ResourceOptions.merge(args.opts, pulumi.ResourceOptions(hooks=hooks))
        )

    pulumi.runtime.register_stack_transformation(transform)


@dataclass(frozen=True, slots=True)
class Unproved:
    """Weights are there, and they are not what a manifest or the settings say."""

    text: str
    blocks: bool = True
    """Whether `up` stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedWeights:
    """The folder of a bucket that has to hold a checkpoint."""

    project: str
    bucket: str
    prefix: str
    """Empty if the weights lie in no folder of the bucket."""
    stack: str
    existing: bool
    """Whether the bucket is not the stack's own: another tool may have copied the checkpoint into it."""
    manifest: str | None = None
    """The hash that the settings bind the server to; None if they do not."""
    is_own: bool = False
    """Whether the folder's name has that hash."""

    @property
    def folder(self) -> str:
        """The folder's URI."""
        return folder_uri(self.bucket, self.prefix)

    async def require(self, _args: pulumi.ResourceHookArgs) -> None:
        """Raise WeightsNotStagedError unless a whole checkpoint is staged; in a preview, warn. What is unknown is not staged."""
        preview = pulumi.runtime.is_dry_run()
        match await self.proof():
            case Present():
                return
            case Absent():
                text, blocks = (
                    f"No weights are staged in {self.folder}, and the server cannot start without them. {self._remedy}",
                    True,
                )
            case Unproved(text=text, blocks=blocks):
                pass
            case Unknown(why=why):
                if preview:
                    return  # a preview may run without any access
                text, blocks = (
                    f"Could not check the weights in {self.folder}, so nothing was changed: {why}. {doctor_hint(self.stack)}",
                    True,
                )
        if blocks and not preview:
            raise WeightsNotStagedError(text)
        pulumi.log.warn(text)

    @property
    def _remedy(self) -> str:
        return f"Run `python -m scripts.stage_model --stack {self.stack}`, then `pulumi up --stack {self.stack}`."

    async def proof(self) -> "Answer[str] | Unproved":
        """Return the hash of the manifest that the folder was proved to hold, or why it is not proved."""
        try:
            stored = await self._listed()
        except GoogleCallError as error:
            return Absent() if error.status == _NOT_FOUND else Unknown(str(error).rstrip("."))
        if object_name(self.prefix, MANIFEST) not in stored:
            if object_name(self.prefix, CONFIG) not in stored:
                return Absent()
            text = f"The weights in {self.folder} have no {MANIFEST}: staging did not end, or another tool copied them. {self._remedy}"
            return Unproved(text, blocks=not self.existing or self.manifest is not None)
        try:
            manifest = await self._manifest()
        except GoogleCallError as error:
            return Unknown(str(error).rstrip("."))
        wrong = difference(manifest, stored, self.prefix)
        if wrong is not None:
            return Unproved(f"The weights in {self.folder} are not those of their manifest: {wrong}. {self._remedy}")
        return self._bound(manifest_hash(cast("Mapping[str, object]", manifest)))

    def _bound(self, staged: str) -> "Present[str] | Unproved":
        """Return whether the staged weights are those that the settings name."""
        if self.manifest in {None, staged}:
            return Present(staged)
        said = f"The weights in {self.folder} have the hash {staged}, and gemma-serving:bucket.manifest is {self.manifest}."
        if self.is_own:
            return Unproved(
                f"{said} The folder's name has the other hash, so the weights were changed after they were staged: run `python -m "
                f"scripts.stage_model --stack {self.stack} --remove {self.prefix}`, and stage them again."
            )
        return Unproved(
            f"{said} Set it to the staged hash, or stage the other weights: `python -m scripts.stage_model --stack {self.stack}`."
        )

    async def _manifest(self) -> object:
        """Return the manifest; None if it is not JSON. Raises GoogleCallError."""
        path = f"storage/v1/b/{self.bucket}/o/{quote(object_name(self.prefix, MANIFEST), safe='')}?alt=media"
        try:
            return await call("storage", path, project=self.project, limit_s=LIMIT_S)
        except GoogleCallError as error:
            if error.status == _OK:
                return None
            raise

    async def _listed(self) -> Mapping[str, StoredFile]:
        """Return the folder's objects. Raises GoogleCallError."""
        path, token = listing_path(self.bucket, self.prefix), ""
        items: list[Mapping[str, object]] = []
        while True:
            following = f"&pageToken={quote(token, safe='')}" if token else ""
            page = await call("storage", path + following, project=self.project, limit_s=LIMIT_S)
            items += cast("Sequence[Mapping[str, object]]", page.get("items") or ())
            token = str(page.get("nextPageToken") or "")
            if not token:
                return stored_files(items)
