r"""Write the settings file of a new stack; in an empty folder, its project too.

  gemma init chat
  gemma init chat --model 12B --accelerator L4
  gemma init chat --model google/gemma-4-E4B-it --workload in=1500,out=300,users=32
  gemma init mine --model my-org/gemma-4-12b-sql --config models/sql
  gemma init chat --like l4-12b-qat --ci
  gemma init chat --from deployment.yaml
  gemma init --upgrade

Selects the cheapest deployment of the model that serves the workload: accelerator, locations, precision and vLLM options. Writes
`Pulumi.NAME.yaml` with comments, and prints its plan and the next commands. With --like, the file is a copy. With --from, it has
the settings of a vLLM server that runs elsewhere. Without these and --model, it asks.
In a folder without a project it also writes Pulumi.yaml, a program of three lines, .gitignore, and the wheels of this version with locks that
name every package by its hash. Creates nothing in Google Cloud.
"""

import hashlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.installation import (
    CHECKOUT,
    DISTRIBUTIONS,
    PROGRAM_FILES,
    ROOT,
    no_project,
    own_project,
)
from gemma_serving.scripts.cli.command import Command, Effect, print_result, print_text, run_command
from gemma_serving.scripts.cli.prompts import answered
from gemma_serving.scripts.init.init_options import InitOptions
from gemma_serving.scripts.init.own_wheels import own_wheels

_GITHUB: Final = Path(__file__).with_name("github")
"""Files for `.github` that differ from the repository's: they install wheels."""
_OF_REPOSITORY: Final = (
    *(f"workflows/{name}.yml" for name in ("deploy", "drift", "guard", "preview", "teardown")),
    *("setup/accounts.sh", "setup/claims.py", "setup/repository.sh"),
)
"""Files of the repository's `.github` that a folder has, too."""
_PROGRAMS: Final = ("scripts/preview/ci_plan.sh", "scripts/preview/ci_preview.sh", "scripts/teardown/ci_teardown.sh")
"""Programs of the workflows. A folder has them in `.github/scripts`."""
_WHEELS: Final = "wheels"
_LOCK: Final = f"{_WHEELS}/requirements.txt"
_TRY_LOCK: Final = f"{_WHEELS}/requirements-try.txt"
_LOCKS: Final[Mapping[str, str]] = {
    _LOCK: "requirements.txt",
    _TRY_LOCK: "packages/localcloud/requirements.txt",
}
"""Locks of a folder, with the lock of this repository that has the packages of others. The second is for the local cloud."""
_IGNORED: Final = (".venv/", ".localcloud/", ".work/", "__pycache__/", "previews/", "results/", "gha-creds-*.json")
_TEXTS: Final[Mapping[str, str]] = {
    **PROGRAM_FILES,
    "requirements.txt": f"""\
# To upgrade, install the new version, then run `gemma init --upgrade`.
-r {_LOCK}
""",
}
"""Files of a project by name."""
_NEW_ENVIRONMENT: Final = "python3 -m venv .venv"
_INSTALL: Final = (
    ".venv/bin/pip install --quiet --require-hashes -r requirements.txt  # 500 MB",  # measured: pip 23.2 with .pyc files, 74 packages
    'export PATH="$PWD/.venv/bin:$PATH"',
)
_TRY: Final = f"""
Try it without an account (160 MB more):
  .venv/bin/pip install --quiet --require-hashes -r {_TRY_LOCK}
  localcloud shell --scenario prepared
"""
"""Measured as above: 15 packages."""


def _init(options: InitOptions) -> ExitCode:
    if options.upgrade:
        return _upgraded()
    here = Path.cwd()
    has_file = (here / "Pulumi.yaml").exists()
    if has_file and own_project() is None:
        raise CommandRefusedError(no_project())
    if has_file or (CHECKOUT is not None and here.is_relative_to(CHECKOUT)):
        if options.ci:
            raise CommandRefusedError("Pulumi.yaml exists. --ci needs a new folder; to add a stack here, remove --ci.")
        from gemma_serving.scripts.init.stack_file import write_settings
        from gemma_serving.scripts.plan.api import new_file

        new_file(options.name, option="NAME", overwrite=options.force)  # before the questions
        return write_settings(_complete(options))
    return _new_project(options, here)


