"""A disk of a run's own whose writes share one rate: a file as a block device, and a control group that limits the run's processes on it."""

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from authors.real.daemon import DockerDaemon
from authors.real.home import Need, RealHome, run
from authors.real.rows import NotJudgedError

_GROUPS: Final = Path("/sys/fs/cgroup/blkio")
_LIMIT: Final = "blkio.throttle.write_bps_device"
_SIZE_GIB: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDisk:
    """A mounted disk. `device` is its block device, `number` its MAJOR:MINOR, and `group` the control group of the run."""

    device: Path
    number: str
    folder: Path
    group: Path

    def limit(self, write_bytes_per_s: float) -> None:
        """Limit all writes together, each of which then waits for the disk. 0: no limit, and writes wait in the page cache."""
        _done("mount", "-o", f"remount,{'sync' if write_bytes_per_s else 'async'}", str(self.folder))
        (self.group / _LIMIT).write_text(f"{self.number} {int(write_bytes_per_s)}", encoding="ascii")

    def bytes_per_s(self) -> float:
        """Return the limit, or 0."""
        limits = dict(line.split() for line in (self.group / _LIMIT).read_text(encoding="ascii").splitlines())
        return float(limits.get(self.number, 0))

    def written(self) -> int:
        """Return the bytes that the run's processes have written while writes waited for the disk."""
        lines = (self.group / "blkio.throttle.io_service_bytes").read_text(encoding="ascii").splitlines()
        return sum(int(line.split()[2]) for line in lines if line.startswith(f"{self.number} Write"))

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
    """Make the disk, and end it. Processes that this one starts in the block are limited on it. Raises NotJudgedError."""
    if not (_GROUPS / "cgroup.procs").exists():
        raise NotJudgedError(f"no control groups of version 1 in {_GROUPS}, which limit the writes of a disk")
    home.get(Need(what="a disk with a limited rate", where=str(home.folder), disk_gib=_SIZE_GIB, takes_s=1))
    file, folder, group = home.folder / f"{name}.disk", home.folder / "disks" / name, _GROUPS / f"judge-{name}"
    file.unlink(missing_ok=True)
    with file.open("wb") as stream:
        stream.truncate(_SIZE_GIB * 2**30)
    device = Path("/dev/none")
    folder.mkdir(parents=True, exist_ok=True)
    group.mkdir(exist_ok=True)
    try:
        _done("mkfs.ext4", "-q", str(file))
        _done("mount", "-o", "loop", str(file), str(folder))
        device = Path(_done("findmnt", "--noheadings", "--output=SOURCE", str(folder)).strip())
        number = Path(f"/sys/block/{device.name}/dev").read_text(encoding="ascii").strip()
        (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        yield SharedDisk(device=device, number=number, folder=folder, group=group)
    finally:
        (_GROUPS / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        for mounted in run(["findmnt", "--noheadings", "--list", "--output=TARGET", str(device)]).stdout.split():
            run(["umount", "--lazy", mounted])
        run(["rmdir", str(group)])
        file.unlink()


def _done(*command: str) -> str:
    done = run(command)
    if done.returncode:
        raise NotJudgedError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
