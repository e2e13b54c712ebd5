"""Where the product is: a checkout, or a wheel that a project's folder uses."""

import sys
from pathlib import Path
from typing import Final

from gemma_serving import VERSION

PACKAGE: Final = Path(__file__).resolve().parents[1]
"""Folder of `gemma_serving`, with the examples and the images that a wheel has, too."""
CHECKOUT: Final = PACKAGE.parent if (PACKAGE.parent / "Pulumi.yaml").is_file() else None
"""Root of the checkout; None in an installation."""

INSTALL_PULUMI: Final = "make setup" if CHECKOUT else "curl -fsSL https://get.pulumi.com | sh"
"""Command that installs the engine."""


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
