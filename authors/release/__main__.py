"""Prepare a release: version, owner of the repository, notes, changes of the schema, artefacts.

docs/authors/releasing.md has the steps of a release. Nothing is published by this command.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, TypeVar

from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command
from scripts.cli.options import JsonSwitch, Option

T = TypeVar("T")
ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class ReleaseOptions:
    """Options of the command itself."""


@dataclass(frozen=True, kw_only=True)
class VersionOptions:
    """Options of `version`."""

    version: Annotated[str, Option("The new version, such as 0.3.0.", positional=True, metavar="X.Y.Z")]


@dataclass(frozen=True, kw_only=True)
class OwnerOptions:
    """Options of `owner`."""

    repository: Annotated[str, Option("The GitHub repository, OWNER/NAME.", positional=True, metavar="OWNER/NAME")]


@dataclass(frozen=True, kw_only=True)
class NotesOptions:
    """Options of `notes`."""

    version: Annotated[
        str | None, Option("The version. Default: the version of the distributions.", metavar="X.Y.Z")
    ] = None


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Options of `check`."""

    tag: Annotated[str, Option("The tag, such as v0.3.0.", metavar="TAG")]
    owner_set: Annotated[bool, Option("Also refuse a repository whose owner is not set.")] = False


@dataclass(frozen=True, kw_only=True)
class SchemaDiffOptions:
    """Options of `schema-diff`."""

    old: Annotated[
        str | None,
        Option("A file, tag, branch or commit. Default: the newest tag vX.Y.Z before this commit.", metavar="OLD"),
    ] = None
    new: Annotated[str | None, Option("The same. Default: the files of this checkout.", metavar="NEW")] = None
    schema: Annotated[
        str | None, Option("Path of a schema in the checkout. Default: the schema of every package.", metavar="PATH")
    ] = None
    gate: Annotated[bool, Option("Exit with 1 if a change is breaking and the new version may not break programs.")] = (
        False
    )
    as_json: JsonSwitch = False


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Options of `build`."""

    out: Annotated[Path, Option("Folder for the artefacts: a new or an empty one.", metavar="FOLDER")]


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Options of `verify`."""

    artefacts: Annotated[Path, Option("Folder of the artefacts.", flag="--from", metavar="FOLDER")]


def _version(options: VersionOptions) -> ExitCode:
    from authors.release import version

    changed = version.set_version(ROOT, options.version)
    print(f"Version {options.version} in {len(version.PLACES)} places, {len(changed)} changed.")
    for path in changed:
        print(f"  {path}")
    print("Run `make docs` to write the generated files, and add the section to CHANGELOG.md.")
    return ExitCode.DONE


def _owner(options: OwnerOptions) -> ExitCode:
    from authors.release import version

    changed = version.set_owner(ROOT, options.repository)
    print(f"Repository {options.repository}: {len(changed)} files changed.")
    for path in changed:
        print(f"  {path}")
    print("Run `make docs` to write the generated files.")
    return ExitCode.DONE


def _notes(options: NotesOptions) -> ExitCode:
    from authors.release import changelog, version

    asked = options.version or version.the_version(ROOT)
    print(changelog.notes(_changelog(), asked, version.repository(ROOT)), end="")
    return ExitCode.DONE


def _check(options: CheckOptions) -> ExitCode:
    from authors.release import version

    found = version.check_release(ROOT, options.tag, _changelog())
    if options.owner_set:
        version.require_owner(ROOT)
    print(f"{options.tag}: tag, distributions and CHANGELOG.md have version {found}.")
    return ExitCode.DONE


def _schema_diff(options: SchemaDiffOptions) -> ExitCode:
    from authors.release import schema_changes, version

    source = options.old or version.previous_tag(ROOT)
    if source is None:
        print("No tag vX.Y.Z before this commit, so no schema to compare with exists.")
        return ExitCode.DONE
    paths = [options.schema] if options.schema else list(schema_changes.SCHEMAS.values())
    is_one = any(Path(each or "").is_file() for each in (options.old, options.new))
    found = [schema_changes.compare(ROOT, source, options.new, path) for path in paths[: 1 if is_one else None]]
    if options.as_json:
        print(json.dumps({"schema_version": 1, "packages": [asdict(each) for each in found]}, indent=1))
    else:
        _summarize("\n\n".join(each.text for each in found))
    for each in found if options.gate else ():
        if each.is_refused:
            rule = "only a new major version, or a new minor version of 0.x, may break programs"
            print(f"release: {each.package} {each.new} may not break programs of {each.old}: {rule}.", file=sys.stderr)
    return ExitCode.FAILED if options.gate and any(each.is_refused for each in found) else ExitCode.DONE


def _build(options: BuildOptions) -> ExitCode:
    from authors.release import build, version

    artefacts = build.build(options.out)
    for artefact in artefacts:
        print(f"{artefact.bytes:>10,} bytes  {artefact.kind:<20} {artefact.name}")
    print(f"{len(artefacts)} artefacts of version {version.the_version(ROOT)} in {options.out}.")
    if not version.is_owner_set(ROOT):
        print(
            f"The repository is {version.repository(ROOT)}, which cannot be registered: these artefacts are for installation from files "
            f"only. Before publishing, run `{version.COMMAND} owner OWNER/NAME` and build again."
        )
    return ExitCode.DONE


def _verify(options: VerifyOptions) -> ExitCode:
    from authors.release import checksums

    artefacts = checksums.verify(options.artefacts)
    print(f"{len(artefacts)} artefacts in {options.artefacts} have their checksums.")
    return ExitCode.DONE


def _changelog() -> str:
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def _summarize(text: str) -> None:
    """Print a text, and add it to the summary of a workflow's step."""
    print(text)
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if target:
        with Path(target).open("a", encoding="utf-8") as stream:
            stream.write(f"```\n{text}\n```\n")


def _sub(name: str, text: str, options: type[T], run: Callable[[T], ExitCode]) -> Command[T]:
    return Command(name=name, help=text, options=options, run=run)


COMMAND: Final = Command(
    name="release",
    room="authors",
    help=__doc__,
    options=ReleaseOptions,
    run=None,
    subcommands=(
        _sub("version", "Write the version to every place.", VersionOptions, _version),
        _sub("owner", "Write the GitHub repository to every place.", OwnerOptions, _owner),
        _sub("notes", "Print the release notes of a version.", NotesOptions, _notes),
        _sub("check", "Check that tag, distributions and CHANGELOG.md have one version.", CheckOptions, _check),
        _sub(
            "schema-diff",
            "Print every change of a package's schema, breaking ones first.",
            SchemaDiffOptions,
            _schema_diff,
        ),
        _sub("build", "Build every artefact, with checksums and a manifest.", BuildOptions, _build),
        _sub("verify", "Check a folder of artefacts against its checksums.", VerifyOptions, _verify),
    ),
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
