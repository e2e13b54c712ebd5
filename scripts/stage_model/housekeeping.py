"""`gemma stage_model STACK --list` and `--remove`: the folders of weights in a bucket, and their readers.

Readers are deployments in the states, Cloud Run revisions, and settings of stacks.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypedDict, cast

from gemma_serving.cloud.google_api import GoogleApi, answer_of, connect
from gemma_serving.cloud.model_files import CONFIG
from gemma_serving.cloud.service_traffic import serving_shares, short_name
from gemma_serving.cloud.staging.bucket import NoBucketError, WeightsBucket
from gemma_serving.contracts.compile_cache import ARCHIVE_PREFIX
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.parallel import each
from gemma_serving.contracts.proof import Asker, Proof
from gemma_serving.contracts.resource_types import SERVER_TYPES, SERVICE_TYPE
from gemma_serving.contracts.staged_weights import MANIFEST, MODELS_FOLDER, PARTS, folder_uri
from gemma_serving.contracts.three_answers import Absent, Present, Unknown
from gemma_serving.engine import state as states
from gemma_serving.engine.state import StackState
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.units import GIB
from gemma_serving.scripts.cli.command import print_text
from gemma_serving.scripts.cli.prompts import confirm
from gemma_serving.scripts.stack.settings import stack_settings
from gemma_serving.stacks.extra_checkpoints import extra_checkpoints


class _Folder(TypedDict):
    name: str
    files: int
    gib: float
    complete: bool
    served_by: list[str]
    """Deployments and revisions that read it now or at their next start."""
    older_revisions: list[str]
    """Revisions without traffic that cannot be restored after the removal."""
    settings: list[str]
    unknown: list[str]
    """Failed checks, one clause each. They prevent a removal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Readers:
    """Possible readers of a bucket, read once for all its folders."""

    bucket: str
    states: Sequence[StackState]
    settings: Mapping[str, Settings]
    texts: Mapping[str, str]
    serving: set[str]
    unknown: list[str]

    def of(self, name: str, sizes: Sequence[int], *, complete: bool) -> _Folder:
        """Return a folder, with files of these sizes, and its readers."""
        uri = _pattern(folder_uri(self.bucket, name))
        mounted = f"{uri}|{_pattern(f'{MODELS_FOLDER}/{name}')}"
        revisions = [one for one, text in self.texts.items() if re.search(mounted, text)]
        deployed = [f"stack {state.stack}" for state in self.states if self._reads(state, uri, mounted)]
        return _Folder(
            name=name,
            files=len(sizes),
            gib=round(sum(sizes) / GIB, 3),
            complete=complete,
            served_by=[*deployed, *(f"revision {one}" for one in revisions if one in self.serving)],
            older_revisions=[f"revision {one}" for one in revisions if one not in self.serving],
            settings=[
                f"Pulumi.{stack}.yaml"
                for stack, settings in self.settings.items()
                if settings.weights == "bucket"
                and settings.bucket_name(stack) == self.bucket
                and name in {settings.weights_prefix, *(extra.folder for extra in extra_checkpoints(settings))}
            ],
            unknown=self.unknown,
        )

    def _reads(self, state: StackState, uri: str, mounted: str) -> bool:
        for resource in state.resources:
            text = json.dumps(resource)
            # A machine's own copy has the path of every folder, a service only its bucket's.
            wanted = mounted if resource.get("type") == SERVICE_TYPE and self.bucket in text else uri
            if resource.get("type") in SERVER_TYPES and re.search(wanted, text):
                return True
        return False


