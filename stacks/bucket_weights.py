"""The weights of a stack in its bucket, against their manifest and the settings. No part of Pulumi is loaded here, because commands check them too."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, cast
from urllib.parse import quote

from gemma_serving.cloud.google_calls import GoogleCallError, call
from gemma_serving.cloud.model_files import CONFIG
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.contracts.staged_weights import (
    MANIFEST,
    OWN_FOLDER,
    StoredFile,
    difference,
    folder_uri,
    listing_path,
    manifest_hash,
    object_name,
    own_folder,
    stored_files,
)
from gemma_serving.planning.rules.security.pinned import COMMIT
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.stacks.extra_checkpoints import extra_checkpoints, staging_command
from gemma_serving.stacks.planned import doctor_hint

LIMIT_S: Final = 10.0
_OK, _NOT_FOUND = 200, 404


def staged_weights(settings: Settings, stack: str) -> "tuple[StagedWeights, ...]":
    """Return the folders that must be complete: the model's, and its staged parts'."""
    if settings.weights != "bucket":
        return ()
    model = StagedWeights(
        project=settings.project,
        bucket=settings.bucket_name(stack),
        prefix=settings.weights_prefix,
        stack=stack,
        command=staging_command(settings, stack),
        existing=settings.bucket.existing is not None,
        manifest=settings.bucket.manifest_hash,
        revision=settings.model_revision,
    )
    staged = [(extra.folder, extra.digest) for extra in extra_checkpoints(settings) if extra.folder is not None]
    return (model, *(replace(model, prefix=folder, manifest=digest, revision=None) for folder, digest in staged))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unproved:
    """Weights that are not staged, or do not match a manifest or the settings."""

    text: str
    """The fault as a clause."""
    command: str
    """Command that stages the weights."""
    remedy: str
    """Sentence with the command and what follows."""
    blocks: bool = True
    """True if `up` must stop."""
    is_known: bool = True
    """False if the folder could not be checked."""

    @property
    def sentence(self) -> str:
        """The fault and the remedy."""
        return f"{self.text}. {self.remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedWeights:
    """The folder of a bucket that must contain a checkpoint."""

    project: str
    bucket: str
    prefix: str
    """Empty if the weights are at the top level of the bucket."""
    stack: str
    command: str
    """Command that stages the weights."""
    existing: bool
    """True if the bucket is not the stack's own: another tool may have copied the checkpoint into it."""
    manifest: str | None = None
    """Hash that the settings pin the server to, and that the folder's name has too, or None."""
    revision: str | None = None
    """Commit of the model in the settings."""

    @property
    def folder(self) -> str:
        """URI of the folder."""
        return folder_uri(self.bucket, self.prefix)

    async def fault(self) -> Unproved | None:
        """Return the fault of the folder, or that it cannot be checked."""
        try:
            return await self.found()
        except GoogleCallError as error:
            text = f"Cannot check the weights in {self.folder}: {str(error).rstrip('.')}"
            remedy = f"Nothing was changed. {doctor_hint(self.stack)}"
            return Unproved(text=text, command="", remedy=remedy, is_known=False)

    async def found(self) -> Unproved | None:
        """Return the fault of the folder. Raises GoogleCallError if it cannot be checked."""
        wrong = partial(Unproved, command=self.command, remedy=f"Run `{self.command}`, then `gemma up {self.stack}`.")
        stored = await self.listed()
        if object_name(self.prefix, MANIFEST) not in stored:
            if object_name(self.prefix, CONFIG) not in stored:
                absent = f"No weights are staged in {self.folder}. The server cannot start without them"
                return await self._unnamed() or wrong(text=absent)
            text = (
                f"The weights in {self.folder} have no {MANIFEST}: staging is incomplete, or another tool copied them"
            )
            return wrong(text=text, blocks=not self.existing or self.manifest is not None)
        manifest = await self.read_manifest()
        different = difference(manifest, stored, self.prefix)
        if different is not None:
            return wrong(text=f"The weights in {self.folder} do not match their manifest: {different}")
        document = as_mapping(manifest)
        staged, copied = manifest_hash(document), str(document.get("revision"))
        if self.manifest not in {None, staged}:
            remove = f"gemma stage_model {self.stack} --remove {self.prefix}"
            return Unproved(
                text=f"The weights in {self.folder} have the hash {staged}, but gemma-serving:bucket.manifest is {self.manifest}. "
                "The folder's name has the other hash, so the weights were changed after staging",
                command=f"{remove} && {self.command}",
                remedy=f"Run `{remove}`, then stage them again.",
            )
        if self.revision is not None and COMMIT.fullmatch(copied) and copied != self.revision:
            return wrong(
                text=f"modelRevision is {self.revision}, but the weights in {self.folder} are from commit {copied}"
            )
        return None

    async def _unnamed(self) -> Unproved | None:
        """Return that a copy of the weights is staged, and the settings do not name it; None without exactly one such copy."""
        if self.manifest is not None:
            return None
        siblings = await replace(self, prefix=self.prefix.rpartition("/")[0]).listed()
        folders = [name.removesuffix(f"/{MANIFEST}") for name in siblings if name.endswith(f"/{MANIFEST}")]
        copies: list[tuple[str, StagedWeights]] = []
        for copy in (replace(self, prefix=folder) for folder in folders if folder.startswith(self.prefix)):
            digest = manifest_hash(as_mapping(await copy.read_manifest()))
            if copy.prefix == own_folder(self.prefix, digest) and await copy.found() is None:
                copies.append((digest, copy))
        if len(copies) != 1:
            return None
        ((digest, copy),) = copies
        setting = f"{PRODUCT}:bucket.manifest {OWN_FOLDER}{digest}"
        command = f"pulumi config set --path {setting} --stack {self.stack}"
        text = f"The weights are staged in {copy.folder}, but Pulumi.{self.stack}.yaml does not name them"
        return Unproved(text=text, command=command, remedy=f"Run `{command}`, then `gemma up {self.stack}`.")

    async def read_manifest(self) -> object:
        """Return the manifest, or None if it is not JSON. Raises GoogleCallError."""
        path = f"storage/v1/b/{self.bucket}/o/{quote(object_name(self.prefix, MANIFEST), safe='')}?alt=media"
        try:
            return await call("storage", path, project=self.project, limit_s=LIMIT_S)
        except GoogleCallError as error:
            if error.status == _OK:
                return None
            raise

    async def listed(self) -> Mapping[str, StoredFile]:
        """Return the objects of the folder by name; none if the bucket does not exist. Raises GoogleCallError."""
        path, token = listing_path(self.bucket, self.prefix), ""
        items: list[Mapping[str, object]] = []
        while True:
            following = f"&pageToken={quote(token, safe='')}" if token else ""
            try:
                page = await call("storage", path + following, project=self.project, limit_s=LIMIT_S)
            except GoogleCallError as error:
                if error.status == _NOT_FOUND:
                    return {}
                raise
            items += cast("Sequence[Mapping[str, object]]", page.get("items") or ())
            token = str(page.get("nextPageToken") or "")
            if not token:
                return stored_files(items)
