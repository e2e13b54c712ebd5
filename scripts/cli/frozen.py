"""Private copy of everything that determines a deployment. The engine runs in the copy, so later edits of the checkout cannot affect a run."""

import hashlib
import os
import re
import stat
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloud.price_file import REFRESHED
from contracts.errors import CommandRefusedError
from engine import runner
from engine.atomic_file import replace_file
from engine.backend import absolute_backend
from engine.private_folders import private_folder, remove_left_folders
from planning import plan as planned
from scripts.cli.settings import stack_settings
from stacks.planned import to_deployment
from stacks.settings import Settings

ROOMS: Final = ("cloud", "components", "contracts", "packages/gcp-tpu", "planning", "stacks", "vm_agent")
"""Folders whose files determine what the program declares, in addition to `__main__.py`."""
FILES: Final = ("__main__.py", "Pulumi.yaml", "requirements.txt")
_SKIPPED: Final = frozenset({"tests", "__pycache__", ".pytest_cache", ".ruff_cache"})
_LARGE_BYTES: Final = 64 * 1024**2
"""A larger file next to a config.json holds weights. The copy has a link to it, and its size and time replace the content in the hash."""
_PACKAGES: Final = ".venv/lib/python*/site-packages/*.dist-info"
_OUTSIDE: Final = re.compile(r"^/|(^|/)\.\.(/|$)")
_ENGINE_LINE: Final = re.compile(r"^(encryptionsalt|secretsprovider|encryptedkey):.*$", re.MULTILINE)
"""Keys that the engine adds to a stack's settings file when it first encrypts for the stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenProject:
    """The copy. The hashes (SHA-256, hex) cover the copied content."""

    folder: Path
    stack: str
    settings: Settings
    program_hash: str
    """Hash of the files that declare resources, and of requirements.txt."""
    settings_hash: str
    """Hash of the stack's file and of the files it references (a folder with a Dockerfile, a config.json, prices)."""
    packages_hash: str
    """Hash of the names and versions of the installed packages. Their files are not copied."""
    files: Mapping[str, str]
    """The copied files: path in the project -> hash of the content."""

    @property
    def most_usd_per_hour(self) -> float:
        """Maximum cost of the stack in USD per hour, with all its instances. Raises PlanningError."""
        return most_usd_per_hour(self.settings, self.folder)

    def edited(self, root: Path) -> Sequence[str]:
        """Return the paths in the project whose files differ from the copy: edited, new or deleted."""
        now = {str(path.relative_to(root)): _content(path, may_link=may_link) for path, may_link in _live(self, root)}
        return sorted(path for path in {*self.files, *now} if self.files.get(path) != now.get(path))

    def bring_back_engine_lines(self, root: Path) -> Sequence[str]:
        """Add the engine's additions to the copy's settings file, such as the salt of the stack's secrets, to the project's file.

        Returns a sentence for each line. The state needs it, so a line that differs in the project's file is shown and not replaced.
        """
        name = f"Pulumi.{self.stack}.yaml"
        path, written = root / name, _engine_lines(self.folder / name)
        before = _engine_lines(path)
        sentences: list[str] = []
        for key, line in written.items():
            if before.get(key) == line:
                continue
            if key in before or not path.is_file():
                sentences.append(
                    f"The deployed state needs this line in {name}, where it is missing or different: {line}"
                )
                continue
            text = path.read_text(encoding="utf-8")
            replace_file(path.resolve(), f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{line}\n")
            sentences.append(f"The engine added {key} to {name}. Keep the line, because the stack's secrets need it.")
        return sentences


def most_usd_per_hour(settings: Settings, folder: Path) -> float:
    """Return the maximum cost of a stack with these settings in USD per hour, with all its instances.

    Raises PlanningError.
    """
    instances = settings.cloud_run.max_instances if settings.cloud_run else 1
    return planned(to_deployment(settings, folder)).cost.usd_per_hour * instances


def freeze(stack: str, into: Path) -> FrozenProject:
    """Copy the program, the stack's settings and the files they reference to an empty folder, and return the copy.

    Raises CommandRefusedError if the settings are missing or invalid, or reference a file outside the project.
    """
    root, name = runner.project_folder(), f"Pulumi.{stack}.yaml"
    source = root / name
    if not source.is_file():
        raise CommandRefusedError(f"{name} not found. Pass a stack that has a settings file.")
    copied = {name: _copy(source, into / name)}
    settings = stack_settings(stack, folder=into)
    program = {str(path.relative_to(root)): _copy(path, into / path.relative_to(root)) for path in _program(root)}
    for key, named, may_link in _named(settings, root):
        if _OUTSIDE.search(named):
            raise CommandRefusedError(
                f"{name}: {key} = {named} is outside the project, but a plan covers only files of the project. "
                "Copy it into the project and change the setting."
            )
        for path in _files(root / named):
            inside = path.relative_to(root)
            copied[str(inside)] = _copy(path, into / inside, may_link=may_link)
    if (root / ".venv").exists():
        (into / ".venv").symlink_to((root / ".venv").resolve())
    return FrozenProject(
        folder=into,
        stack=stack,
        settings=settings,
        program_hash=_hash(program),
        settings_hash=_hash(copied),
        packages_hash=_joined(_packages(root)),
        files={**program, **copied},
    )


@contextmanager
def frozen_here(stack: str) -> Generator[FrozenProject]:
    """Work in a private copy of this checkout. The current folder is the copy, which is deleted at the end."""
    remove_left_folders()
    with absolute_backend(), private_folder() as folder:
        frozen = freeze(stack, folder)
        with chdir(frozen.folder):
            yield frozen


def _live(frozen: FrozenProject, root: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the project files that a new copy would contain, and whether a large one is identified by its size and time."""
    source = root / f"Pulumi.{frozen.stack}.yaml"
    if source.is_file():
        yield source, False
    yield from ((path, False) for path in _program(root))
    for _, named, may_link in _named(frozen.settings, root):
        yield from ((path, may_link) for path in _files(root / named))


def _engine_lines(path: Path) -> Mapping[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    return {found[1]: found[0].rstrip() for found in _ENGINE_LINE.finditer(text)}


def _content(path: Path, *, may_link: bool) -> str:
    """Return the identity of a file's content, as `_copy` does; empty if it cannot be read, for example because it was just deleted."""
    try:
        found = path.stat()
        if may_link and found.st_size > _LARGE_BYTES:
            return _size_and_time(found)
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _size_and_time(found: os.stat_result) -> str:
    return f"{found.st_size} {found.st_mtime_ns}"


def _copy(source: Path, target: Path, *, may_link: bool = False) -> str:
    """Copy a file and return the hash of the written content, even if the source changes in the meantime."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)  # two settings can reference one file
    found = source.stat()
    if may_link and found.st_size > _LARGE_BYTES:
        target.symlink_to(source.resolve())
        return _size_and_time(found)
    data = source.read_bytes()
    target.write_bytes(data)
    target.chmod(stat.S_IMODE(found.st_mode))  # part of the digest of an image's build context
    return hashlib.sha256(data).hexdigest()


def _hash(contents: Mapping[str, str]) -> str:
    return _joined([f"{path}\0{content}" for path, content in contents.items()])


def _joined(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _program(root: Path) -> Iterator[Path]:
    yield from (root / name for name in FILES if (root / name).is_file())
    for room in ROOMS:
        yield from _below(root / room)


def _named(settings: Settings, root: Path) -> Iterator[tuple[str, str, bool]]:
    """Yield the key and path of each file or folder that the settings reference, and whether only the size of a large file matters.

    Refreshed prices are read without a key.
    """
    if settings.image.build_context:
        yield "image.buildContext", settings.image.build_context, False
    for key, value in (("modelConfig", settings.architecture_file), ("draftConfig", settings.drafter_file)):
        if value:
            yield key, value, True
    if settings.prices:
        yield "prices", settings.prices, False
    if (root / REFRESHED).is_file():
        yield "prices", REFRESHED, False


def _files(place: Path) -> Sequence[Path]:
    return [place] if place.is_file() else _below(place)


def _below(folder: Path) -> Sequence[Path]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not _SKIPPED & set(path.relative_to(folder).parts))


def _packages(root: Path) -> Sequence[str]:
    return sorted(path.name for path in root.glob(_PACKAGES))
