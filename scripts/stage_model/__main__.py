"""Copy a stack's weights into its bucket, from the Hugging Face hub, another bucket or a folder.

Each checkpoint gets a folder of its own, named by the hash of its manifest: what a revision reads never changes. Creates the stack's
bucket if it does not exist yet, after a preview of that, and changes no other resource of the stack. Copies large files in parts, several
at a time, and only what is missing, so that the command can be run again at any time, also after it was killed.

  python -m scripts.stage_model --stack l4-qat
  python -m scripts.stage_model --stack l4-qat --list
  python -m scripts.stage_model --stack l4-qat --remove gemma-4-12B-it-0123456789abcdef
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from contracts.errors import CommandRefusedError, ScriptError
from contracts.exit_codes import ExitCode
from contracts.staged_weights import OWN_FOLDER
from scripts.cli.command import Command, run_command, say
from scripts.cli.options import JsonSwitch, Option, StackName
from scripts.cli.settings import stack_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cloud.staging.bucket import WeightsBucket
    from cloud.staging.manifest import StagingOutcome
    from cloud.staging.sources import SourceFile
    from scripts.cli.transfer import Transfer
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
            "Folder with the checkpoint, or gs://BUCKET/FOLDER; by default the hub.", flag="--from", metavar="SOURCE"
        ),
    ] = None
    revision: Annotated[
        str | None,
        Option(
            "Branch, tag or commit of the hub. Default: modelRevision of the stack, then the main branch.",
            metavar="NAME",
        ),
    ] = None
    part_size_mib: Annotated[
        int, Option("Size of a part in MiB.", flag="--part-size", metavar="MIB", least=1, most=1024)
    ] = 32
    parallel: Annotated[
        int,
        Option(
            "Parts that are copied at a time, or files of another bucket. Half as many parts again are held in memory.",
            least=1,
            most=64,
        ),
    ] = 8
    bind: Annotated[
        bool,
        Option(
            "Write the hash of the weights into the stack's file as bucket.manifest, and the commit as modelRevision.",
            negatable=True,
        ),
    ] = True
    create: Annotated[
        bool, Option("Create the stack's bucket if the state has none; otherwise refuse.", negatable=True)
    ] = True
    plan: Annotated[
        str | None, Option("Create the bucket only if its preview has this id, which the agent shows.", metavar="ID")
    ] = None
    list_folders: Annotated[
        bool, Option("List the staged folders of the bucket and what reads each, and stage nothing.", flag="--list")
    ] = False
    remove: Annotated[
        str | None,
        Option("Delete this folder of the bucket unless something serves it, and stage nothing.", metavar="FOLDER"),
    ] = None
    yes: Annotated[bool, Option("With --remove: do not ask.")] = False
    as_json: JsonSwitch = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A source whose files are known, and how to copy it."""

    files: "Iterable[SourceFile]"
    revision: str
    run: "Callable[[WeightsBucket, Transfer], StagingOutcome]"
    has_parts: bool = True
    """Whether files pass through temporary objects."""


def _stage_model(options: StageOptions) -> ExitCode:
    from cloud.staging.bucket import WeightsBucket
    from contracts.staged_weights import own_folder
    from scripts.cli.transfer import Transfer, overwrite_line

    stack, settings = options.stack, stack_settings(options.stack)
    _require_compatible(options)
    if settings.weights != "bucket":
        raise CommandRefusedError(
            f"Stack {stack} has weights: {settings.weights}, so there is nothing to stage; set weights: bucket."
        )
    if options.list_folders or options.remove is not None:
        return _keep_house(options, settings)
    if not settings.weights_name:
        raise CommandRefusedError(
            f"bucket.prefix names no folder; weights are staged into one, such as prefix: models/{settings.model.rpartition('/')[2]}."
        )
    job = _job(options, settings)
    sizes = [file.size_bytes for file in job.files]
    real = sum(file.real_bytes for file in job.files)
    simulated = f" (simulated: the local cloud's hub sends {sum(sizes) / _MIB:.1f} MiB instead)" if real else ""
    say("stage_model", f"{settings.model}: {len(sizes)} files, {(real or sum(sizes)) / _GIB:.2f} GiB{simulated}")
    name = settings.bucket_name(stack)
    if settings.bucket.existing is None:
        _require_bucket(options, settings)
    target = WeightsBucket(name, settings.project)
    if settings.bucket.existing is not None and job.has_parts:
        _say_soft_delete(target, sum(sizes) / _GIB, settings.bucket.region)
    overwrite = overwrite_line if sys.stderr.isatty() else None
    with Transfer(lambda text: say("stage_model", text), overwrite=overwrite) as transfer:
        outcome = job.run(target, transfer)
    setting = f"{OWN_FOLDER}{outcome.manifest}"
    revision = _commit_of(options, job, settings)
    if options.bind:
        _bind(stack, settings, {"bucket.manifest": setting, "modelRevision": revision})
    else:
        _say_unbound(stack, settings, setting, revision)
    folder = own_folder(settings.weights_name, outcome.manifest)
    report = {
        "stack": stack,
        "bucket": name,
        "prefix": folder,
        "copied": outcome.copied,
        "kept": outcome.kept,
        "revision": job.revision,
        "manifest": outcome.manifest,
        "setting": {"bucket.manifest": setting, "modelRevision": revision},
        "simulated": real > 0,
    }
    if options.as_json:
        print(json.dumps(report))
    else:
        done = f"{outcome.copied} files copied, {outcome.kept} kept{' (simulated)' if real else ''}"
        print(f"stage_model: {done}: gs://{name}/{folder}")
    return ExitCode.DONE


