"""Archive of the plugin `gemma-serving`: the components with the code of the stacks that they use.

Like the provider's archive it has sources and pinned requirements, and serves every operating system and processor.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from authors.release.archives import files_of, plugin_archive, with_plugin_parts
from hosted import NAME, VERSION

ROOT: Final = Path(__file__).resolve().parents[2]
ROOMS: Final = ("cloud", "components", "contracts", "hosted", "planning", "stacks", "vm_agent")
"""Folders with the plugin's code."""
ARCHIVE: Final = f"pulumi-resource-{NAME}-v{VERSION}.tar.gz"
_MAIN: Final = '''"""Entry point of the plugin."""

from hosted.__main__ import main

if __name__ == "__main__":
    main()
'''


def components_archive(out: Path) -> Path:
    """Write the archive into a folder and return its path. The same commit gives the same bytes."""
    return plugin_archive(out / ARCHIVE, archive_files())


def archive_files() -> Mapping[str, bytes]:
    """Return the content of each file of the archive by its name."""
    files = {f"{room}/{name}": path for room in ROOMS for name, path in files_of(ROOT / room).items()}
    copied = {**files, "requirements.txt": ROOT / "hosted" / "requirements.txt"}
    return with_plugin_parts(
        {**{name: path.read_bytes() for name, path in copied.items()}, "__main__.py": _MAIN.encode()}
    )
