"""Copy a stack's weights into its bucket, from the Hugging Face hub, another bucket or a folder.

Creates the stack's bucket if it does not exist yet, and no other resource of the stack. Copies large files in parts, several at a time.
Copies only what is missing or changed, so that the command can be run again at any time, also after it was killed.
"""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command, say
from scripts.cli.options import JsonSwitch, Option, StackName
from scripts.errors import CommandRefusedError, ScriptError
from scripts.pulumi import engine
from scripts.pulumi.deployment import read_deployment
from scripts.pulumi.settings import stack_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scripts.cli.transfer import Transfer
    from scripts.cloud.staging.bucket import WeightsBucket
    from scripts.cloud.staging.manifest import StagingOutcome
    from scripts.cloud.staging.sources import SourceFile
    from stacks.settings import Settings

_GIB: Final = 1024**3
_MIB: Final = 1024**2
_GS: Final = "gs://"
_BUCKET_TARGETS: Final = (
    "**:Provider::gcp",
    "**:index:ModelBucket::models",
    "**$gcp:storage/bucket:Bucket::models",
    "**gcp:projects/service:Service::*",
)


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
        str | None, Option("Branch, tag or commit of the hub; by default its main branch.", metavar="NAME")
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
        bool, Option("Write the hash of the weights into the stack's file as bucket.manifest.", negatable=True)
    ] = True
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
    from scripts.cli.transfer import Transfer, overwrite_line
    from scripts.cloud.staging.bucket import WeightsBucket
    from stacks.naming import Names

    stack, settings = options.stack, stack_settings(options.stack)
    if settings.weights != "bucket":
        raise CommandRefusedError(
            f"Stack {stack} has weights: {settings.weights}, so there is nothing to stage; set weights: bucket."
        )
    if not settings.weights_prefix:
        raise CommandRefusedError(
            f"bucket.prefix names no folder; weights are staged into one, such as prefix: models/{settings.model.rpartition('/')[2]}."
        )
    job = _job(options, settings)
    sizes = [file.size_bytes for file in job.files]
    real = sum(file.real_bytes for file in job.files)
    simulated = f" (simulated: the local cloud's hub sends {sum(sizes) / _MIB:.1f} MiB instead)" if real else ""
    say("stage_model", f"{settings.model}: {len(sizes)} files, {(real or sum(sizes)) / _GIB:.2f} GiB{simulated}")
    name = settings.bucket.existing or Names(project=settings.project, stack=stack).bucket
    if settings.bucket.existing is None:
        _create_bucket(stack)
    target = WeightsBucket(name, settings.project)
    if settings.bucket.existing is not None and job.has_parts:
        _say_soft_delete(target, sum(sizes) / _GIB, settings.bucket.region)
    overwrite = overwrite_line if sys.stderr.isatty() else None
    with Transfer(lambda text: say("stage_model", text), overwrite=overwrite) as transfer:
        outcome = job.run(target, transfer)
    if options.bind:
        _bind(stack, outcome.manifest)
    elif settings.bucket.manifest not in {None, outcome.manifest}:
        say(
            "stage_model",
            f"bucket.manifest is still {settings.bucket.manifest}: `pulumi up` refuses the staged weights until it is {outcome.manifest}.",
        )
    report = {
        "stack": stack,
        "bucket": name,
        "prefix": settings.weights_prefix,
        "copied": outcome.copied,
        "kept": outcome.kept,
        "revision": job.revision,
        "manifest": outcome.manifest,
        "simulated": real > 0,
    }
    if options.as_json:
        print(json.dumps(report))
    else:
        done = f"{outcome.copied} files copied, {outcome.kept} kept{' (simulated)' if real else ''}"
        print(f"stage_model: {done}: gs://{name}/{settings.weights_prefix}")
    return ExitCode.DONE


def _job(options: StageOptions, settings: "Settings") -> _Job:
    """List the source before anything is made. Raises CommandRefusedError if it is no checkpoint, ScriptError if it cannot be read."""
    if options.origin is not None and options.revision is not None:
        raise CommandRefusedError(
            "--revision names a commit of the hub; leave it out with --from, or leave --from out."
        )
    if options.origin is not None and options.origin.startswith(_GS):
        return _from_bucket(options.origin, options, settings)
    from scripts.cloud.staging import copying, sources

    source = (
        sources.FolderSource(folder=Path(options.origin))
        if options.origin is not None
        else sources.hub(settings.model, options.revision)
    )
    files = source.files()
    sources.require_whole_weights(str(source.revision), files, source.read)

    def run(target: "WeightsBucket", transfer: "Transfer") -> "StagingOutcome":
        plan = copying.CopyPlan(
            source=source,
            target=target,
            prefix=settings.weights_prefix,
            part_bytes=options.part_size_mib * _MIB,
            workers=options.parallel,
        )
        return copying.stage(plan, _line_for_each(files, transfer), transfer)

    return _Job(files=files, revision=source.revision, run=run)


