"""Generate the SDK of a Pulumi package, with the generators of the engine's Go module.

`python -m dev.tools.engine.generator` builds the program ahead of time. Otherwise the first `pulumi package add` does, in about 40 seconds after
a build of the engine.
"""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Final, Literal

from dev.tools.engine.model import VERSION, EngineError, cache_root
from localcloud.go_build import GoBuildError, GoProgram, compile_program, compiler, locked, new_folder

_SOURCES: Final = Path(__file__).with_name("golang")
_PROGRAM: Final = GoProgram(label="generator", name="the generator of SDKs", package="./generator", packages=777)
_LIMIT_S: Final = 300.0


def ensure() -> Path:
    """Return the program, built once per engine version and source. Raises EngineError without Go, or with the compiler's last lines."""
    root = cache_root() / VERSION
    key = hashlib.sha256((_SOURCES / "generator" / "main.go").read_bytes()).hexdigest()[:8]
    program = root / f"generator-{key}" / "generator"
    if program.is_file():
        return program
    go = compiler()
    if go is None:
        raise EngineError(
            "This engine was built from source, and `go`, needed to generate an SDK, is not on PATH. Install Go 1.26 or newer, "
            "or Pulumi from https://www.pulumi.com/docs/install/."
        )
    with locked(root):
        if not program.is_file():
            try:
                with new_folder(program.parent, _SOURCES) as folder:
                    compile_program(go, _PROGRAM, folder.module, folder.result / program.name)
            except GoBuildError as error:
                raise EngineError(str(error)) from error
    return program


def generate(schema: str, language: Literal["python", "nodejs"], folder: Path, loader: str) -> None:
    """Write the SDK of a package into `folder`.

    `schema` is the text of schema.json, `loader` the address of an engine that loads the packages that it refers to.
    Raises EngineError if the program cannot be built, or with its sentence about an invalid schema; then no file is written.
    """
    command = [str(ensure()), language, str(folder), loader]
    done = subprocess.run(command, input=schema, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    if done.returncode != 0:
        raise EngineError(done.stderr.strip() or f"{command[0]} exited with code {done.returncode}.")


if __name__ == "__main__":
    try:
        print(ensure())
    except EngineError as problem:
        sys.exit(f"generator: {problem}")
