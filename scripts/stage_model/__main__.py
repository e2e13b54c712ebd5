r"""Copy a stack's weights, drafter and adapters to its bucket.

Copies from the Hugging Face hub, another bucket or a local folder. Each checkpoint has its own folder, named by the hash of its manifest, so the
files of a revision never change. Previews and creates the stack's bucket if it does not exist, and changes no other resource. Copies only missing
files, large ones in parallel parts. You can rerun the command at any time, even after it was killed.

  gemma stage_model l4-qat
  gemma stage_model l4-qat --list
  gemma stage_model l4-qat \
      --remove gemma-4-12B-it-0123456789abcdef
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

from contracts.errors import CommandRefusedError, ScriptError
from contracts.exit_codes import ExitCode
from contracts.staged_weights import OWN_FOLDER, own_folder
from scripts.cli.command import Command, run_command, say
from scripts.cli.options import JsonSwitch, Option, StackName
from scripts.cli.settings import stack_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cloud.staging.bucket import WeightsBucket
    from cloud.staging.manifest import StagingOutcome
    from cloud.staging.sources import CheckpointSource, SourceFile
    from scripts.cli.transfer import Transfer
    from stacks.parts import Part
    from stacks.settings import Settings

_GIB: Final = 1024**3
_MIB: Final = 1024**2
_GS: Final = "gs://"


@dataclass(frozen=True, kw_only=True)
class StageOptions:
    """Options of the command."""

    stack: StackName
    origin: Annotated[
        str | None,
        Option(
            "Local folder or gs://BUCKET/FOLDER with the checkpoint. Default: the hub.", flag="--from", metavar="SOURCE"
        ),
    ] = None
    revision: Annotated[
        str | None,
        Option(
            "Branch, tag or commit on the hub. Default: modelRevision, then the main branch.",
            metavar="NAME",
        ),
    ] = None
    part_size_mib: Annotated[
        int, Option("Size of a part in MiB.", flag="--part-size", metavar="MIB", least=1, most=1024)
    ] = 32
    parallel: Annotated[
        int,
        Option(
            "Concurrent parts, or files of another bucket. Memory holds 1.5 times as many.",
            least=1,
            most=64,
        ),
    ] = 8
    bind: Annotated[
        bool,
        Option(
            "Write the hashes (bucket.manifest, bucket.parts) and commit (modelRevision) to the stack's file.",
            negatable=True,
        ),
    ] = True
    create: Annotated[bool, Option("Create the stack's bucket if it does not exist.", negatable=True)] = True
    plan: Annotated[
        str | None, Option("Create the bucket only if its preview has this id from the agent.", metavar="ID")
    ] = None
    list_folders: Annotated[
        bool, Option("List the staged folders of the bucket and their readers. Stages nothing.", flag="--list")
    ] = False
    remove: Annotated[
        str | None,
        Option("Delete this folder of the bucket unless it is served. Stages nothing.", metavar="FOLDER"),
    ] = None
    yes: Annotated[bool, Option("Skip the confirmation of --remove.")] = False
    as_json: JsonSwitch = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A listed source and the function that copies it."""

    name: str
    """Hugging Face id, or gs:// folder of an adapter."""
    folder_base: str
    """Folder of the copy in the bucket, without the hash."""
    files: "Sequence[SourceFile]"
    revision: str
    run: "Callable[[WeightsBucket, Transfer], StagingOutcome]"
    has_parts: bool = True
    """True if files are copied through temporary objects."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def real_bytes(self) -> int:
        """Bytes of the real files if the local cloud's hub sends shrunk ones, otherwise 0."""
        return sum(file.real_bytes for file in self.files)

    def announce(self) -> None:
        """Report the files and their size."""
        size, real = self.size_bytes, self.real_bytes
        simulated = f" (simulated: the hub of the local cloud sends {size / _MIB:.1f} MiB)" if real else ""
        say("stage_model", f"{self.name}: {len(self.files)} files, {(real or size) / _GIB:.2f} GiB{simulated}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Staged:
    """A completed copy."""

    job: _Job
    outcome: "StagingOutcome"

    @property
    def setting(self) -> str:
        """Hash as the settings have it."""
        return f"{OWN_FOLDER}{self.outcome.manifest}"

    @property
    def folder(self) -> str:
        """Folder of the bucket."""
        return own_folder(self.job.folder_base, self.outcome.manifest)

    def document(self) -> "dict[str, object]":
        """Return the copy for --json."""
        found: dict[str, object] = {"prefix": self.folder, "copied": self.outcome.copied, "kept": self.outcome.kept}
        return {**found, "revision": self.job.revision, "manifest": self.outcome.manifest}


def _stage_model(options: StageOptions) -> ExitCode:
    from cloud.enabled import await_api, require_apis
    from cloud.google_api import connect
    from cloud.staging.bucket import WeightsBucket
    from scripts.cli.transfer import Transfer, overwrite_line
    from stacks.apis import apis_of
    from stacks.parts import parts_of

    stack, settings = options.stack, stack_settings(options.stack)
    _require_compatible(options)
    if settings.weights != "bucket":
        raise CommandRefusedError(
            f"Stack {stack} does not use staged weights (weights: {settings.weights}). To stage weights, set weights: bucket."
        )
    if options.list_folders or options.remove is not None:
        return _manage_folders(options, settings)
    if not settings.weights_name:
        raise CommandRefusedError(
            f"bucket.prefix has no folder for the weights. Set it, such as prefix: models/{settings.model.rpartition('/')[2]}."
        )
    require_apis(settings.project, apis_of(settings), say=_say)
    jobs = [_job(options, settings), *(_part_job(part, options, settings) for part in parts_of(settings))]
    for job in jobs:
        job.announce()
    name = settings.bucket_name(stack)
    if settings.bucket.existing is None:
        _require_bucket(options, settings)
    await_api(connect(settings.project), "storage", f"storage/v1/b/{name}/o?maxResults=1", say=_say)
    target = WeightsBucket(name, settings.project)
    through_parts = sum(job.size_bytes for job in jobs if job.has_parts)
    if settings.bucket.existing is not None and through_parts:
        _report_soft_delete(target, through_parts / _GIB, settings.bucket.region)
    overwrite = overwrite_line if sys.stderr.isatty() else None
    with Transfer(_say, overwrite=overwrite) as transfer:
        staged = [_Staged(job=job, outcome=job.run(target, transfer)) for job in jobs]
    _record(options, settings, staged)
    _show(options, settings, staged, bucket=name)
    return ExitCode.DONE


def _say(text: str) -> None:
    say("stage_model", text)


def _record(options: StageOptions, settings: "Settings", staged: "Sequence[_Staged]") -> None:
    """Write the hashes to the stack's file, or report them with --no-bind."""
    model, *parts = staged
    revision = _commit_of(options, model.job, settings)
    hashes = {part.job.name: part.setting for part in parts}
    if not options.bind:
        _report_unbound(options.stack, settings, model.setting, revision, hashes)
        return
    changes: dict[str, object] = {"bucket.manifest": model.setting, "modelRevision": revision}
    if hashes or settings.bucket.parts:
        changes["bucket.parts"] = hashes or None
    _bind(options.stack, settings, changes)


def _show(options: StageOptions, settings: "Settings", staged: "Sequence[_Staged]", *, bucket: str) -> None:
    """Print the folders and what was copied."""
    model, *parts = staged
    simulated = any(one.job.real_bytes for one in staged)
    if options.as_json:
        setting = {"bucket.manifest": model.setting, "modelRevision": _commit_of(options, model.job, settings)}
        report = {"stack": options.stack, "bucket": bucket, **model.document(), "setting": setting}
        report |= {"simulated": simulated, "parts": [{"name": one.job.name, **one.document()} for one in parts]}
        print(json.dumps(report))
        return
    for one in staged:
        counts = f"copied {one.outcome.copied} files, kept {one.outcome.kept}{' (simulated)' if simulated else ''}"
        print(f"stage_model: {counts}, gs://{bucket}/{one.folder}")


def _require_compatible(options: StageOptions) -> None:
    """Reject options that cannot be combined. Raises CommandRefusedError."""
    if options.list_folders and options.remove is not None:
        raise CommandRefusedError("--list and --remove cannot be combined.")
    if (options.list_folders or options.remove is not None) and (options.origin or options.revision or options.plan):
        raise CommandRefusedError("--list and --remove cannot be combined with --from, --revision or --plan.")
    if options.plan is not None and not options.create:
        raise CommandRefusedError("--plan and --no-create cannot be combined.")


def _manage_folders(options: StageOptions, settings: "Settings") -> ExitCode:
    """List or remove folders."""
    from scripts.stage_model import housekeeping

    contents = housekeeping.read_contents(options.stack, settings)
    if options.remove is None:
        housekeeping.show(contents, as_json=options.as_json)
        return ExitCode.DONE
    return housekeeping.remove(contents, options.remove, yes=options.yes, as_json=options.as_json)


def _job(options: StageOptions, settings: "Settings") -> _Job:
    """List the source before the copy. Raises CommandRefusedError if it is not a checkpoint, and ScriptError if it is unreadable."""
    if options.origin is not None and options.revision is not None:
        raise CommandRefusedError("--revision and --from cannot be combined.")
    if options.origin is not None and options.origin.startswith(_GS):
        from cloud.model_files import CONFIG

        return _bucket_job(options.origin, settings.model, settings.weights_name, options, settings, config=CONFIG)
    from cloud.staging import sources

    source = (
        sources.FolderSource(folder=Path(options.origin))
        if options.origin is not None
        else sources.hub(settings.model, options.revision or settings.model_revision)
    )
    return _read_job(settings.model, settings.weights_name, source, options)


def _part_job(part: "Part", options: StageOptions, settings: "Settings") -> _Job:
    """List a drafter or adapter, on the hub or in another bucket. Raises as `_job` does."""
    from cloud.model_files import ADAPTER_CONFIG, CONFIG
    from cloud.staging import sources

    config = ADAPTER_CONFIG if part.kind == "adapter" else CONFIG
    if part.source.startswith(_GS):
        return _bucket_job(part.source, part.source, part.name, options, settings, config=config)
    return _read_job(part.source, part.name, sources.hub(part.source, part.revision, config=config), options)


def _read_job(name: str, folder_base: str, source: "CheckpointSource", options: StageOptions) -> _Job:
    """Return the copy of a source whose bytes this machine reads, to a folder that starts with `folder_base`."""
    from cloud.staging import copying, sources
    from cloud.staging import own_folder as own

    files = source.files()
    sources.require_whole_weights(str(source.revision), files, source.read)

    def run(target: "WeightsBucket", transfer: "Transfer") -> "StagingOutcome":
        part_bytes, workers = options.part_size_mib * _MIB, options.parallel
        known = own.hashed_source(source, files, part_bytes=part_bytes, workers=workers, on_bytes=transfer)
        digest = own.digest_of(known.files())
        folder, _ = own.prepared_folder(target, folder_base, files, digest, options.stack)
        plan = copying.CopyPlan(source=known, target=target, prefix=folder, part_bytes=part_bytes, workers=workers)
        outcome = copying.stage(plan, _line_for_each(files, transfer), transfer)
        own.require_staged(digest, outcome.manifest, folder)
        return outcome

    return _Job(name=name, folder_base=folder_base, files=files, revision=source.revision, run=run)


def _bucket_job(
    origin: str, name: str, folder_base: str, options: StageOptions, settings: "Settings", *, config: str
) -> _Job:
    """Return the copy of a folder of another bucket within Google."""
    from cloud.staging import own_folder as own
    from cloud.staging import rewriting
    from cloud.staging.bucket import WeightsBucket
    from cloud.staging.sources import require_whole_weights

    bucket, prefix = rewriting.bucket_of(origin)
    source = rewriting.BucketSource(bucket=WeightsBucket(bucket, settings.project), prefix=prefix, config=config)
    checkpoint = source.checkpoint()
    require_whole_weights(source.uri, checkpoint.files, source.read)

    def run(target: "WeightsBucket", transfer: "Transfer") -> "StagingOutcome":
        files, objects = checkpoint.files, checkpoint.objects
        digest = own.digest_of(files, lambda name: objects[name].crc32c)
        folder, present = own.prepared_folder(target, folder_base, files, digest, options.stack)
        own.require_same_bytes(target, folder, present, objects)
        outcome = rewriting.Rewriting(
            source=source,
            checkpoint=checkpoint,
            target=target,
            prefix=folder,
            on_file=_line_for_each(files, transfer),
            on_bytes=transfer,
        ).run(workers=options.parallel)
        own.require_staged(digest, outcome.manifest, folder)
        return outcome

    return _Job(
        name=name,
        folder_base=folder_base,
        files=checkpoint.files,
        revision=checkpoint.revision,
        run=run,
        has_parts=False,
    )


def _line_for_each(files: "Iterable[SourceFile]", transfer: "Transfer") -> "Callable[[SourceFile, bool], None]":
    total_bytes, done_bytes = sum(file.size_bytes for file in files), 0

    def on_file(file: "SourceFile", copied: bool) -> None:
        nonlocal done_bytes
        done_bytes += file.size_bytes
        share = done_bytes / total_bytes if total_bytes else 1.0
        transfer.note(f"{share:4.0%} {'copied' if copied else 'kept  '} {file.name}")

    return on_file


def _report_soft_delete(target: "WeightsBucket", size_gib: float, region: str | None) -> None:
    """Report the cost of temporary parts in an existing bucket with soft delete. The stack's own bucket has none."""
    from planning.data.prices import LIST_PRICES
    from planning.units import HOUR_S, MONTH_H, duration

    kept_s = target.soft_delete_s()
    if kept_s:
        usd = size_gib * LIST_PRICES.price("bucket_usd_per_gib_month", region).usd * kept_s / (MONTH_H * HOUR_S)
        say(
            "stage_model",
            f"gs://{target.name} keeps deleted objects for {duration(kept_s)}. The temporary parts of this copy, {size_gib:.2f} GiB at most, "
            f"are billed for that time (about {usd:.2f} USD).",
        )


def _commit_of(options: StageOptions, job: _Job, settings: "Settings") -> str | None:
    """Return the copied commit of the hub; None for another source, whose commit cannot be verified.

    A folder or bucket that records the commit of the settings keeps that setting.
    """
    if options.origin is None or job.revision == settings.model_revision:
        return job.revision or None
    return None


def _report_unbound(
    stack: str, settings: "Settings", setting: str, revision: str | None, hashes: "Mapping[str, str]"
) -> None:
    """Report the settings that are needed to serve the staged weights."""
    key = f"pulumi config set --stack {stack}"
    if settings.bucket.manifest != setting:
        say(
            "stage_model",
            f"bucket.manifest is {settings.bucket.manifest or 'not set'}, so `pulumi up` does not serve these weights yet. To serve them, run "
            f"`{key} --path gemma-serving:bucket.manifest {setting}`.",
        )
    if settings.bucket.parts != hashes:
        say("stage_model", f"bucket.parts differs. To serve the staged parts, set it to {json.dumps(hashes)}.")
    if settings.model_revision == revision:
        return
    is_set = settings.model_revision or "not set"
    if revision is None:
        advice = (
            f"The commit of this source is unknown. Run `pulumi config rm --stack {stack} gemma-serving:modelRevision`"
        )
    else:
        advice = f"These weights are from commit {revision}. Run `{key} gemma-serving:modelRevision {revision}`"
    say("stage_model", f"modelRevision is {is_set}. {advice}.")


def _bind(stack: str, settings: "Settings", changes: "Mapping[str, object]") -> None:
    """Write the hash and commit of the weights to the stack's file, so that `pulumi up` rolls out changed weights.

    Raises ScriptError, without a change, if the file cannot be read or written.
    """
    from ruamel.yaml.error import YAMLError

    from engine.atomic_file import replace_file
    from engine.runner import project_folder
    from scripts.cli.settings_file import SettingsFile

    path, setting = project_folder() / f"Pulumi.{stack}.yaml", changes["bucket.manifest"]
    try:
        document = SettingsFile(path)
        before = path.read_text(encoding="utf-8")
        document.apply(changes)
        after = document.text()
        if after != before:
            replace_file(path.resolve(), after)
    except (OSError, YAMLError, KeyError, TypeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        raise ScriptError(
            f"The weights are staged, but {path.name} cannot be changed ({why}). Set bucket.manifest in it to {setting}."
        ) from None
    if settings.bucket.manifest != setting:
        say(
            "stage_model",
            f"{path.name}: set bucket.manifest to {setting}. To serve these weights, run `gemma up {stack}`.",
        )
    for name, digest in (cast("Mapping[str, str]", changes.get("bucket.parts") or {})).items():
        if settings.bucket.parts.get(name) != digest:
            say("stage_model", f"{path.name}: set bucket.parts for {name} to {digest}")
    if settings.model_revision != changes["modelRevision"]:
        action = (
            f"set modelRevision to {changes['modelRevision']}"
            if changes["modelRevision"]
            else "removed modelRevision because the commit of this source is unknown"
        )
        say("stage_model", f"{path.name}: {action}")


def _require_bucket(options: StageOptions, settings: "Settings") -> None:
    """Create the stack's bucket, and nothing else, if the state has none. The server needs its weights before it starts.

    Removes a stale lock of a killed run. Raises CommandRefusedError, with the holder, for a lock that may be in use. Raises it too for a creation
    that is not allowed or changes more. Raises ScriptError if `pulumi up` fails.
    """
    from engine.backend import absolute_backend
    from engine.locks import past_dead_locks
    from engine.private_folders import private_folder
    from engine.runner import project_folder
    from scripts.cli.frozen import freeze
    from scripts.stage_model import bucket_creation
    from stacks.planned import doctor_hint

    stack = options.stack
    if bucket_creation.has_bucket(stack, settings):
        return
    if not options.create:
        raise CommandRefusedError(
            f"Stack {stack} has no bucket, and --no-create is set. Remove --no-create or run `gemma up {stack}` first."
        )
    with absolute_backend(), private_folder() as folder:
        frozen = freeze(stack, folder / "project")
        steps = bucket_creation.creation_steps(frozen)
        if not steps:
            return
        if options.plan is not None:
            found = bucket_creation.creation_plan_id(frozen, steps)
            if found != options.plan:
                raise CommandRefusedError(
                    f"{options.plan} is stale: the preview of the bucket now has the id {found}. Preview it again and review it."
                )
        for step in steps:
            say("stage_model", f"creating {step.name} ({step.type})")
        after_failure = f"The bucket was not created. {doctor_hint(stack)}"
        try:
            past_dead_locks(
                stack,
                lambda: bucket_creation.create_bucket(frozen, after_failure=after_failure),
                report=_say,
            )
        finally:
            for sentence in frozen.bring_back_engine_lines(project_folder()):
                say("stage_model", sentence)


COMMAND: Final = Command(
    name="stage_model",
    help=__doc__,
    options=StageOptions,
    run=_stage_model,
    after_interrupt="Run the same command again to copy the missing parts.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