def manage(stack: str, settings: Settings, name: str | None, *, yes: bool, as_json: bool) -> ExitCode:
    """List the folders of a stack's bucket, or remove one. Raises CommandRefusedError and ScriptError."""
    bucket = settings.bucket_name(stack)
    is_shared = settings.bucket.existing is not None
    target = WeightsBucket(bucket, settings.project, Asker(stack=stack), is_shared=is_shared)
    names = dict.fromkeys([settings.weights_name, *(extra.name for extra in extra_checkpoints(settings))])
    try:
        listed = [found for below in (names if is_shared else ("",)) for found in _staged(target, below)]
    except NoBucketError:
        if is_shared:
            raise
        listed = []
    readers = _readers(bucket, stack, settings)
    folders = [readers.of(folder, sizes, complete=complete) for folder, sizes, complete in listed]
    chosen = None if name is None else _removable(target, folders, readers, name.strip("/"))
    if not as_json:
        _print(stack, bucket, folders if chosen is None else [chosen[0]], readers.unknown, is_shared=is_shared)
    report: dict[str, object] = {"stack": stack, "bucket": bucket}
    if chosen is None:
        report["folders"] = folders
    else:
        report["removed"], report["objects"] = chosen[0], _removed(target, *chosen, yes=yes)
    if as_json:
        print_text(json.dumps(report))
    elif chosen is not None:
        print_text(f"stage_model: deleted {report['objects']} objects, gs://{bucket}/{chosen[0]['name']}")
    return ExitCode.DONE


def _removable(
    target: WeightsBucket, folders: Sequence[_Folder], readers: _Readers, name: str
) -> tuple[_Folder, Proof]:
    """Return a folder, and the proof that nothing serves it. Raises CommandRefusedError, and NotOwnedError for another owner's bucket."""
    uri = f"gs://{target.name}/{name}"
    folder = next((one for one in folders if one["name"] == name), None)
    if folder is None:
        known = ", ".join(one["name"] for one in folders) or "none"
        raise CommandRefusedError(f"gs://{target.name} has no weights in {name!r}. Folders: {known}.")
    if folder["served_by"]:
        raise CommandRefusedError(
            f"{uri} is served by {' and '.join(folder['served_by'])}. Nothing was deleted. "
            "Deploy other weights first, then remove it."
        )
    if readers.unknown:
        raise CommandRefusedError(
            f"Cannot check what serves {uri}: {'; '.join(readers.unknown)}. Nothing was deleted. "
            "Fix this, then run the command again."
        )
    source = f"{len(readers.states)} states, {len(readers.texts)} revisions and {len(readers.settings)} settings files"
    return folder, target.proof(f"nothing serves {uri}", source)


def _removed(target: WeightsBucket, folder: _Folder, proof: Proof, *, yes: bool) -> int:
    """Delete a folder, its manifest first, and return the number of objects. Raises CommandRefusedError if not confirmed."""
    uri = f"gs://{target.name}/{folder['name']}"
    if not yes:
        confirm(
            f"Delete {folder['files']} files, {folder['gib']:.2f} GiB, in {uri}?",
            without_terminal=f"Deleting {uri} needs a confirmation, and stdin is not a terminal. "
            "Pass --yes to confirm.",
            declined="The answer was not yes. Nothing was deleted.",
        )
    name = folder["name"]
    found = {**target.objects(f"{name}/"), **target.objects(f"{PARTS}/{name}/")}
    manifest = found.pop(f"{name}/{MANIFEST}", None)
    if manifest is not None:
        target.delete(manifest, proof)
    each([partial(target.delete, item, proof) for item in found.values()], workers=16)
    return len(found) + (manifest is not None)


def _print(stack: str, bucket: str, folders: Sequence[_Folder], unknown: Sequence[str], *, is_shared: bool) -> None:
    empty = f"gs://{bucket} has no weights. To copy them, run `gemma stage_model {stack}`."
    print_text(f"Weights in gs://{bucket}:" if folders else empty)
    for folder in folders:
        parts = [
            *folder["served_by"],
            *(f"{one} (no traffic)" for one in folder["older_revisions"]),
            *(f"{one} (settings)" for one in folder["settings"]),
            *(["unknown, see below"] if unknown else []),
            *([] if folder["complete"] else ["staging incomplete"]),
        ]
        # The name has its own line so it can be pasted after --remove.
        print_text(f"  {folder['name']}")
        print_text(f"    {folder['files']} files, {folder['gib']:.2f} GiB; read by {', '.join(parts) or 'nothing'}")
    for why in unknown:
        print_text(f"Unknown: {why}.")
    if is_shared:
        print_text("Readers in other projects, backends and programs are unknown.")