def _require_compatible(options: StageOptions) -> None:
    """Refuse options that contradict each other. Raises CommandRefusedError."""
    if options.list_folders and options.remove is not None:
        raise CommandRefusedError("--list and --remove are two questions; pass one of them.")
    if (options.list_folders or options.remove is not None) and (options.origin or options.revision or options.plan):
        raise CommandRefusedError("--list and --remove stage nothing; leave out --from, --revision and --plan.")
    if options.yes and options.remove is None:
        raise CommandRefusedError("--yes answers the question of --remove; pass both, or leave it out.")
    if options.plan is not None and not options.create:
        raise CommandRefusedError("--plan names a creation, and --no-create refuses it; pass one of them.")


def _keep_house(options: StageOptions, settings: "Settings") -> ExitCode:
    """List or remove folders."""
    from scripts.stage_model import housekeeping

    house = housekeeping.look(options.stack, settings)
    if options.remove is None:
        housekeeping.show(house, as_json=options.as_json)
        return ExitCode.DONE
    return housekeeping.remove(house, options.remove, yes=options.yes, as_json=options.as_json)


def _job(options: StageOptions, settings: "Settings") -> _Job:
    """List the source before anything is made. Raises CommandRefusedError if it is no checkpoint, ScriptError if it cannot be read."""
    if options.origin is not None and options.revision is not None:
        raise CommandRefusedError(
            "--revision names a commit of the hub; leave it out with --from, or leave --from out."
        )
    if options.origin is not None and options.origin.startswith(_GS):
        return _from_bucket(options.origin, options, settings)
    from cloud.staging import copying, own_folder, sources

    source = (
        sources.FolderSource(folder=Path(options.origin))
        if options.origin is not None
        else sources.hub(settings.model, options.revision or settings.model_revision)
    )
    files = source.files()
    sources.require_whole_weights(str(source.revision), files, source.read)

    def run(target: "WeightsBucket", transfer: "Transfer") -> "StagingOutcome":
        part_bytes, workers = options.part_size_mib * _MIB, options.parallel
        known = own_folder.hashed_source(source, files, part_bytes=part_bytes, workers=workers, on_bytes=transfer)
        digest = own_folder.digest_of(known.files())
        folder, _ = own_folder.prepared_folder(target, settings.weights_name, files, digest, options.stack)
        plan = copying.CopyPlan(source=known, target=target, prefix=folder, part_bytes=part_bytes, workers=workers)
        outcome = copying.stage(plan, _line_for_each(files, transfer), transfer)
        own_folder.require_staged(digest, outcome.manifest, folder)
        return outcome

    return _Job(files=files, revision=source.revision, run=run)


def _from_bucket(origin: str, options: StageOptions, settings: "Settings") -> _Job:
    from cloud.staging import own_folder, rewriting
    from cloud.staging.bucket import WeightsBucket
    from cloud.staging.sources import require_whole_weights

    bucket, prefix = rewriting.bucket_of(origin)
    source = rewriting.BucketSource(bucket=WeightsBucket(bucket, settings.project), prefix=prefix)
    checkpoint = source.checkpoint()
    require_whole_weights(source.uri, checkpoint.files, source.read)

    def run(target: "WeightsBucket", transfer: "Transfer") -> "StagingOutcome":
        files, objects = checkpoint.files, checkpoint.objects
        digest = own_folder.digest_of(files, lambda name: objects[name].crc32c)
        folder, present = own_folder.prepared_folder(target, settings.weights_name, files, digest, options.stack)
        own_folder.require_same_bytes(target, folder, present, objects)
        outcome = rewriting.Rewriting(
            source=source,
            checkpoint=checkpoint,
            target=target,
            prefix=folder,
            on_file=_line_for_each(files, transfer),
            on_bytes=transfer,
        ).run(workers=options.parallel)
        own_folder.require_staged(digest, outcome.manifest, folder)
        return outcome

    return _Job(files=checkpoint.files, revision=checkpoint.revision, run=run, has_parts=False)