def _from_bucket(origin: str, options: StageOptions, settings: "Settings") -> _Job:
    from scripts.cloud.staging import rewriting
    from scripts.cloud.staging.bucket import WeightsBucket
    from scripts.cloud.staging.sources import require_whole_weights

    bucket, prefix = rewriting.bucket_of(origin)
    source = rewriting.BucketSource(bucket=WeightsBucket(bucket, settings.project), prefix=prefix)
    checkpoint = source.checkpoint()
    require_whole_weights(source.uri, checkpoint.files, source.read)

    def run(target: "WeightsBucket", transfer: "Transfer") -> "StagingOutcome":
        return rewriting.Rewriting(
            source=source,
            checkpoint=checkpoint,
            target=target,
            prefix=settings.weights_prefix,
            on_file=_line_for_each(checkpoint.files, transfer),
            on_bytes=transfer,
        ).run(workers=options.parallel)

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
    from planning.prices import LIST_PRICES
    from planning.units import HOUR_S, MONTH_H, duration

    kept_s = target.soft_delete_s()
    if kept_s:
        usd = size_gib * LIST_PRICES.price("bucket_usd_per_gib_month", region).usd * kept_s / (MONTH_H * HOUR_S)
        say(
            "stage_model",
            f"gs://{target.name} keeps deleted objects for {duration(kept_s)}: the parts of this copy, at most {size_gib:.2f} GiB, are "
            f"billed for as long (about {usd:.2f} USD).",
        )


def _bind(stack: str, manifest: str) -> None:
    """Write the hash of the weights into the stack's file, so that other weights are a change that `pulumi up` rolls out.

    Raises ScriptError if the file cannot be read or written; then it is as it was.
    """
    from ruamel.yaml.error import YAMLError

    from scripts.plan.settings_file import SettingsFile
    from scripts.pulumi.settings import project_folder

    path = project_folder() / f"Pulumi.{stack}.yaml"
    try:
        document = SettingsFile(path)
        before = path.read_text(encoding="utf-8")
        document.apply({"bucket.manifest": manifest})
        after = document.text()
        if after != before:
            _replace(path.resolve(), after)
    except (OSError, YAMLError, KeyError, TypeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        raise ScriptError(
            f"The weights are staged, but {path.name} cannot be changed ({why}); set bucket.manifest in it to {manifest}."
        ) from None
    if after != before:
        say(
            "stage_model",
            f"{path.name}: bucket.manifest is {manifest} now; `pulumi up --stack {stack}` serves these weights.",
        )


def _replace(path: Path, text: str) -> None:
    """Write a file anew, all of it or nothing. Raises OSError."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.write_text(text, encoding="utf-8")
        shutil.copymode(path, fresh)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _create_bucket(stack: str) -> None:
    """Create the bucket alone: the server needs its weights before it starts.

    A lock whose process is gone is ended: an earlier run may have been killed. Raises CommandRefusedError with the holder of a lock that
    may be alive, and ScriptError if `pulumi up` fails.
    """
    from scripts.pulumi.locks import past_dead_locks
    from stacks.planned import doctor_hint

    # Refuses a stack that does not exist. The engine first ends an interrupted replacement, and has to be allowed to.
    replaced = [resource.urn for resource in read_deployment(stack).resources if resource.delete]
    targets = [f"--target={target}" for target in (*_BUCKET_TARGETS, *dict.fromkeys(replaced))]
    after_failure = f"The bucket could not be created. {doctor_hint(stack)}"
    past_dead_locks(
        stack,
        lambda: engine.change(stack, "up", *targets, after_failure=after_failure),
        report=lambda text: say("stage_model", text),
    )


COMMAND: Final = Command(
    name="stage_model",
    help=__doc__,
    options=StageOptions,
    run=_stage_model,
    after_interrupt="Run the same command again: it copies only the parts that are missing.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
