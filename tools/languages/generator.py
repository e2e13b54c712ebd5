"""Generate the SDK of a Pulumi package in one language, with the generators of the engine's own module."""

import subprocess
from pathlib import Path
from typing import Final, Literal

from tools.languages.programs import LanguagesError

Language = Literal["python", "nodejs", "go"]
"""Languages whose generators are in pkg/v3. C# and Java have modules of their own, and that of C# downloads a logo."""

_LIMIT_S: Final = 300.0


def generate(program: Path, schema: str, language: Language, folder: Path, *, loader: str = "") -> None:
    """Write the SDK of a package into `folder` with the built generator `program`.

    `schema` is the text of schema.json. `loader` is the address of an engine's schema loader; without one, a schema that refers to another
    package is refused. Nothing is written on an error. Raises LanguagesError with one sentence.
    """
    command = [str(program), *(["-loader", loader] if loader else []), language, str(folder)]
    done = subprocess.run(command, input=schema, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    if done.returncode != 0:
        raise LanguagesError(done.stderr.strip() or f"{program} exited with code {done.returncode}.")
