"""Compare each bound of support.json and crashes.json with the tags and wheels of the releases.

  git clone --bare https://github.com/vllm-project/tpu-inference tpu-inference.git
  pip download --no-deps --only-binary :all: --dest wheels vllm==0.21.0
  python -m dev.judges.releases --git tpu-inference.git --wheels wheels

`releases.toml` has, for each bound, the text of a source file that a release
brought, the last release without it, and the changes that brought it. A
release that is not in a folder is unknown, never a proof. The name of a git
directory is its package. Exit code 1 if a bound is refuted.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Struct, convert

from dev.judges.planted import refuse_planted
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.planning.model.support import support_rows, version_key
from gemma_serving.planning.question.records import CRASHES
from gemma_serving.scripts.cli.command import Command, run_command
from gemma_serving.scripts.cli.options import Option

_FILE: Final = Path(__file__).with_suffix(".toml")
_TAG: Final = re.compile(r"v(\d+\.\d+\.\d+)")
_WHEEL: Final = re.compile(r"(?P<package>\w+)-(?P<release>\d+\.\d+\.\d+)-.*\.whl")

Verdict = Literal["proved", "refuted", "unknown"]


class Proof(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Text that a release brought."""

    bounds: tuple[str, ...]
    """Names of the bounds that follow from it (`bounds`)."""
    package: str
    path: str
    text: str = ""
    """Regular expression of the text; empty if the file itself is new."""
    last: str
    """Last release without it."""
    first: str = ""
    """First release with it; empty if no known release has it."""
    changes: tuple[int, ...] = ()
    """Pull requests that brought it, by the subjects of their commits. Only a git directory shows them."""


