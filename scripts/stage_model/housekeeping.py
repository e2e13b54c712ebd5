"""`scripts.stage_model --list` and `--remove`: which folders of weights a bucket has, what reads each, and their removal."""

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
from stacks.settings import Settings

_GIB: Final = 1024**3
_ELSEWHERE: Final = "What other projects, backends and programs read in this bucket is not known here."


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """A bucket, its folders, and what reads it."""

    stack: str
    target: WeightsBucket
    existing: bool
    folders: Sequence[StagedFolder]
    readers: BucketReaders

    def uses(self, folder: str) -> FolderUses:
        """Return what reads a folder."""
        return self.readers.of(folder)


def look(stack: str, settings: Settings) -> House:
    """List the folders, and read what may use them. Changes nothing. Raises ScriptError if the bucket cannot be listed."""
    bucket = settings.bucket_name(stack)
    target = WeightsBucket(bucket, settings.project)
    folders = staged_folders(target, below=settings.weights_name if settings.bucket.existing else None)
    found = states.all_states()
    others = settings_of([state.stack for state in found if state.stack != stack])
    readers = bucket_readers(bucket, found, {stack: settings, **others}, google_api.connect(settings.project))
    return House(
        stack=stack, target=target, existing=settings.bucket.existing is not None, folders=folders, readers=readers
    )


def show(house: House, *, as_json: bool, only: str | None = None) -> None:
    """Print the folders with their uses."""
    folders = [folder for folder in house.folders if only in {None, folder.name}]
    if as_json:
        print(json.dumps({**_head(house), "folders": [_document(house, folder) for folder in folders]}))
        return
    print(f"Weights in gs://{house.target.name}:" if folders else f"gs://{house.target.name} has no weights.")
    for folder in folders:
        # The name has a line of its own, whole: it is what --remove takes.
        print(
            f"  {folder.name}\n    {folder.files} files, {folder.size_bytes / _GIB:.2f} GiB; read by {_words(house, folder)}"
        )
    for text in house.readers.unknown:
        print(f"Unknown: {text}.")
    if house.existing:
        print(_ELSEWHERE)


def remove(house: House, name: str, *, yes: bool, as_json: bool) -> ExitCode:
    """Show a folder, ask, and delete it. Raises CommandRefusedError if it is served, if that is unknown, or if the answer is not yes."""
    name = name.strip("/")
    folder = next((one for one in house.folders if one.name == name), None)
    if folder is None:
        known = ", ".join(one.name for one in house.folders) or "none"
        raise CommandRefusedError(f"gs://{house.target.name} has no weights in {name!r}; it has: {known}.")
    uses = house.uses(folder.name)
    uri = f"gs://{house.target.name}/{folder.name}"
    if uses.served_by:
        raise CommandRefusedError(
            f"{uri} is served by {' and '.join(uses.served_by)}. Nothing was deleted. Deploy other weights first, then remove it."
        )
    if uses.unknown:
        raise CommandRefusedError(
            f"What serves {uri} is unknown: {'; '.join(uses.unknown)}. Nothing was deleted. Run this again when that can be read."
        )
    if not as_json:
        show(house, as_json=False, only=folder.name)
    if not yes:
        confirm(
            f"Delete {folder.files} files, {folder.size_bytes / _GIB:.2f} GiB, in {uri}?",
            without_terminal=f"{uri} is to be deleted and stdin is not a terminal; pass --yes to confirm.",
            declined="The answer was not yes, so nothing was deleted.",
        )
    count = remove_folder(house.target, folder.name)
    if as_json:
        print(json.dumps({**_head(house), "removed": _document(house, folder), "objects": count}))
    else:
        print(f"stage_model: {count} objects deleted: {uri}")
    return ExitCode.DONE


def _head(house: House) -> Mapping[str, object]:
    return {"stack": house.stack, "bucket": house.target.name}


def _words(house: House, folder: StagedFolder) -> str:
    uses = house.uses(folder.name)
    parts = [
        *uses.served_by,
        *(f"{one} (no requests)" for one in uses.older),
        *(f"{one} (settings)" for one in uses.named_by),
        *(["unknown, see below"] if uses.unknown else []),
        *([] if folder.has_manifest else ["staging did not end"]),
    ]
    return ", ".join(parts) or "nothing"


def _document(house: House, folder: StagedFolder) -> Mapping[str, object]:
    uses = house.uses(folder.name)
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
