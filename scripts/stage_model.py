"""Copy a stack's weights into its bucket, from the Hugging Face hub or from a folder.

Creates the stack's bucket if it does not exist yet, and no other resource of the stack. Copies only missing or changed files, so that
the command can be run again at any time.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command, say
from scripts.cli.options import JsonSwitch, Option, StackName
from scripts.errors import CommandRefusedError
from scripts.pulumi import engine
from scripts.pulumi.deployment import read_deployment
from scripts.pulumi.settings import stack_settings

if TYPE_CHECKING:
    from scripts.cloud.staging import CheckpointSource

_GIB: Final = 1024**3
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
    folder: Annotated[
        Path | None, Option("Folder with the checkpoint; by default the hub.", flag="--from", metavar="FOLDER")
    ] = None
    revision: Annotated[
        str | None, Option("Branch, tag or commit of the hub; by default its main branch.", metavar="NAME")
    ] = None
    as_json: JsonSwitch = False


def _stage_model(options: StageOptions) -> ExitCode:
    from scripts.cli.transfer import Transfer
    from scripts.cloud import staging
    from stacks.naming import Names

    stack, settings = options.stack, stack_settings(options.stack)
    if settings.weights != "bucket":
        raise CommandRefusedError(
            f"Stack {stack} has weights: {settings.weights}, so there is nothing to stage; set weights: bucket."
        )
    source = _source(options, settings.model)
    files = source.files()
    total_bytes = sum(file.size_bytes for file in files)
    say("stage_model", f"{settings.model}: {len(files)} files, {total_bytes / _GIB:.2f} GiB")
    name = settings.bucket.existing or Names(project=settings.project, stack=stack).bucket
    if settings.bucket.existing is None:
        _create_bucket(stack)
    done_bytes = 0

    def on_file(file: staging.SourceFile, copied: bool) -> None:
        nonlocal done_bytes
        done_bytes += file.size_bytes
        share = done_bytes / total_bytes if total_bytes else 1.0
        say("stage_model", f"{share:4.0%} {'copied' if copied else 'kept  '} {file.name}")

    copied, kept = staging.stage(
        source,
        staging.bucket(name, settings.project),
        settings.weights_prefix,
        on_file,
        Transfer(lambda text: say("stage_model", text)),
    )
    report = {
        "stack": stack,
        "bucket": name,
        "prefix": settings.weights_prefix,
        "copied": copied,
        "kept": kept,
        "revision": source.revision,
    }
    if options.as_json:
        print(json.dumps(report))
    else:
        print(f"stage_model: {copied} files copied, {kept} kept: gs://{name}/{settings.weights_prefix}")
    return ExitCode.DONE


def _source(options: StageOptions, model: str) -> "CheckpointSource":
    from scripts.cloud import staging

    if options.folder is not None:
        return staging.FolderSource(folder=options.folder)
    return staging.hub(model, options.revision)


def _create_bucket(stack: str) -> None:
    """Create the bucket alone: the server needs its weights before it starts. Raises ScriptError if `pulumi up` fails."""
    from stacks.planned import doctor_hint

    # Refuses a stack that does not exist. The engine first ends an interrupted replacement, and has to be allowed to.
    replaced = [resource.urn for resource in read_deployment(stack).resources if resource.delete]
    targets = [f"--target={target}" for target in (*_BUCKET_TARGETS, *dict.fromkeys(replaced))]
    after_failure = f"The bucket could not be created. {doctor_hint(stack)}"
    engine.change(stack, "up", *targets, after_failure=after_failure)


COMMAND: Final = Command(
    name="stage_model",
    help=__doc__,
    options=StageOptions,
    run=_stage_model,
    after_interrupt="Run it again to copy the remaining files.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
