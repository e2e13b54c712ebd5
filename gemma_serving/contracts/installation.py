"""Where the product is: a checkout, or a wheel that a project's folder uses."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gemma_serving import VERSION

PACKAGE: Final = Path(__file__).resolve().parents[1]
"""Folder of `gemma_serving`, with the examples and the images that a wheel has, too."""
CHECKOUT: Final = PACKAGE.parent if (PACKAGE.parent / "Pulumi.yaml").is_file() else None
"""Root of the checkout; None in an installation."""

_RUN: Final = "import runpy, sys; sys.path.append(sys.argv.pop(1)); runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
"""Runs a module with the product's folder as the last place of imports, because a checkout is not installed."""

INSTALL_PULUMI: Final = "make setup" if CHECKOUT else "curl -fsSL https://get.pulumi.com | sh"
"""Command that installs the engine."""


def product_program(module: str, *arguments: str) -> Sequence[str]:
    """Return the command line that runs a module of the product by its full name, in a checkout and from a wheel.

    `-P`: a folder `scripts` or a file `json.py` where the command is run never replaces a module.
    """
    return [sys.executable, "-P", "-c", _RUN, str(PACKAGE.parent), module, *arguments]


def project_root() -> Path | None:
    """Return the folder with Pulumi.yaml: this one, otherwise the checkout; None without both."""
    here = Path.cwd()
    return here if (here / "Pulumi.yaml").is_file() else CHECKOUT


def install_sentence(extra: str) -> str:
    """Return how to install what an extra of the wheel has."""
    if CHECKOUT:
        return "Run `make setup`."
    return f"Run `{sys.executable} -m pip install '{with_extras(extra)}'`."


def with_extras(*extras: str) -> str:
    """Return the requirement of this version with extras."""
    return f"gemma-serving[{','.join(extras)}]=={VERSION}"
