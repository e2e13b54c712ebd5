"""Private copy of all that determines a deployment. The engine runs in it, so no later edit reaches a run."""

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from inspect import getmodulename
from pathlib import Path
from typing import Final

from gemma_serving.cloud.price_file import REFRESHED
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.installation import CHECKOUT, FOLDER_VARIABLE, PROGRAM_FILES, home_folder, own_project
from gemma_serving.engine import runner
from gemma_serving.engine.atomic_file import private_folder, replace_file
from gemma_serving.engine.backend import absolute_backend, variable
from gemma_serving.engine.settings_file import SettingsFile
from gemma_serving.engine.steps import PlannedStep
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.planner import plan as planned
from gemma_serving.planning.question.types import CostPlan
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.cli.command import print_progress
from gemma_serving.scripts.stack.dry_run_id import dry_run_id
from gemma_serving.scripts.stack.settings import stack_settings
from gemma_serving.stacks.planned import to_question

PROGRAM: Final = (
    *("__main__.py", "Pulumi.yaml", "requirements.txt"),
    *("components", "packages/gcp-tpu", "stacks"),
    "gemma_serving/__init__.py",
    *(f"gemma_serving/{room}" for room in ("cloud", "contracts", "planning", "vm_agent")),
)
"""Files and folders that determine the declared resources."""
_LINKS: Final = ("components", "stacks")
"""Folders of the project that `gemma_serving` imports by a link."""
_SKIPPED: Final = frozenset({"tests", "__pycache__", ".pytest_cache", ".ruff_cache"})
_LARGE_BYTES: Final = 64 * 1024**2
"""A larger file holds weights. The copy links to it, and its size and time count in the hash."""
_RUNTIME: Final = re.compile(r"    toolchain: (pip|poetry|uv)\n    virtualenv: (\S+)\n")
"""Lines of Pulumi.yaml that may differ from those of `gemma init`."""
_OUTSIDE: Final = re.compile(r"^/|(^|/)\.\.(/|$)")
_ENGINE_LINE: Final = re.compile(r"^(encryptionsalt|secretsprovider|encryptedkey):.*$", re.MULTILINE)
"""Keys that the engine adds to a stack's settings file when it first encrypts for the stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenProject:
    """A copy of the program and of one stack's settings, from which the engine runs."""

    root: Path
    """The project."""
    folder: Path
    stack: str
    settings: Settings
    digest: str
    """Hash of the copied content, and of the names and versions of the installed packages."""

    def plan_id(self, steps: Sequence[PlannedStep]) -> str:
        """Return the id of exactly these steps of this copy in this project."""
        return dry_run_id([self.stack, self.settings.project, self.digest, [step.digest for step in steps]])

    def bring_back_engine_lines(self, root: Path) -> Sequence[str]:
        """Add the engine's new lines of the copy's settings file, such as the salt of the stack's secrets, to the project's file.

        Return a sentence for each. The state needs them, so a line that differs in the project's file is shown and not replaced.
        """
        name = f"Pulumi.{self.stack}.yaml"
        text = (root / name).read_text(encoding="utf-8")
        known = {found[1] for found in _ENGINE_LINE.finditer(text)}
        written = _ENGINE_LINE.finditer((self.folder / name).read_text(encoding="utf-8"))
        new = {found[1]: found[0].rstrip() for found in written if found[1] not in known}
        if new:
            replace_file((root / name).resolve(), "\n".join([text.rstrip("\n"), *new.values(), ""]))
        return [f"The engine added {key} to {name}. Keep the line, because the stack's secrets need it." for key in new]


def foreign_program(stack: str, changes: Mapping[str, object] | None = None) -> str:
    """Return why the engine runs other code than what `gemma init` writes, in the environment of this process, as a clause; empty if it does not.

    The files of a checkout are the product's own. Raises CommandRefusedError as `freeze` does.
    """
    if CHECKOUT is not None and own_project() == CHECKOUT:
        return ""
    with private_folder() as parent:
        frozen = freeze(stack, parent / "project", changes)
        found = {path.name: path for path in sorted(frozen.folder.iterdir())}
        texts = {name: found.pop(name).read_text(encoding="utf-8", errors="replace") for name in PROGRAM_FILES}
        runtime = _RUNTIME.search(texts["Pulumi.yaml"])
        toolchain, environment = runtime.groups() if runtime else ("pip", ".venv")
        own = {
            name: text.replace("pip", toolchain).replace(".venv", environment) for name, text in PROGRAM_FILES.items()
        }
        foreign = [name for name in own if texts[name] != own[name]]
        foreign += [name for name, path in found.items() if _is_loaded(path)]
    if foreign:
        return f"{foreign[0]} is not as `gemma init` writes it"
    is_ours = (frozen.root / environment).resolve() == Path(sys.prefix).resolve()
    return "" if is_ours else f"this server does not run in its {environment}"


def _is_loaded(path: Path) -> bool:
    """Return whether Python imports a file or folder beside the program, or the engine reads it as a project."""
    if path.is_dir():
        return any(getmodulename(each.name) == "__init__" for each in path.iterdir())
    return getmodulename(path.name) is not None or path.stem == "Pulumi"


