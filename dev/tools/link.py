"""`python -m dev.tools.link`: add the distributions in `packages/` and the command `gemma` to this virtual environment.

The entries are relative to the environment, so a copy of the folder with both finds its own packages.
"""

import os
import sys
import sysconfig
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = ("packages", "packages/gcp-tpu")
NAME: Final = "gemma_serving_packages.pth"
LAUNCHER: Final = """\
#!/bin/sh
# The command of this checkout. The folder's name as it was typed: `.venv` may be a link to another checkout's.
bin=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -L)
exec "${bin%/.venv/bin}/gemma" "$@"
"""


def link(site_packages: Path, root: Path) -> Path:
    """Write the file that `site` reads at start-up, and return its path."""
    path = site_packages / NAME
    lines = [os.path.relpath(root / folder, site_packages) for folder in FOLDERS]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def install_launcher(scripts: Path) -> Path:
    """Write the command `gemma` of the environment, and return its path."""
    path = scripts / "gemma"
    path.write_text(LAUNCHER, encoding="utf-8")
    path.chmod(0o755)
    return path


def main() -> int:
    """Link the packages of this checkout to the interpreter's own environment."""
    if sys.prefix == sys.base_prefix:
        print(
            "link: this Python is not in a virtual environment. Run `.venv/bin/python -m dev.tools.link`.",
            file=sys.stderr,
        )
        return 2
    link(Path(sysconfig.get_path("purelib")), Path(os.path.abspath(sys.prefix)).parent)  # noqa: PTH100 - .venv may be a link
    install_launcher(Path(sysconfig.get_path("scripts")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
