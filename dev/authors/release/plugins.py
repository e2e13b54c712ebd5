"""Archive of the provider `gcp-tpu`, which `pulumi plugin install` unpacks. Its bytes follow from its files and the commit's date.

The archive has sources and the pinned requirements, so one archive serves every operating system and processor: the engine's Python language host
installs the requirements into an environment inside the plugin's folder.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dev.authors.release.archives import ROOT, source_date, write_archive
from gcp_tpu_provider import VERSION

FOLDER: Final = ROOT / "packages" / "gcp-tpu"
PACKAGE: Final = "gcp_tpu_provider"
ARCHIVE: Final = f"pulumi-resource-gcp-tpu-v{VERSION}.tar.gz"
FILES: Final = (
    "README.md",
    "__main__.py",
    "requirements.txt",
    "gcp_tpu_provider/machines.json",
    "gcp_tpu_provider/refusals.json",
    "gcp_tpu_provider/schema.json",
)
PLUGIN: Final = """runtime:
  name: python
  options:
    toolchain: pip
    virtualenv: venv
"""
"""PulumiPlugin.yaml of an installed plugin. The language host creates the environment `venv` next to it."""


def provider_archive(out: Path) -> Path:
    """Write the archive into a folder and return its path. The same commit builds the same bytes."""
    return write_archive(out / ARCHIVE, archive_files(), source_date())


def archive_files() -> Mapping[str, bytes]:
    """Return the content of each file of the archive by its name."""
    modules = {f"{PACKAGE}/{path.name}": path.read_bytes() for path in (FOLDER / PACKAGE).glob("*.py")}
    others = {name: (FOLDER / name).read_bytes() for name in FILES}
    fixed = {"LICENSE": (ROOT / "LICENSE").read_bytes(), "PulumiPlugin.yaml": PLUGIN.encode()}
    return {**modules, **others, **fixed}
