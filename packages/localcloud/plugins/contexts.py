"""Build contexts: their files, and a digest that changes when any of them does."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from localcloud.plugins.rest import PluginError


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Inputs of an image. `context` and `dockerfile` are paths as in the program, relative to the working directory."""

    context: str
    dockerfile: str
    args: Mapping[str, str]
    target: str
    platform: str


def context_digest(build: Build) -> str:
    """Return SHA-256 over the context's files (names, executable bits, contents) and the Dockerfile, without files in `.dockerignore`.

    Raises PluginError if the context or the Dockerfile does not exist.
    """
    context, dockerfile = Path(build.context), Path(build.dockerfile)
    if not context.is_dir():
        raise PluginError(f"the build context {build.context!r} is not a directory (relative to {Path.cwd()})")
    if not dockerfile.is_file():
        raise PluginError(f"the Dockerfile {build.dockerfile!r} is not a file (relative to {Path.cwd()})")
    digest = hashlib.sha256()
    for path in sorted(_files(context, _rules(context))):
        file = context / path
        digest.update(f"{path}\0{'x' if os.access(file, os.X_OK) else '-'}\0".encode())
        digest.update(_content(file))
    digest.update(b"Dockerfile\0" + dockerfile.read_bytes())
    return digest.hexdigest()


def manifest_digest(build: Build) -> str:
    """Return the digest of the image of a build: the same for the same context, Dockerfile, arguments, target and platform.

    Raises PluginError as `context_digest` does, and for an invalid Dockerfile.
    """
    check_dockerfile(build)
    parts = [
        context_digest(build),
        *(f"{name}={value}" for name, value in sorted(build.args.items())),
        build.target,
        build.platform,
    ]
    return "sha256:" + hashlib.sha256("\0".join(parts).encode()).hexdigest()


def check_dockerfile(build: Build) -> None:
    """Reject a Dockerfile that docker rejects at its first instruction. Raises PluginError."""
    for line in Path(build.dockerfile).read_text(encoding="utf-8").splitlines():
        word = line.strip().partition(" ")[0].upper()
        if not word or word.startswith("#") or word == "ARG":
            continue
        if word != "FROM":
            raise PluginError(
                f"failed to parse {build.dockerfile!r}: no build stage in current context, it begins with {word} instead of FROM"
            )
        return
    raise PluginError(f"failed to parse {build.dockerfile!r}: the file has no FROM instruction")


def _content(file: Path) -> bytes:
    if file.is_symlink():
        return b"link:" + os.fsencode(file.readlink())
    hashed = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            hashed.update(chunk)
    return hashed.digest()


@dataclass(frozen=True, slots=True)
class _Rule:
    """One line of a `.dockerignore`."""

    pattern: re.Pattern[str]
    keeps: bool


def _rules(context: Path) -> list[_Rule]:
    file = context / ".dockerignore"
    if not file.is_file():
        return []
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    rules: list[_Rule] = []
    for line in lines:
        if not line or line.startswith("#"):
            continue
        keeps = line.startswith("!")
        pattern = PurePosixPath(line.removeprefix("!").strip().strip("/")).as_posix()
        rules.append(_Rule(re.compile(_translate(pattern)), keeps))
    return rules


def _translate(pattern: str) -> str:
    """Return the regular expression of a pattern of Go's filepath.Match with `**`. It matches whole paths, and everything below a directory."""
    expression = ""
    index = 0
    while index < len(pattern):
        if pattern.startswith("**/", index):
            expression, index = expression + "(?:.*/)?", index + 3
        elif pattern.startswith("**", index):
            expression, index = expression + ".*", index + 2
        else:
            letter = pattern[index]
            expression += {"*": "[^/]*", "?": "[^/]"}.get(letter, re.escape(letter))
            index += 1
    return rf"^{expression}(?:/.*)?$"


def _is_ignored(path: str, rules: list[_Rule]) -> bool:
    ignored = False
    for rule in rules:
        if rule.pattern.match(path):
            ignored = not rule.keeps
    return ignored


def _files(context: Path, rules: list[_Rule]) -> Iterator[str]:
    """Return the paths of the context's files, relative to it. Ignored folders are skipped unless a rule includes files again."""
    may_return = any(rule.keeps for rule in rules)
    for folder, folders, names in os.walk(context):
        base = Path(folder).relative_to(context).as_posix()
        prefix = "" if base == "." else f"{base}/"
        if not may_return:
            folders[:] = [name for name in folders if not _is_ignored(prefix + name, rules)]
        yield from (prefix + name for name in names if not _is_ignored(prefix + name, rules))