def most_usd_per_hour(settings: Settings, folder: Path) -> float:
    """Return the maximum cost in USD per hour, with all instances. Raises PlanningError."""
    instances = settings.cloud_run.max_instances if settings.cloud_run else 1
    cost = planned_cost(settings, folder)
    if not cost.is_known:
        raise PlanningError("The price of the stack's accelerator is unknown, so no limit on costs can be checked.")
    return cost.most_usd_per_hour * instances


def planned_cost(settings: Settings, folder: Path) -> CostPlan:
    """Return the planned cost of a stack whose files are in `folder`. Raises PlanningError."""
    return planned(to_question(settings, folder)).cost


def freeze(stack: str, into: Path, changes: Mapping[str, object] | None = None) -> FrozenProject:
    """Copy the program, the stack's settings and the files that they name to an empty folder, and return the copy.

    `changes`: settings that differ in the copy, by key. Raises CommandRefusedError if the settings are missing or invalid, or name a file outside the project.
    """
    root, name = runner.project_folder(), f"Pulumi.{stack}.yaml"
    runner.require_stacks([stack])
    _copy(root, root / name, into)
    if changes:
        write_settings(into / name, changes)
    settings = stack_settings(stack, folder=into)
    for key, named in _named(settings):
        if _OUTSIDE.search(named):
            raise CommandRefusedError(
                f"{name}: {key} = {named} is outside the project, but a plan covers only files of the project. "
                "Copy it into the project and change the setting."
            )
    for path in _files(root, [*PROGRAM, *(named for _, named in _named(settings))]):
        _copy(root, path, into)
    if (root / "gemma_serving").is_dir():
        for room in _LINKS:
            (into / "gemma_serving" / room).symlink_to(Path("..", room))
    if (root / ".venv").exists():
        (into / ".venv").symlink_to((root / ".venv").resolve())
    digest = program_digest(stack, settings, into)
    return FrozenProject(root=root, folder=into, stack=stack, settings=settings, digest=digest)


def program_digest(stack: str, settings: Settings, folder: Path) -> str:
    """Return a hash of the program, the stack's settings, the files that they name, and the names and versions of the installed packages."""
    named = [path for _, path in _named(settings)]
    files = _files(folder, [f"Pulumi.{stack}.yaml", *PROGRAM, *named])
    environment = folder / ".venv" if (folder / ".venv").exists() else Path(sys.prefix)
    packages = sorted(path.name for path in environment.glob("lib/python*/site-packages/*.dist-info"))
    return " ".join([_hash(folder, files), *packages])


def write_settings(path: Path, changes: Mapping[str, object]) -> None:
    """Set keys of a settings file. None removes one."""
    file = SettingsFile(path.read_text(encoding="utf-8"))
    file.apply(changes)
    replace_file(path.resolve(), file.text())


@contextmanager
def frozen_up(stack: str, changes: Mapping[str, object] | None = None) -> Generator[FrozenProject]:
    """Work in a private copy of the project, with the project's records, until a deployment of the stack has ended.

    Lines that the engine adds to the settings file, such as a salt, reach the project's file.
    """
    root = runner.project_folder()
    with absolute_backend(), private_folder() as folder, variable(FOLDER_VARIABLE, str(home_folder())):
        frozen = freeze(stack, folder / "project", changes)
        try:
            with chdir(frozen.folder):
                yield frozen
        finally:
            for sentence in frozen.bring_back_engine_lines(root):
                print_progress("up", sentence)


@contextmanager
def frozen_here(stack: str) -> Generator[FrozenProject]:
    """Work in a private copy of this checkout, which is deleted at the end."""
    with absolute_backend(), private_folder() as folder:
        frozen = freeze(stack, folder)
        with chdir(frozen.folder):
            yield frozen


def _named(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the key and path of each file that the settings name. Refreshed prices are read without a key."""
    yield "prices", REFRESHED
    for key, path in (
        ("image.buildContext", settings.image.build_context),
        ("modelConfig", settings.model_config),
        ("draftConfig", settings.draft_config),
        ("prices", settings.prices),
        ("vllm.thinking.template", settings.vllm.own_template),
    ):
        if path:
            yield key, path


def _files(root: Path, names: Iterable[str]) -> Iterator[Path]:
    """Yield these files and the files below these folders, as far as they exist."""
    for place in (root / name for name in names):
        for path in [place, *place.rglob("*")]:
            if path.is_file() and not _SKIPPED & set(path.relative_to(place).parts):
                yield path


def _copy(root: Path, source: Path, into: Path) -> None:
    """Copy a file to the same path below another folder. A large one becomes a symbolic link."""
    target = into / source.relative_to(root)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)  # two settings can reference one file
    if source.stat().st_size > _LARGE_BYTES:
        target.symlink_to(source.resolve())
    else:
        shutil.copy(source, target)  # with its mode, which is part of the digest of an image's build context


def _hash(root: Path, paths: Iterable[Path]) -> str:
    """Return a hash of the names and contents of files. Of a large file, its size and time count."""
    found = hashlib.sha256()
    for path in sorted(set(paths)):
        about = path.stat()
        found.update(f"{os.path.relpath(path, root)}\0{about.st_size}\0".encode())
        found.update(str(about.st_mtime_ns).encode() if about.st_size > _LARGE_BYTES else path.read_bytes())
    return found.hexdigest()
