"""Prepare a release: version, notes, artefacts.

dev/docs/releasing.md has the steps of a release. Nothing is published by this command.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeVar

from dev.authors.release import version
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, run_command
from gemma_serving.scripts.cli.options import Option

T = TypeVar("T")
ROOT: Final = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, kw_only=True)
class ReleaseOptions:
    """Options of the command itself, and of `notes`."""


@dataclass(frozen=True, kw_only=True)
class VersionOptions:
    """Options of `version`."""

    version: Annotated[str, Option("The new version, such as 0.3.0.", positional=True, metavar="X.Y.Z")]


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Options of `check`."""

    tag: Annotated[str, Option("The tag, such as v0.3.0.", metavar="TAG")]


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Options of `build`."""

    out: Annotated[Path, Option("New folder for the artefacts.", metavar="FOLDER")]


def _version(options: VersionOptions) -> ExitCode:
    changed = version.set_version(ROOT, options.version)
    print(f"Version {options.version} in {len(version.PLACES)} places. Changed: {', '.join(changed) or 'none'}.")
    print("Run `make docs` to write the generated files, and add the section to CHANGELOG.md.")
    return ExitCode.DONE


def _notes(options: ReleaseOptions) -> ExitCode:
    del options
    print(version.notes(_changelog(), version.the_version(ROOT), version.repository(ROOT)), end="")
    return ExitCode.DONE


def _check(options: CheckOptions) -> ExitCode:
    found = version.check_release(ROOT, options.tag, _changelog())
    print(f"{options.tag}: tag, distributions and CHANGELOG.md have version {found}.")
    return ExitCode.DONE


def _build(options: BuildOptions) -> ExitCode:
    from dev.authors.release import build

    artefacts = build.build(options.out)
    for artefact in artefacts:
        print(f"{artefact.stat().st_size:>10,} bytes  {artefact.name}")
    print(f"{len(artefacts)} artefacts of version {version.the_version(ROOT)} in {options.out}.")
    return ExitCode.DONE


def _changelog() -> str:
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def _sub(name: str, text: str, options: type[T], run: Callable[[T], ExitCode]) -> Command[T]:
    return Command(name=name, help=text, options=options, run=run)


COMMAND: Final = Command(
    name="release",
    room="dev.authors",
    help=__doc__,
    options=ReleaseOptions,
    run=None,
    subcommands=(
        _sub("version", "Write the version to every place.", VersionOptions, _version),
        _sub("notes", "Print the release notes of the version.", ReleaseOptions, _notes),
        _sub("check", "Check that tag, distributions and CHANGELOG.md have one version.", CheckOptions, _check),
        _sub("build", "Build every artefact, with checksums.", BuildOptions, _build),
    ),
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