def _new_project(options: InitOptions, here: Path) -> ExitCode:
    """Write the project with its stack, or nothing. Raises CommandRefusedError for a file that exists."""
    made = (*_TEXTS, _WHEELS, *([".github"] if options.ci else ()))
    for name in (*made, *([] if options.force else [f"Pulumi.{options.name}.yaml"])):
        if (here / name).exists():
            raise CommandRefusedError(f"{name} exists. Move it away, or use a new folder.")
    packages = _packages()
    options = _complete(options)
    try:
        for name, text in _TEXTS.items():
            (here / name).write_text(text, encoding="utf-8")
        _write(packages)
        github = _workflows() if options.ci else ()
        from gemma_serving.scripts.init.stack_file import write_settings  # it reads where the project is

        first = _INSTALL if (here / ".venv").is_dir() else (_NEW_ENVIRONMENT, *_INSTALL)
        code = write_settings(options, first=first, also=(*_TEXTS, ".gitignore", *packages, *github))
    except BaseException:
        for name in _TEXTS:
            (here / name).unlink(missing_ok=True)
        for folder in set(made).difference(_TEXTS):
            shutil.rmtree(here / folder, ignore_errors=True)
        raise
    ignored = here / ".gitignore"
    text = ignored.read_text(encoding="utf-8") if ignored.is_file() else ""
    missing = [line for line in _IGNORED if line not in text.splitlines()]
    ignored.write_text("\n".join([*text.splitlines(), *missing, ""]), encoding="utf-8")
    if not options.as_json:
        print_text(_TRY, end="")
    return code


def _upgraded() -> ExitCode:
    """Replace the wheels and the locks of this folder. Raises CommandRefusedError for a folder without them."""
    if not Path(_LOCK).is_file():
        raise CommandRefusedError(f"This folder has no {_LOCK}. Run `gemma init NAME` in a new folder.")
    packages = _packages()
    for path in Path(_WHEELS).glob("*.whl"):
        if path.name.startswith(DISTRIBUTIONS):
            path.unlink()
    _write(packages)
    print_result(f"Wrote {', '.join(packages)}.")
    print_text(f"\nNext:\n  {_INSTALL[0]}\n{_TRY}", end="")
    return ExitCode.DONE


def _packages() -> Mapping[str, bytes]:
    """Return the wheels of this version, and the locks that name them by path and hash, and every other package by its hashes."""
    with TemporaryDirectory(prefix="gemma-wheels-") as folder:
        files = {f"{_WHEELS}/{path.name}": path.read_bytes() for path in own_wheels(Path(folder))}
    product, *others, local_cloud = (
        f"./{name} --hash=sha256:{hashlib.sha256(wheel).hexdigest()}\n" for name, wheel in files.items()
    )
    named = {_LOCK: [product.replace(".whl ", ".whl[deploy] "), *others], _TRY_LOCK: [local_cloud]}
    locks = {lock: "".join([*named[lock], (ROOT / name).read_text(encoding="utf-8")]) for lock, name in _LOCKS.items()}
    return {**files, **{lock: text.encode() for lock, text in locks.items()}}


def _workflows() -> Sequence[str]:
    """Write the workflows with their scripts, and return the names of the files."""
    github = Path(".github")
    shutil.copytree(_GITHUB, github)
    copied = {f".github/{name}": github / name for name in _OF_REPOSITORY}
    programs = {name: github / "scripts" / Path(name).name for name in _PROGRAMS}
    for source, target in {**copied, **programs}.items():
        target.parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / source, target)
    for path in (github / "workflows").iterdir():
        text = path.read_text(encoding="utf-8")
        for name, program in programs.items():
            text = text.replace(name, program.as_posix())
        path.write_text(text, encoding="utf-8")
    return [path.as_posix() for path in sorted(github.rglob("*")) if path.is_file()]


def _write(packages: Mapping[str, bytes]) -> None:
    Path(_WHEELS).mkdir(exist_ok=True)
    for name, content in packages.items():
        Path(name).write_bytes(content)


def _complete(options: InitOptions) -> InitOptions:
    """Return the options, with the user's answers if they name no model. Raises CommandRefusedError without a terminal."""
    if options.model or options.like or options.source:
        return options
    without = "No model. Pass --model ID, --from FILE, or --like STACK to copy a settings file."
    model = answered("Model: E2B, E4B, 12B, 26B-A4B, 31B, or a Hugging Face id", "E2B", without_terminal=without)
    cheapest = "the cheapest"
    accelerator = options.accelerator or answered(
        "Accelerator, such as L4 or v6e-1", cheapest, without_terminal=without
    )
    return replace(options, model=model, accelerator=None if accelerator == cheapest else accelerator)


COMMAND: Final = Command(
    name="init",
    help=__doc__,
    options=InitOptions,
    run=_init,
    effect=Effect.CHANGES,
    exit_codes={ExitCode.REFUSED: "a file exists, no deployment meets the limits, or an option is invalid"},
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
