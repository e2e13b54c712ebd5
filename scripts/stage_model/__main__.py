r"""Copy a stack's weights, drafter and adapters to its bucket.

Copies from the Hugging Face hub, another bucket or a local folder. Each checkpoint has its own folder, named by the hash of its manifest, so the
files of a revision never change. Previews and creates the stack's bucket if it does not exist, and changes no other resource. Copies only missing
files, large ones in parallel parts. You can rerun the command at any time, even after it was killed.

  gemma stage_model l4-qat
  gemma stage_model l4-qat --list
  gemma stage_model l4-qat \
      --remove gemma-4-12B-it-0123456789abcdef
"""

import sys
from dataclasses import dataclass
from typing import Annotated, Final

from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command
from scripts.cli.options import JsonSwitch, Option, StackName


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


def _stage_model(options: StageOptions) -> ExitCode:
    from scripts.stage_model import run

    return run.stage_model(options)


COMMAND: Final = Command(
    name="stage_model",
    help=__doc__,
    options=StageOptions,
    run=_stage_model,
    after_interrupt="Run the same command again to copy the missing parts.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
