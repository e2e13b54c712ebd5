"""`scripts.stage_model --list` and `--remove`: the folders of weights in a bucket, their readers and their removal."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cloud import google_api
from cloud.staging.bucket import WeightsBucket
from cloud.staging.folders import StagedFolder, remove_folder, staged_folders
from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from engine import state as states
from scripts.cli.prompts import confirm
from scripts.stage_model.uses import BucketReaders, FolderUses, bucket_readers, settings_of
from stacks.parts import parts_of
from stacks.settings import Settings

_GIB: Final = 1024**3
_ELSEWHERE: Final = "Readers in other projects, backends and programs are unknown."


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketContents:
    """A bucket, its folders and their readers."""

    stack: str
    target: WeightsBucket
    existing: bool
    folders: Sequence[StagedFolder]
    readers: BucketReaders

    def uses(self, folder: str) -> FolderUses:
        """Return the readers of a folder."""
        return self.readers.of(folder)


def read_contents(stack: str, settings: Settings) -> BucketContents:
    """List the folders and their readers. Raises ScriptError if the bucket cannot be listed."""
    bucket = settings.bucket_name(stack)
    target = WeightsBucket(bucket, settings.project)
    names = [settings.weights_name, *(part.name for part in parts_of(settings))]
    folders = [
        folder
        for below in (dict.fromkeys(names) if settings.bucket.existing else (None,))
        for folder in staged_folders(target, below=below)
    ]
    found = states.all_states()
    others = settings_of([state.stack for state in found if state.stack != stack])
    readers = bucket_readers(bucket, found, {stack: settings, **others}, google_api.connect(settings.project))
    return BucketContents(
        stack=stack, target=target, existing=settings.bucket.existing is not None, folders=folders, readers=readers
    )


def show(contents: BucketContents, *, as_json: bool, only: str | None = None) -> None:
    """Print the folders with their readers."""
    folders = [folder for folder in contents.folders if only in {None, folder.name}]
    if as_json:
        print(json.dumps({**_head(contents), "folders": [_document(contents, folder) for folder in folders]}))
        return
    print(f"Weights in gs://{contents.target.name}:" if folders else f"gs://{contents.target.name} has no weights.")
    for folder in folders:
        # The name has its own line so that it can be pasted after --remove.
        print(
            f"  {folder.name}\n    {folder.files} files, {folder.size_bytes / _GIB:.2f} GiB; read by {_readers(contents, folder)}"
        )
    for text in contents.readers.unknown:
        print(f"Unknown: {text}.")
    if contents.existing:
        print(_ELSEWHERE)


def remove(contents: BucketContents, name: str, *, yes: bool, as_json: bool) -> ExitCode:
    """Show a folder, confirm, and delete it. Raises CommandRefusedError if it is or may be served, or the answer is not yes."""
    name = name.strip("/")
    folder = next((one for one in contents.folders if one.name == name), None)
    if folder is None:
        known = ", ".join(one.name for one in contents.folders) or "none"
        raise CommandRefusedError(f"gs://{contents.target.name} has no weights in {name!r}. Folders: {known}.")
    uses = contents.uses(folder.name)
    uri = f"gs://{contents.target.name}/{folder.name}"
    if uses.served_by:
        raise CommandRefusedError(
            f"{uri} is served by {' and '.join(uses.served_by)}. Nothing was deleted. Deploy other weights first, then remove it."
        )
    if uses.unknown:
        raise CommandRefusedError(
            f"Cannot check what serves {uri}: {'; '.join(uses.unknown)}. Nothing was deleted. Fix this, then run the command again."
        )
    if not as_json:
        show(contents, as_json=False, only=folder.name)
    if not yes:
        confirm(
            f"Delete {folder.files} files, {folder.size_bytes / _GIB:.2f} GiB, in {uri}?",
            without_terminal=f"Deleting {uri} needs a confirmation, and stdin is not a terminal. Pass --yes to confirm.",
            declined="The answer was not yes. Nothing was deleted.",
        )
    count = remove_folder(contents.target, folder.name)
    if as_json:
        print(json.dumps({**_head(contents), "removed": _document(contents, folder), "objects": count}))
    else:
        print(f"stage_model: deleted {count} objects, {uri}")
    return ExitCode.DONE


def _head(contents: BucketContents) -> Mapping[str, object]:
    return {"stack": contents.stack, "bucket": contents.target.name}


def _readers(contents: BucketContents, folder: StagedFolder) -> str:
    uses = contents.uses(folder.name)
    parts = [
        *uses.served_by,
        *(f"{one} (no traffic)" for one in uses.older),
        *(f"{one} (settings)" for one in uses.named_by),
        *(["unknown, see below"] if uses.unknown else []),
        *([] if folder.has_manifest else ["staging incomplete"]),
    ]
    return ", ".join(parts) or "nothing"


def _document(contents: BucketContents, folder: StagedFolder) -> Mapping[str, object]:
    uses = contents.uses(folder.name)
    return {
        "name": folder.name,
        "files": folder.files,
        "gib": round(folder.size_bytes / _GIB, 3),
        "complete": folder.has_manifest,
        "served_by": list(uses.served_by),
        "older_revisions": list(uses.older),
        "settings": list(uses.named_by),
        "unknown": list(uses.unknown),
    }
