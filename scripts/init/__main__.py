r"""Write a project's folder: settings, program and requirements of one stack.

  gemma init chat
  gemma init chat --model 12B --accelerator L4
  gemma init chat --like l4-12b-qat
  gemma init chat --like l4-12b-qat --ci

Writes Pulumi.yaml, a program of three lines, requirements.txt with this version, .gitignore and `Pulumi.NAME.yaml` into this folder. The
options are those of `gemma new`, which adds another stack later. Without --model and --like, it asks. Creates nothing in Google Cloud.
"""

import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.installation import with_extras
from gemma_serving.scripts.cli.command import Command, run_command
from gemma_serving.scripts.cli.options import Option
from gemma_serving.scripts.cli.prompts import answered
from gemma_serving.scripts.new.api import NewOptions, write_settings

_GITHUB: Final = Path(__file__).with_name("github")
"""Workflows with their scripts, most of them links to those of the repository."""
_SCRIPTS: Final = re.compile(r"scripts/\w+/(?=ci_)")
"""Folders of the repository with what the workflows run."""
_IGNORED: Final = (".venv/", ".localcloud/", ".work/", "__pycache__/", "results/", "gha-creds-*.json")
_TEXTS: Final[Mapping[str, str]] = {
    "Pulumi.yaml": """\
# The name is the namespace of the settings, so keep it.
name: gemma-serving
description: Gemma 4 behind vLLM on Google Cloud
runtime:
  name: python
  options:
    toolchain: pip
    virtualenv: .venv
plugins:
  providers:
    - name: gcp-tpu
      path: .venv/bin
""",
    "__main__.py": """\
from gemma_serving.stacks.program import main

main()
""",
    "requirements.txt": f"""\
# To upgrade, change the version, then run `.venv/bin/pip install -r requirements.txt`.
{with_extras("deploy", "localcloud")}
""",
}
"""Files of a project by name."""
_NEW_ENVIRONMENT: Final = "python3 -m venv .venv"
_INSTALL: Final = (".venv/bin/pip install --quiet -r requirements.txt", 'export PATH="$PWD/.venv/bin:$PATH"')


@dataclass(frozen=True, kw_only=True)
class InitOptions(NewOptions):
    """Options of the command."""

    name: Annotated[str, Option("Stack name, as for `gemma new`.", positional=True)] = "dev"
    ci: Annotated[
        bool, Option("Also write the workflows of GitHub: preview, deploy, drift, teardown and guard (docs/ci.md).")
    ] = False


def _init(options: InitOptions) -> ExitCode:
    here = Path.cwd()
    for name in (*_TEXTS, *([".github"] if options.ci else ())):
        if (here / name).exists():
            instead = (
                "To add a stack, run `gemma new NAME --model ID`."
                if name == "Pulumi.yaml"
                else "Move it away, or use a new folder."
            )
            raise CommandRefusedError(f"{name} exists. {instead}")
    if not options.model and not options.like:
        options = _asked(options)
    try:
        for name, text in _TEXTS.items():
            (here / name).write_text(text, encoding="utf-8")
        code = write_settings(options, first=_INSTALL if (here / ".venv").is_dir() else (_NEW_ENVIRONMENT, *_INSTALL))
    except BaseException:
        for name in _TEXTS:
            (here / name).unlink(missing_ok=True)
        raise
    ignored = here / ".gitignore"
    text = ignored.read_text(encoding="utf-8") if ignored.is_file() else ""
    missing = [line for line in _IGNORED if line not in text.splitlines()]
    ignored.write_text("\n".join([*text.splitlines(), *missing, ""]), encoding="utf-8")
    if options.ci:
        shutil.copytree(_GITHUB, here / ".github")
        for path in (here / ".github" / "workflows").iterdir():
            path.write_text(_SCRIPTS.sub(".github/scripts/", path.read_text(encoding="utf-8")), encoding="utf-8")
    return code


def _asked(options: InitOptions) -> InitOptions:
    """Return the options with the user's answers. Raises CommandRefusedError without a terminal."""
    without = "No model. Pass --model ID, or --like STACK to copy an example."
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
    changes=True,
    exit_codes={ExitCode.REFUSED: "the folder has a project, no deployment meets the limits, or an option is invalid"},
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
