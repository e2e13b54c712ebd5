"""Options of `gemma stage_model`."""

from dataclasses import dataclass
from typing import Annotated

from gemma_serving.scripts.cli.options import JsonSwitch, Option, StackName


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
    list_folders: Annotated[
        bool, Option("List the staged folders of the bucket and their readers. Stages nothing.", flag="--list")
    ] = False
    remove: Annotated[
        str | None,
        Option("Delete this folder of the bucket unless it is served. Stages nothing.", metavar="FOLDER", person=True),
    ] = None
    yes: Annotated[bool, Option("Skip the confirmation of --remove.", person=True)] = False
    as_json: JsonSwitch = False
