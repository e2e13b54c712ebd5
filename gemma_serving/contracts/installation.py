"""Where the product is: a checkout, or a wheel that a project's folder uses."""

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from gemma_serving import VERSION
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.labels import PRODUCT

PACKAGE: Final = Path(__file__).resolve().parents[1]
"""Folder of `gemma_serving`."""
CHECKOUT: Final = PACKAGE.parent if (PACKAGE.parent / "Pulumi.yaml").is_file() else None
"""Root of the checkout; None in an installation."""
ROOT: Final = CHECKOUT or PACKAGE
"""Folder of the product's files, by their names in the checkout, such as `docs/tasks.md`. pyproject.toml says which a wheel has."""

_RUN: Final = "import runpy, sys; sys.path.append(sys.argv.pop(1)); runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
"""Runs a module with the product's folder as the last place of imports, because a checkout is not installed."""

INSTALL_PULUMI: Final = "make setup" if CHECKOUT else "curl -fsSL https://get.pulumi.com | sh"
"""Command that installs the engine."""
DISTRIBUTIONS: Final = ("gemma_serving", "gcp_tpu_provider", "loadtest_openai", "localcloud_google")
"""Start of the wheels' file names, the local cloud's last. No index has these names yet, so each is installed by its path or the repository's URL."""
_FOLDERS: Final = ("packages/gcp-tpu", "packages/loadtest", "packages/localcloud")
"""Folders of the others in the repository."""
FOLDER_VARIABLE: Final = "GEMMA_SERVING_FOLDER"
"""Variable with the project's folder, for a process that works in a copy of it."""
PROGRAM_FILES: Final[Mapping[str, str]] = {
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
}
"""Files by which the engine finds and runs the program of a project's folder, as `gemma init` writes them."""
_PAGE: Final = re.compile(r"(?<!, )(?<!vLLM )(?<![\w/])(dev/)?docs/[\w/-]+\.md\b")
"""A page of this project. One after a comma or vLLM is of the project before it: `vLLM, docs/usage/security.md`."""
NEW_FOLDER: Final = "mkdir serving && cd serving && gemma init NAME"
"""Command that writes a project, in every folder."""


def with_pages(text: str) -> str:
    """Return a text that names pages of the checkout, such as `docs/costs.md`; from a wheel, with their published addresses."""
    if CHECKOUT or "docs/" not in text:
        return text
    return _PAGE.sub(lambda found: f"{_address()}{found[0]}", text)


@cache
def _address() -> str:
    """Return the published address of the installed wheel's pages, with a slash at its end; empty without one."""
    from importlib.metadata import metadata  # noqa: PLC0415 - takes 15 ms to load

    urls = dict(one.split(", ", 1) for one in metadata(PRODUCT).get_all("Project-URL") or ())
    return f"{urls['Repository']}/blob/v{VERSION}/" if "Repository" in urls else ""


def product_program(module: str, *arguments: str) -> Sequence[str]:
    """Return the command line that runs a module of the product by its full name, in a checkout and from a wheel.

    `-P`: a folder `scripts` or a file `json.py` where the command is run never replaces a module.
    """
    return [sys.executable, "-P", "-c", _RUN, str(PACKAGE.parent), module, *arguments]


def project_root() -> Path | None:
    """Return the folder with Pulumi.yaml: this one, otherwise the checkout; None without both. Its program may be any program."""
    here = Path.cwd()
    return here if (here / "Pulumi.yaml").is_file() else CHECKOUT


def home_folder() -> Path:
    """Return the folder whose records this machine keeps: the project's, also for a program that the engine runs in a copy of it."""
    return Path(os.environ.get(FOLDER_VARIABLE) or project_root() or Path.cwd())


def own_project() -> Path | None:
    """Return the project's folder if its program is this product's; None without a project, and for another program, which no command runs."""
    root = project_root()
    return root if root in {None, CHECKOUT} or _project_name() == PRODUCT else None


def no_project() -> str:
    """Return the error for a folder for which `own_project` returns None."""
    if name := _project_name():
        return (
            f"This folder is the project {name}. Make a folder for gemma: `{NEW_FOLDER}`; "
            "or import the components (docs/components.md)."
        )
    return "Pulumi.yaml not found. Run this command from the project folder, or `gemma init` to make one."


def _project_name() -> str:
    """Return the name in this folder's Pulumi.yaml: empty without the file, `?` without a name."""
    path = Path.cwd() / "Pulumi.yaml"
    if not path.is_file():
        return ""
    found = re.search(r"""^name:\s*["']?([\w.-]+)""", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    return found[1] if found else "?"


def own_sources() -> Sequence[str]:
    """Return what pip installs this version from, in the order of DISTRIBUTIONS, and what the installed one came from (PEP 610): wheels, folders, or URLs.

    Raises CommandRefusedError if a wheel is missing, because an index may have another package with its name.
    """
    noted: Mapping[str, object] = {} if CHECKOUT else _direct_url()
    url = str(noted.get("url") or "")
    path = Path(unquote(urlsplit(url).path))
    if commit := as_mapping(noted.get("vcs_info")):
        source = f"{commit.get('vcs')}+{url}@{commit.get('commit_id')}"
        return [source, *(f"{source}#subdirectory={folder}" for folder in _FOLDERS)]
    if CHECKOUT or "dir_info" in noted:
        root = CHECKOUT or path
        return [str(root), *(str(root / folder) for folder in _FOLDERS)]
    folder = path.parent if url.startswith("file:") else Path.cwd() / "wheels"
    wheels = [folder / f"{name}-{VERSION}-py3-none-any.whl" for name in DISTRIBUTIONS]
    missing = ", ".join(wheel.name for wheel in wheels if not wheel.is_file())
    if missing:
        raise CommandRefusedError(
            f"Not in {folder}: {missing}. Put it there, or install from a clone: "
            f"`{shlex.quote(sys.executable)} -m pip install --force-reinstall --no-deps CLONE`."
        )
    return [str(wheel) for wheel in wheels]


def _direct_url() -> Mapping[str, object]:
    """Return what pip noted of the product's origin; empty for a package of an index."""
    from importlib.metadata import distribution  # noqa: PLC0415 - takes 15 ms to load

    return as_mapping(json.loads(distribution(PRODUCT).read_text("direct_url.json") or "{}"))


def install_sentence(extra: str) -> str:
    """Return how to install what an extra of the wheel has."""
    if CHECKOUT:
        return "Run `make setup`."
    try:
        product, *others, _local_cloud = own_sources()
    except CommandRefusedError as error:
        return str(error)
    with_extra = f"{PRODUCT}[{extra}] @ {product}" if "://" in product else f"{product}[{extra}]"
    return f"Run `{shlex.join([sys.executable, '-m', 'pip', 'install', with_extra, *others])}`."