class Unproved(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds that no source file shows."""

    bounds: tuple[str, ...]
    reason: str


class Releases:
    """Local sources of one package."""

    def __init__(self, wheels: Mapping[str, Path], git: Path | None = None) -> None:
        """Read the tags of a git directory, and take the wheels by their release."""
        self.wheels, self.git = wheels, git
        tags = _git(git, "tag").split() if git else ()
        self.tags = {found[1]: tag for tag in tags if (found := _TAG.fullmatch(tag))}

    def known(self) -> Sequence[str]:
        """Return the releases that are here, oldest first."""
        return sorted({*self.wheels, *self.tags}, key=_order)

    def has(self, release: str, path: str, text: str) -> bool:
        """Return whether a release has a file with a text."""
        if tag := self.tags.get(release):
            done = subprocess.run(
                ["git", "-C", str(self.git), "show", f"{tag}:{path}"], capture_output=True, text=True, check=False
            )
            content = None if done.returncode else done.stdout
        else:
            with zipfile.ZipFile(self.wheels[release]) as wheel:
                content = wheel.read(path).decode() if path in wheel.namelist() else None
        return content is not None and re.search(text, content) is not None

    def first_with(self, change: int) -> str | None:
        """Return the first tag whose history has the commit of a pull request; None if no tag has it."""
        for release in sorted(self.tags, key=_order):
            if f"(#{change})\n" in _git(self.git, "log", "--format=%s", f"--grep=(#{change})", self.tags[release]):
                return release
        return None


def bounds() -> Iterator[tuple[str, str]]:
    """Yield the name and the release of each bound of both tables."""
    for row in support_rows():
        name = " ".join(filter(None, (row.scheme or "all", *row.devices[:1], *row.models, *row.packings)))
        yield from ((f"{name} {word} {release}", release) for word, release in (("from", row.first), ("to", row.last)))
    for crash in CRASHES.values():
        sides = [side for pair in crash.releases for side in zip(("from", "before"), pair, strict=True)]
        yield from ((f"{crash.id} {word} {release}", release) for word, release in sides)


def proofs() -> tuple[Sequence[Proof], Sequence[Unproved]]:
    """Return what releases.toml has."""
    document = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return convert(document["proof"], list[Proof]), convert(document["unproved"], list[Unproved])


def mismatches() -> Iterator[str]:
    """Yield, as a sentence, each bound without exactly one entry per package, and each entry that does not fit its bounds."""
    proved, unproved = proofs()
    known = {name: release for name, release in bounds() if release}
    named = Counter((name, proof.package) for proof in proved for name in proof.bounds)
    named.update((name, "") for one in unproved for name in one.bounds)
    yield from (f"{name} has two entries." for (name, _), count in named.items() if count > 1)
    entries = {name for name, _ in named}
    yield from (f"{name} has no entry in releases.toml." for name in sorted(known.keys() - entries))
    yield from (f"{name} is a bound of no row." for name in sorted(entries - known.keys()))
    for proof in proved:
        exact = [name for name in proof.bounds if " to " not in name]
        yield from (f"{name} is not {proof.first}." for name in exact if known.get(name) != proof.first)
        upper = [known[name] for name in proof.bounds if name in known and " to " in name]
        if upper and _order(max(upper, key=_order)) < _order(proof.last):
            yield f"{proof.bounds[0]} ends before {proof.last}, which does not have it either."
        if proof.first and any(_order(release) >= _order(proof.first) for release in upper):
            yield f"{proof.bounds[0]} does not end before {proof.first}, which has it."


def judge(proof: Proof, here: Releases) -> tuple[Verdict, str]:
    """Return whether tags and wheels show a proof, with the reason."""
    known = here.known()
    absent = [release for release in (proof.last, proof.first) if release and release not in known]
    if absent:
        return "unknown", f"{proof.package} {absent[0]} is not here"
    later = [release for release in known if _order(release) > _order(proof.last)]
    if against := next(_against(proof, here, later), None):
        return "refuted", against
    return (
        "proved",
        f"in {proof.first}, not in {proof.last}" if proof.first else f"not in {', '.join([proof.last, *later])}",
    )


def _against(proof: Proof, here: Releases, later: Sequence[str]) -> Iterator[str]:
    if here.has(proof.last, proof.path, proof.text):
        yield f"{proof.last} has it already"
    if not proof.first:
        yield from (f"{release} has it" for release in later if here.has(release, proof.path, proof.text))
        return
    if later[0] != proof.first:
        yield f"{later[0]} is between {proof.last} and {proof.first}"
    if not here.has(proof.first, proof.path, proof.text):
        yield f"{proof.first} does not have it"
    for change in proof.changes if here.git else ():
        if (found := here.first_with(change)) != proof.first:
            yield f"#{change} is first in {found}"


def releases_in(repositories: Sequence[Path], wheels: Path | None) -> Mapping[str, Releases]:
    """Return what the folders have of each package, by its name."""
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(wheels.glob("*.whl")) if wheels else ():
        if matched := _WHEEL.fullmatch(path.name):
            found.setdefault(matched["package"].replace("_", "-"), {})[matched["release"]] = path
    git = {path.name.removesuffix(".git"): path for path in repositories}
    return {name: Releases(wheels=found.get(name, {}), git=git.get(name)) for name in {*found, *git}}


@dataclass(frozen=True, kw_only=True)
class ReleasesOptions:
    """Options of the command."""

    git: Annotated[
        tuple[str, ...],
        Option("A bare git directory with tags, named as its package. Repeatable.", metavar="DIR", repeated=True),
    ] = ()
    wheels: Annotated[Path | None, Option("A folder of wheels.", metavar="DIR")] = None


def _run(options: ReleasesOptions) -> ExitCode:
    planted_lie()
    if wrong := list(mismatches()):
        raise CommandRefusedError(" ".join(wrong))
    here = releases_in([Path(one) for one in options.git], options.wheels)
    proved, unproved = proofs()
    verdicts = Counter[Verdict]()
    for proof in proved:
        verdict, reason = judge(proof, here.get(proof.package, Releases(wheels={})))
        verdicts[verdict] += 1
        print(f"{verdict:<8} {', '.join(proof.bounds)}: {proof.package}, {proof.path}: {reason}")
    for one in unproved:
        print(f"{'unproved':<8} {', '.join(one.bounds)}: {one.reason}")
    print(
        f"{verdicts['proved']} proved, {verdicts['refuted']} refuted, {verdicts['unknown']} unknown, {len(unproved)} without a proof."
    )
    return ExitCode.FAILED if verdicts["refuted"] else ExitCode.DONE


def planted_lie() -> None:
    """Refuse the claim that a release brought a text that the release before has."""
    proof = Proof(bounds=("planted",), package="planted", path="model.py", text="shared", last="0.2.0", first="0.3.0")
    with tempfile.TemporaryDirectory() as folder:
        wheels = {release: Path(folder, release) for release in (proof.last, proof.first)}
        for path in wheels.values():
            with zipfile.ZipFile(path, "w") as wheel:
                wheel.writestr(proof.path, proof.text)
        refuse_planted("0.3.0 brought what 0.2.0 has", lambda: judge(proof, Releases(wheels))[0] == "refuted")


def _order(release: str) -> tuple[int, ...]:
    return version_key(release) or ()


def _git(folder: Path | None, *words: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True).stdout


COMMAND: Final = Command(name="releases", room="dev.judges", help=__doc__, options=ReleasesOptions, run=_run)

if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
