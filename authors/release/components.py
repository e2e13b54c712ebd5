"""Archive of the plugin `gemma-serving`: the components with the code of the stacks that they use.

Like the provider's archive it has sources and pinned requirements, and serves every operating system and processor.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from authors.release.archives import commit_date, files_of, packed
from hosted import NAME, VERSION

ROOT: Final = Path(__file__).resolve().parents[2]
ROOMS: Final = ("cloud", "components", "contracts", "hosted", "planning", "stacks", "vm_agent")
"""Folders with the plugin's code."""
ARCHIVE: Final = f"pulumi-resource-{NAME}-v{VERSION}.tar.gz"
_PLUGIN: Final = """runtime:
  name: python
  options:
    toolchain: pip
    virtualenv: venv
"""
"""PulumiPlugin.yaml of an installed plugin. The language host creates the environment `venv` beside it."""
_MAIN: Final = '''"""Entry point of the plugin."""

from hosted.__main__ import main

if __name__ == "__main__":
    main()
'''


def components_archive(out: Path) -> Path:
    """Write the archive into a folder and return its path. The same commit gives the same bytes."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / ARCHIVE
    with commit_date(ROOT) as date:
        path.write_bytes(packed(archive_files(), date))
    return path


def archive_files() -> Mapping[str, bytes]:
    """Return the content of each file of the archive by its name."""
    files = {f"{room}/{name}": path for room in ROOMS for name, path in files_of(ROOT / room).items()}
    copied = {**files, "requirements.txt": ROOT / "hosted" / "requirements.txt", "LICENSE": ROOT / "LICENSE"}
    written = {"PulumiPlugin.yaml": _PLUGIN.encode(), "__main__.py": _MAIN.encode()}
    return {**{name: path.read_bytes() for name, path in copied.items()}, **written}