def _line_for_each(files: "Iterable[SourceFile]", transfer: "Transfer") -> "Callable[[SourceFile, bool], None]":
    total_bytes, done_bytes = sum(file.size_bytes for file in files), 0

    def on_file(file: "SourceFile", copied: bool) -> None:
        nonlocal done_bytes
        done_bytes += file.size_bytes
        share = done_bytes / total_bytes if total_bytes else 1.0
        transfer.note(f"{share:4.0%} {'copied' if copied else 'kept  '} {file.name}")

    return on_file


def _say_soft_delete(target: "WeightsBucket", size_gib: float, region: str | None) -> None:
    """Say what the parts cost in a bucket that keeps deleted objects. The stack's own bucket does not."""
    from planning.data.prices import LIST_PRICES
    from planning.units import HOUR_S, MONTH_H, duration

    kept_s = target.soft_delete_s()
    if kept_s:
        usd = size_gib * LIST_PRICES.price("bucket_usd_per_gib_month", region).usd * kept_s / (MONTH_H * HOUR_S)
        say(
            "stage_model",
            f"gs://{target.name} keeps deleted objects for {duration(kept_s)}: the parts of this copy, at most {size_gib:.2f} GiB, are "
            f"billed for as long (about {usd:.2f} USD).",
        )


def _commit_of(options: StageOptions, job: _Job, settings: "Settings") -> str | None:
    """Return the commit of the hub that was copied; None for a copy of another source, which proves no commit.

    A folder or a bucket that names the commit of the settings as its own leaves that setting as it is.
    """
    if options.origin is None or job.revision == settings.model_revision:
        return job.revision or None
    return None


def _say_unbound(stack: str, settings: "Settings", setting: str, revision: str | None) -> None:
    """Say which lines of the stack's file would serve the weights that were staged."""
    key = f"pulumi config set --stack {stack}"
    if settings.bucket.manifest != setting:
        say(
            "stage_model",
            f"bucket.manifest is {settings.bucket.manifest or 'not set'}, so `pulumi up` does not serve these weights yet. To serve them run "
            f"`{key} --path gemma-serving:bucket.manifest {setting}`.",
        )
    if settings.model_revision == revision:
        return
    is_set = settings.model_revision or "not set"
    if revision is None:
        advice = f"This source proves no commit: run `pulumi config rm --stack {stack} gemma-serving:modelRevision`"
    else:
        advice = f"These weights are of commit {revision}: run `{key} gemma-serving:modelRevision {revision}`"
    say("stage_model", f"modelRevision is {is_set}. {advice}.")


def _bind(stack: str, settings: "Settings", changes: "Mapping[str, str | None]") -> None:
    """Write what names the weights into the stack's file, so that other weights are a change that `pulumi up` rolls out.

    Raises ScriptError if the file cannot be read or written; then it is as it was.
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
            f"The weights are staged, but {path.name} cannot be changed ({why}); set bucket.manifest in it to {setting}."
        ) from None
    if settings.bucket.manifest != setting:
        say(
            "stage_model",
            f"{path.name}: bucket.manifest is {setting} now; `pulumi up --stack {stack}` serves these weights.",
        )
    if settings.model_revision != changes["modelRevision"]:
        now = (
            f"is {changes['modelRevision']} now"
            if changes["modelRevision"]
            else "is removed: this source proves no commit"
        )
        say("stage_model", f"{path.name}: modelRevision {now}.")


def _require_bucket(options: StageOptions, settings: "Settings") -> None:
    """Create the stack's bucket if the state has none: the server needs its weights before it starts. Nothing else runs in the engine.

    A lock whose process is gone is ended: an earlier run may have been killed. Raises CommandRefusedError with the holder of a lock that
    may be alive, for a creation that is not allowed or does more, and ScriptError if `pulumi up` fails.
    """
    from engine.backend import absolute_backend
    from engine.locks import past_dead_locks
    from engine.private_folders import private_folder
    from scripts.cli.frozen import freeze
    from scripts.cli.settings import project_folder
    from scripts.stage_model import bucket_creation
    from stacks.planned import doctor_hint

    stack = options.stack
    if bucket_creation.has_bucket(stack, settings):
        return
    if not options.create:
        raise CommandRefusedError(
            f"Stack {stack} has no bucket yet, and --no-create creates none. Leave it out, or run `pulumi up --stack {stack}` first."
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
                    f"{options.plan} is stale: the creation of the bucket is {found} now. Preview it again, and read it."
                )
        for step in steps:
            say("stage_model", f"creates {step.name} ({step.type})")
        after_failure = f"The bucket could not be created. {doctor_hint(stack)}"
        try:
            past_dead_locks(
                stack,
                lambda: bucket_creation.create_bucket(frozen, after_failure=after_failure),
                report=lambda text: say("stage_model", text),
            )
        finally:
            for sentence in frozen.bring_back_engine_lines(project_folder()):
                say("stage_model", sentence)


COMMAND: Final = Command(
    name="stage_model",
    help=__doc__,
    options=StageOptions,
    run=_stage_model,
    after_interrupt="Run the same command again: it copies only the parts that are missing.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
