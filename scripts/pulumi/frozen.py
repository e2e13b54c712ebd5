"""A private copy of what decides a deployment. The engine runs in the copy, so that an edit of the checkout cannot reach a run that has begun."""

import hashlib
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from planning import plan as planned
from scripts.errors import CommandRefusedError
from scripts.pulumi import engine
from scripts.pulumi.settings import stack_settings
from stacks.planned import to_deployment
from stacks.settings import Settings

ROOMS: Final = ("components", "contracts", "planning", "provider", "stacks", "vm_agent")
"""Folders whose files decide what the program declares, beside `__main__.py`."""
FILES: Final = ("__main__.py", "Pulumi.yaml", "requirements.txt")
_SKIPPED: Final = frozenset({"__pycache__", ".pytest_cache", ".ruff_cache"})
_LARGE_BYTES: Final = 64 * 1024**2
"""A larger file beside a config.json holds weights: the copy has a link, and size and time stand in for the content."""
_PACKAGES: Final = ".venv/lib/python*/site-packages/*.dist-info"
_OUTSIDE: Final = re.compile(r"^/|(^|/)\.\.(/|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenProject:
    """The copy. The hashes (SHA-256, hex) are of what was copied."""

    folder: Path
    stack: str
    settings: Settings
    program_hash: str
    """Of the files that declare resources, and of requirements.txt."""
    settings_hash: str
    """Of the stack's file, and of what it names: a folder with a Dockerfile, a config.json, prices."""
    packages_hash: str
    """Of the names and versions of the packages that are installed. Their files are not copied."""

    @property
    def most_usd_per_hour(self) -> float:
        """The most that the stack can cost an hour, US dollars, with all instances that it may have. Raises PlanningError."""
        prices = self.settings.prices and str(self.folder / self.settings.prices)
        settings = self.settings.model_copy(update={"prices": prices})
        instances = settings.cloud_run.max_instances if settings.cloud_run else 1
        return planned(to_deployment(settings, self.folder)).cost.usd_per_hour * instances


def freeze(stack: str, into: Path, *, settings_of: str | None = None) -> FrozenProject:
    """Copy the program, the stack's settings and the files that they name into an empty folder, and return the copy.

    With `settings_of`, the stack gets the settings of that stack.

    Raises CommandRefusedError if the settings are missing or wrong, or name a file outside the project.
    """
    root, name = engine.project_folder(), f"Pulumi.{stack}.yaml"
    source = root / f"Pulumi.{settings_of or stack}.yaml"
    if not source.is_file():
        raise CommandRefusedError(f"{source.name} not found. Name a stack that has a settings file.")
    copied = [_copy(source, into / name, into)]
    settings = stack_settings(stack, folder=into)
    program = [_copy(path, into / path.relative_to(root), into) for path in _program(root)]
    for key, named, may_link in _named(settings):
        if _OUTSIDE.search(named):
            raise CommandRefusedError(
                f"{name}: {key} = {named} is outside the project, and a plan covers only files of the project. "
                "Copy it into the project and name the copy."
            )
        place = root / named
        files = [place] if place.is_file() else _below(place)
        copied += [_copy(path, into / path.relative_to(root), into, may_link=may_link) for path in files]
    if (root / ".venv").exists():
        (into / ".venv").symlink_to((root / ".venv").resolve())
    return FrozenProject(
        folder=into,
        stack=stack,
        settings=settings,
        program_hash=_hash(program),
        settings_hash=_hash(copied),
        packages_hash=_hash(_packages(root)),
    )


def _copy(source: Path, target: Path, into: Path, *, may_link: bool = False) -> str:
    """Copy a file, and return its path with the hash of what was written, not of what the source holds a moment later."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)  # two settings may name one file
    found = source.stat()
    if may_link and found.st_size > _LARGE_BYTES:
        content = f"{found.st_size} {found.st_mtime_ns}"
        target.symlink_to(source.resolve())
    else:
        data = source.read_bytes()
        target.write_bytes(data)
        target.chmod(stat.S_IMODE(found.st_mode))  # the digest of an image's build context has it
        content = hashlib.sha256(data).hexdigest()
    return f"{target.relative_to(into)}\0{content}"


def _hash(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _program(root: Path) -> Iterator[Path]:
    yield from (root / name for name in FILES if (root / name).is_file())
    for room in ROOMS:
        yield from _below(root / room)


def _named(settings: Settings) -> Iterator[tuple[str, str, bool]]:
    """Yield the files and folders that the settings name: the key, the path, and whether a large file in it is only read for its size."""
    if settings.image.build_context:
        yield "image.buildContext", settings.image.build_context, False
    for key, value in (("modelConfig", settings.architecture_file), ("draftConfig", settings.drafter_file)):
        if value:
            yield key, value, True
    if settings.prices:
        yield "prices", settings.prices, False


def _below(folder: Path) -> Sequence[Path]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not _SKIPPED & set(path.relative_to(folder).parts))


def _packages(root: Path) -> Sequence[str]:
    return sorted(path.name for path in root.glob(_PACKAGES))
