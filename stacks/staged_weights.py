"""Weights that are not staged are found before the service is made, not by a container that looks for them for minutes.

The Pulumi engine calls the hook when a service is about to be created or changed, so that nothing is asked where nothing changes, and a
targeted `up` of the bucket (`scripts.stage_model`) is left alone. It costs one call of Cloud Storage within LIMIT_S, two where the
settings name the weights (`bucket.manifest`) or there is no manifest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import quote, urlencode

import pulumi

from contracts.staged_weights import MANIFEST, folder_uri, manifest_hash, object_name
from stacks.base import Context
from stacks.google_calls import GoogleCallError, call
from stacks.model_files import CONFIG
from stacks.run_failures import SERVICE_TYPE

LIMIT_S: Final = 10.0
_NOT_FOUND: Final = 404


class WeightsNotStagedError(ValueError):
    """The bucket does not hold the checkpoint. The message is one sentence with the command that stages it."""


def require_staged_weights(context: Context) -> None:
    """Let a service that is declared from now on be made only if its weights are staged. A preview warns."""
    settings = context.settings
    if settings.weights != "bucket":
        return
    check = StagedWeights(
        project=settings.project,
        bucket=settings.bucket.existing or context.names.bucket,
        prefix=settings.weights_prefix,
        stack=context.names.stack,
        existing=settings.bucket.existing is not None,
        manifest=settings.bucket.manifest,
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

    @property
    def folder(self) -> str:
        """The folder's URI."""
        return folder_uri(self.bucket, self.prefix)

    async def require(self, _args: pulumi.ResourceHookArgs) -> None:
        """Raise WeightsNotStagedError if no checkpoint is staged; in a preview, warn. What cannot be told stops nothing."""
        preview = pulumi.runtime.is_dry_run()
        try:
            found = await self.finding()
        except GoogleCallError as error:
            if not preview:
                pulumi.log.info(f"Could not check whether weights are staged in {self.folder}: {error}")
            return
        if found is None:
            return
        text, blocks = found
        if blocks and not preview:
            raise WeightsNotStagedError(text)
        pulumi.log.warn(text)

    async def finding(self) -> tuple[str, bool] | None:
        """Return what is wrong with the weights, and whether the server cannot start; None if they are staged.

        Raises GoogleCallError if it cannot be told.
        """
        remedy = f"Run `python -m scripts.stage_model --stack {self.stack}`, then `pulumi up --stack {self.stack}`."
        if await self._holds(MANIFEST):
            return await self._other_weights()
        if await self._holds(CONFIG):
            text = f"The weights in {self.folder} have no {MANIFEST}: staging did not end, or another tool copied them. {remedy}"
            return text, not self.existing or self.manifest is not None
        return f"No weights are staged in {self.folder}, and the server cannot start without them. {remedy}", True

    async def _other_weights(self) -> tuple[str, bool] | None:
        """Return how the staged weights differ from those that the settings name. Asks only if they name some."""
        if self.manifest is None:
            return None
        path = f"storage/v1/b/{self.bucket}/o/{quote(object_name(self.prefix, MANIFEST), safe='')}?alt=media"
        staged = manifest_hash(await call("storage", path, project=self.project, limit_s=LIMIT_S))
        if staged == self.manifest:
            return None
        text = (
            f"The weights in {self.folder} have the hash {staged}, and gemma-serving:bucket.manifest is {self.manifest}. "
            f"Set it to the staged hash, or stage the other weights: `python -m scripts.stage_model --stack {self.stack}`."
        )
        return text, True

    async def _holds(self, file: str) -> bool:
        """Return whether the folder has a file; without a bucket it has none."""
        name = object_name(self.prefix, file)
        query = urlencode({"prefix": name, "fields": "items/name"})
        try:
            answer = await call(
                "storage", f"storage/v1/b/{self.bucket}/o?{query}", project=self.project, limit_s=LIMIT_S
            )
        except GoogleCallError as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        items = cast("Sequence[Mapping[str, object]]", answer.get("items") or ())
        return any(item.get("name") == name for item in items)