def _readers(bucket: str, stack: str, settings: Settings) -> _Readers:
    found, api = states.all_states(), connect(settings.project)
    every = {stack: settings}
    for state in found:
        if state.stack not in every:
            with suppress(CommandRefusedError):  # a stack whose file cannot be read has no folder
                every[state.stack] = stack_settings(state.stack)
    unreadable = [state.stack for state in found if state.status in {"unreadable", "no engine"}]
    unknown = [f"the state of stack {name} could not be read" for name in unreadable]
    texts, serving = dict[str, str](), set[str]()
    for service in sorted(set(_services(bucket, found, every))):
        match answer_of("run", lambda service=service: _revisions(api, service)):
            case Present(value=(names, revisions)):
                serving |= names
                texts |= {name: text for name, text in revisions.items() if bucket in text}
            case Absent():
                pass
            case Unknown(why=why):
                about = f"the revisions of service {short_name(service)}"
                unknown.append(f"{about} could not be read: {why.rstrip('.')}")
    return _Readers(bucket=bucket, states=found, settings=every, texts=texts, serving=serving, unknown=unknown)


def _staged(target: WeightsBucket, below: str) -> Iterator[tuple[str, Sequence[int], bool]]:
    """Yield the folders with a manifest, and the topmost with other weights; in a shared bucket, only below `below`."""
    found = target.objects(below)
    ours = re.compile(rf"{re.escape(below)}(-[0-9a-f]{{16}})?/" if below else "")
    names = [name for name in found if ours.match(name) and not name.startswith((f"{PARTS}/", f"{ARCHIVE_PREFIX}/"))]
    whole = {name.rpartition("/")[0] for name in names if name.endswith(f"/{MANIFEST}")}
    marked = whole | {name.rpartition("/")[0] for name in names if name.endswith((f"/{CONFIG}", ".safetensors"))}
    sizes: dict[str, list[int]] = {}
    for folder in sorted(marked - {""}):
        if folder in whole or not any(folder.startswith(f"{other}/") for other in marked):
            sizes[folder] = []
    for name in names:
        root = max((root for root in sizes if name.startswith(f"{root}/")), key=len, default=None)
        if root is not None:
            sizes[root].append(found[name].size_bytes)
    for root, inside in sizes.items():
        yield root, inside, root in whole


def _services(bucket: str, found: Sequence[StackState], settings: Mapping[str, Settings]) -> Iterator[str]:
    """Yield the full names of services that may read the bucket."""
    for stack, known in settings.items():
        if known.cloud_run is not None and known.bucket_name(stack) == bucket:
            base = Names(project=known.project, stack=stack).base
            yield f"projects/{known.project}/locations/{known.cloud_run.region}/services/{base}"
    for resource in (resource for state in found for resource in state.resources):
        if resource.get("type") == SERVICE_TYPE and bucket in json.dumps(resource):
            yield str(resource.get("id") or "")


def _revisions(api: GoogleApi, service: str) -> tuple[set[str], Mapping[str, str]]:
    """Return the names of a service's revisions that serve, or will, and all as JSON by name."""
    document = api.get("run", f"v2/{service}")
    names = {short_name(document.get(key)) for key in ("latestReadyRevision", "latestCreatedRevision")}
    traffic = cast("Sequence[Mapping[str, object]]", document.get("traffic") or ())
    names |= {*serving_shares(document), *(str(entry.get("revision") or "") for entry in traffic)}
    pages = api.pages("run", f"v2/{service}/revisions")
    listed = [one for page in pages for one in cast("Sequence[Mapping[str, object]]", page.get("revisions") or ())]
    return names, {short_name(revision.get("name")): json.dumps(revision) for revision in listed}


def _pattern(path: str) -> str:
    """Return a pattern for a path and everything below it."""
    return rf"{re.escape(path)}(?![\w.-])"
