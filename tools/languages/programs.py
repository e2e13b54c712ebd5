"""The Go programs of this package: where they are, and how they are built, once per content and user.

The module in `golang` pins the engine's version of pkg/v3, so Go's build cache already has most packages after a build of the engine.
"""

import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from localcloud.go_build import (
    GoBuildError,
    GoProgram,
    cache_folder,
    compile_program,
    compiler,
    content_key,
    locked,
    new_folder,
)

GENERATOR: Final = "generator"
YAML_HOST: Final = "pulumi-language-yaml"
NO_GO: Final = (
    "`go`, needed to build the generator of SDKs and the YAML language host, is not on PATH. Install Go 1.26 or newer."
)
NOT_BUILT: Final = "The generator of SDKs is not built. Run: python -m tools.languages"
_SOURCES: Final = Path(__file__).with_name("golang")
_PROGRAMS: Final = {
    GENERATOR: GoProgram(label="languages", name="the generator of SDKs", package=".", packages=791),
    YAML_HOST: GoProgram(
        label="languages",
        name="the YAML language host",
        package="github.com/pulumi/pulumi-yaml/cmd/pulumi-language-yaml",
        packages=796,
    ),
}


class LanguagesError(Exception):
    """A program is missing, or it refused its input. The message is for the user."""


def found(name: str) -> Path | None:
    """Return a program that an earlier build of this content stored in the user's cache folder, or None."""
    path = _folder() / name
    return path if path.is_file() else None


def ensure() -> Path:
    """Return the folder of the programs, after building them if necessary. Raises LanguagesError without Go, or with the compiler's last lines."""
    if not _folder().is_dir():
        go = compiler()
        if go is None:
            raise LanguagesError(NO_GO)
        with locked(_root()):
            if not _folder().is_dir():
                _build(go)
    return _folder()


def add_to_engines() -> Sequence[Path]:
    """Make the YAML language host available to each engine that was built here, and return its paths there.

    Nothing for an official distribution, which has its own. A link, because the engine searches next to itself and a second copy would be 38 MB.
    """
    target = ensure() / YAML_HOST
    links = [engine.with_name(YAML_HOST) for engine in sorted(cache_folder("engine").glob("*/build/pulumi"))]
    for link in links:
        if not (link.is_symlink() and link.readlink() == target):
            new = link.with_name(f"{YAML_HOST}.{os.getpid()}")
            new.symlink_to(target)
            new.replace(link)
    return links


def _build(go: str) -> None:
    print("languages: building the generator of SDKs and the YAML language host, once", file=sys.stderr, flush=True)
    try:
        with new_folder(_folder(), _SOURCES) as folder:
            for name, program in _PROGRAMS.items():
                compile_program(go, program, folder.module, folder.result / name)
    except GoBuildError as error:
        raise LanguagesError(str(error)) from error


@cache
def _key() -> str:
    return content_key(_SOURCES)


def _root() -> Path:
    return cache_folder("languages")


def _folder() -> Path:
    return _root() / _key()
