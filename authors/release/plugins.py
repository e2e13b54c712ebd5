"""Archive of the provider `gcp-tpu`, which `pulumi plugin install` unpacks.

The archive has sources and the pinned requirements, so one archive serves every operating system and processor: the engine's Python language host
installs the requirements into an environment inside the plugin's folder.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from authors.release.archives import plugin_archive, with_plugin_parts
from gcp_tpu_provider import VERSION

FOLDER: Final = Path(__file__).resolve().parents[2] / "packages" / "gcp-tpu"
PACKAGE: Final = "gcp_tpu_provider"
ARCHIVE: Final = f"pulumi-resource-gcp-tpu-v{VERSION}.tar.gz"
FILES: Final = ("README.md", "__main__.py", "requirements.txt", "schema.json")


def provider_archive(out: Path) -> Path:
    """Write the archive into a folder and return its path. The same commit gives the same bytes."""
    return plugin_archive(out / ARCHIVE, archive_files())


def archive_files() -> Mapping[str, bytes]:
    """Return the content of each file of the archive by its name, sorted."""
    modules = {f"{PACKAGE}/{path.name}": path.read_bytes() for path in (FOLDER / PACKAGE).glob("*.py")}
    others = {name: (FOLDER / name).read_bytes() for name in FILES}
    return with_plugin_parts({**modules, **others})
