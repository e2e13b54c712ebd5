"""Prepare a release: version, owner of the repository, notes, changes of the schema, artefacts.

docs/authors/releasing.md has the steps of a release. Nothing is published by this command.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

from contracts.errors import ScriptError
from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command
from scripts.cli.options import JsonSwitch, Option

if TYPE_CHECKING:
    from authors.release.schema_changes import SchemaChange

T = TypeVar("T")
ROOT: Final = Path(__file__).resolve().parents[2]
_SCHEMA: Final = "packages/gcp-tpu/schema.json"


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
    schema: Annotated[str, Option("Path of the schema in a commit.", metavar="PATH")] = _SCHEMA
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
        print("No tag vX.Y.Z before this commit, so there is no schema to compare with.")
        return ExitCode.DONE
    old = schema_changes.read(ROOT, source, options.schema)
    new = schema_changes.read(ROOT, options.new or str(ROOT / options.schema), options.schema)
    found = schema_changes.changes(old, new)
    versions = [str(each.get("version", "")) for each in (old, new)]
    allowed = schema_changes.may_break(*versions) if options.gate else True
    if options.as_json:
        items = [asdict(change) for change in found]
        print(json.dumps({"schema_version": 1, "old": versions[0], "new": versions[1], "changes": items}, indent=1))
    else:
        _summarize(_changes_text(source, versions, found))
    broken = any(change.is_breaking for change in found)
    if broken and not allowed:
        rule = "only a new major version, or a new minor version of 0.x, may break programs"
        print(f"release: {versions[1]} may not break programs of {versions[0]}: {rule}.", file=sys.stderr)
        return ExitCode.FAILED
    return ExitCode.DONE


def _build(options: BuildOptions) -> ExitCode:
    from authors.release import build, version

    artefacts = build.build(options.out)
    for artefact in artefacts:
        print(f"{artefact.bytes:>10,} bytes  {artefact.kind:<20} {artefact.name}")
    print(f"{len(artefacts)} artefacts of version {version.the_version(ROOT)} in {options.out}.")
    if not version.is_owner_set(ROOT):
        print(
            f"The repository is {version.repository(ROOT)}, which nobody can register: these artefacts are for installation from files "
            f"only. Before publishing, run `{version.COMMAND} owner OWNER/NAME` and build again."
        )
    return ExitCode.DONE


def _verify(options: VerifyOptions) -> ExitCode:
    from authors.release import checksums

    artefacts = checksums.verify(options.artefacts)
    print(f"{len(artefacts)} artefacts in {options.artefacts} have their checksums.")
    return ExitCode.DONE


def _record(options: ReleaseOptions) -> ExitCode:
    del options
    from subprocess import CalledProcessError

    from authors.release import recorded, version

    try:
        path = recorded.record(version.the_version(ROOT))
    except CalledProcessError as error:
        raise ScriptError(f"The state was not recorded: {error}. Its output is above.") from error
    print(f"{path.relative_to(ROOT)} written. The next releases are tested with this state (tests/upgrade).")
    return ExitCode.DONE


def _changelog() -> str:
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def _changes_text(source: str, versions: list[str], found: "Sequence[SchemaChange]") -> str:
    breaking = sum(change.is_breaking for change in found)
    heading = f"Schema {versions[0]} ({source}) -> {versions[1]}: {len(found)} changes, {breaking} breaking."
    return "\n".join([heading, *(change.line for change in found)])


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
        _sub(
            "record",
            "Record the state that this release makes, for upgrade tests of the next ones.",
            ReleaseOptions,
            _record,
        ),
        _sub("verify", "Check a folder of artefacts against its checksums.", VerifyOptions, _verify),
    ),
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
