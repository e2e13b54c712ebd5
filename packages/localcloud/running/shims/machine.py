"""The machine that a command runs on: its folder with the records of containers, units and images."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

FOLDER_VARIABLE: Final = "LOCALCLOUD_MACHINE"
OWN_FOLDERS: Final = {"/dev/shm": "dev-shm", "/mnt": "mnt"}  # noqa: S108 - the machine's own
"""Folders that each machine has for itself, and their names below the machine's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine's constants, written at its boot, by default of one that does not run. `clock_speed`: simulated seconds per real second."""

    folder: Path
    name: str = "machine"
    address: str = "127.0.0.1"
    accelerator: str = ""
    clock_speed: float = 1.0
    base_url: str = ""
    init_pid: int = 0
    paths: dict[str, str] = field(default_factory=dict[str, str])
    internet: bool = True
    google: bool = True
    """Both as in `localcloud.world.runtime.Egress`."""
    denies_devices: bool = False
    """True if unprivileged containers cannot open the accelerator's devices."""

    @property
    def containers(self) -> Path:
        """Return the folder of the containers' records: NAME.json and NAME.log."""
        return self.folder / "containers"

    def record(self, container: str) -> Path:
        """Return the file with the record of a container."""
        return self.containers / f"{container}.json"

    def log(self, container: str) -> Path:
        """Return the file with the output of a container."""
        return self.containers / f"{container}.log"

    @property
    def devices(self) -> Path:
        """Return the folder in place of /dev."""
        return self.folder / "dev"

    @property
    def units(self) -> Path:
        """Return the folder of the systemd units' records: NAME.json and NAME.log."""
        return self.folder / "units"

    @property
    def stopped_docker(self) -> Path:
        """Return the file that exists while the machine's docker daemon is stopped."""
        return self.folder / "docker-stopped"

    @property
    def full_disk(self) -> Path:
        """Return the file that exists while the machine's disk has no space for another layer."""
        return self.folder / "disk-full"

    @property
    def images(self) -> Path:
        """Return the file that lists the pulled images."""
        return self.folder / "images.json"


def this_machine() -> Machine:
    """Read the machine that the environment names. Exit with one sentence if it does not exist."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        sys.exit(f"{FOLDER_VARIABLE} is not set. This command only works on a simulated machine.")
    document = read_json(Path(folder) / "machine.json")
    if document is None:
        sys.exit(f"no machine in {folder}: it was powered off.")
    return Machine(folder=Path(folder), **document)


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object, or return None if the file does not exist."""
    try:
        return cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def new_id(size: int) -> str:
    """Return random bytes in hexadecimal digits. `secrets` loads the hash functions, which most commands do not need."""
    return os.urandom(size).hex()


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON object atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{new_id(4)}")
    part.write_text(json.dumps(document), encoding="utf-8")
    part.replace(path)


def documents(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, document) of each record in a folder."""
    for path in sorted(folder.glob("*.json")):
        document = read_json(path)
        if document is not None:
            yield path.stem, document


def tail(lines: list[str], count: int | None) -> list[str]:
    """Return the last lines of a log; None means all."""
    return lines if count is None else lines[-count:] if count else []


def alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[:1] != ["Z"]
