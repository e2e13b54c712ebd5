"""A disk of a run's own whose writes share one rate: a file as a block device, of which the page cache holds little."""

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from dev.judges.real.daemon import DockerDaemon
from dev.judges.real.home import Need, RealHome, run

_LIMIT: Final = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")
"""Of the root group, in which the kernel writes the page cache to the disks."""
_CACHED_BYTES: Final = 8 * 2**20
"""Written data that waits for the disk at most. Beyond it, writers wait."""
_SIZE_GIB: Final = 2
_SECTOR_BYTES: Final = 512
_WRITTEN_SECTORS: Final = 6
"""Field of a disk's `stat` (Linux, Documentation/block/stat.rst), counted from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDisk:
    """A mounted disk. `device` is its block device and `number` its MAJOR:MINOR."""

    device: Path
    number: str
    folder: Path

    def limit(self, write_bytes_per_s: float) -> None:
        """Limit all writes together. 0 is no limit."""
        cached = (("strict_limit", 1), ("max_bytes", _CACHED_BYTES))
        for name, value in cached if write_bytes_per_s else (("strict_limit", 0), ("max_ratio", 100)):
            Path(f"/sys/class/bdi/{self.number}/{name}").write_text(str(value), encoding="ascii")
        _LIMIT.write_text(f"{self.number} {int(write_bytes_per_s)}", encoding="ascii")

    def bytes_per_s(self) -> float:
        """Return the limit, or 0."""
        limits = dict(line.split() for line in _LIMIT.read_text(encoding="ascii").splitlines())
        return float(limits.get(self.number, 0))

    def written(self) -> int:
        """Return the bytes that are on the disk, after what waits is there too."""
        run(["sync", "--file-system", str(self.folder)])
        fields = Path(f"/sys/block/{self.device.name}/stat").read_text(encoding="ascii").split()
        return int(fields[_WRITTEN_SECTORS]) * _SECTOR_BYTES

    def hold(self, daemon: DockerDaemon, machines: Path) -> None:
        """Put the daemon's data and the folder of the machines on this disk. The daemon loses its images."""
        daemon.stop()
        data = daemon.folder / "data"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        _done(*daemon.entering(), "mount", str(self.device), str(data))
        daemon.start()
        (self.folder / "machines").mkdir()
        machines.mkdir(exist_ok=True)
        _done("mount", "--bind", str(self.folder / "machines"), str(machines))
        _done(*daemon.entering(), "mount", "--bind", str(data / "machines"), str(machines))


@contextmanager
def shared_disk(home: RealHome, name: str) -> Generator[SharedDisk]:
    """Make the disk, and end it. Skips the test."""
    if not _LIMIT.exists():
        pytest.skip(f"no {_LIMIT}: only control groups of version 1 limit the writes of a disk for all")
    home.get(Need(what="a disk with a limited rate", where=str(home.folder), disk_gib=_SIZE_GIB, takes_s=1))
    file, folder = home.folder / f"{name}.disk", home.folder / "disks" / name
    file.unlink(missing_ok=True)
    with file.open("wb") as stream:
        stream.truncate(_SIZE_GIB * 2**30)
    folder.mkdir(parents=True, exist_ok=True)
    _done("mkfs.ext4", "-q", str(file))
    _done("mount", "-o", "loop", str(file), str(folder))
    device = Path(_done("findmnt", "--noheadings", "--output=SOURCE", str(folder)).strip())
    number = Path(f"/sys/block/{device.name}/dev").read_text(encoding="ascii").strip()
    disk = SharedDisk(device=device, number=number, folder=folder)
    try:
        yield disk
    finally:
        disk.limit(0)
        for mounted in run(["findmnt", "--noheadings", "--list", "--output=TARGET", str(device)]).stdout.split():
            run(["umount", "--lazy", mounted])
        file.unlink()


def _done(*command: str) -> str:
    done = run(command)
    if done.returncode:
        pytest.skip(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
