"""The part "mount": the real gcsfuse mounts buckets of the local cloud with the options of every Cloud Run stack and loading mode."""

import errno
import json
import os
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from judges.real.gcsfuse_program import VERSION, Gcsfuse, MountFailedError, ensure, require_fuse
from judges.real.home import Need, RealHome, debian_packages
from judges.real.mount_failures import judge_failures
from judges.real.mount_reads import judge_reads
from judges.real.mount_stacks import option_sets, options_of, settings_of, stacks
from judges.real.mount_world import BUCKET, FOLDER, MountWorld, gcsfuse_of, sha256
from judges.real.project import ProjectInCloud, project_in_cloud
from judges.real.rows import DifferenceError, JudgeReport, NotJudgedError, Row, require
from judges.real.vllm_life import installed
from planning.question.recommendation import FUSE_MODES

_SPEED: Final = 200.0
_CACHE: Final = "cache-dir=cr-volume:"
_OWNER: Final = (2000, 2001)
"""uid and gid of an image that does not run as root."""


def judge_mount(home: RealHome) -> Sequence[Row]:
    """Judge the mount options, the reads and the failures. Raises NotJudgedError."""
    require_fuse()
    fuse = Need(what="fusermount3", where="/usr/bin", disk_gib=0.01, takes_s=10)
    debian_packages(home, fuse, ["fuse3"])
    installed(home)
    program = ensure(home)
    report = JudgeReport("gcsfuse", VERSION)
    with project_in_cloud(home, name="mount", speed=_SPEED) as project:
        world = MountWorld(home=home, project=project, gcsfuse=gcsfuse_of(program, home, project))
        world.stage()
        _judge_previews(report, project)
        for (mode, options), named in option_sets().items():
            _judge_mount(report, world, mode, options, named)
        _judge_owner(report, world)
        judge_failures(report, world)
        judge_reads(report, world)
    return report.rows


def _judge_previews(report: JudgeReport, project: ProjectInCloud) -> None:
    """Compare the options that are judged with those of the services that the engine would create."""
    with report.judging(
        "the previewed service of each stack has the mount options that are judged, read-only"
    ) as notes:
        for stack in stacks():
            project.pulumi("stack", "init", stack)
            run, settings = settings_of(stack)
            volumes = _volumes(project, stack)
            declared = [tuple(gcs.get("mountOptions") or ()) for gcs in volumes]
            is_mounted = settings.weights == "bucket" and run.mount.mode in FUSE_MODES
            expected = [options_of(stack)] if is_mounted else []
            require(declared == expected, f"{stack} previews {declared}, and {expected} is judged")
            require(all(gcs.get("readOnly") for gcs in volumes), f"a volume of {stack} is writable")
            notes.append(f"{stack}: {run.mount.mode if is_mounted else 'no mount'}")


def _volumes(project: ProjectInCloud, stack: str) -> Sequence[Mapping[str, Any]]:
    """Return the Cloud Storage volumes of a stack's service, as the engine previews it."""
    text = project.pulumi("preview", "--json", "--stack", stack)
    preview: Mapping[str, Any] = json.JSONDecoder().raw_decode(text[text.index("{") :])[0]
    states = [cast("Mapping[str, Any]", step.get("newState") or {}) for step in preview["steps"]]
    (service,) = [state["inputs"] for state in states if "cloudrunv2/service:" in str(state.get("type"))]
    return [volume["gcs"] for volume in service["template"].get("volumes") or () if "gcs" in volume]


def _judge_mount(
    report: JudgeReport, world: MountWorld, mode: str, options: Sequence[str], names: Sequence[str]
) -> None:
    """Gcsfuse accepts the options, mounts read-only, and gives the checkpoint's bytes to other programs and to vLLM's loader."""
    named = f"mode {mode} of {'every stack' if len(names) == len([*stacks()]) else ', '.join(names)}"
    with report.judging(f"{named}: accepted, mounted, owner, read-only, bytes") as notes:
        with mounted_as_cloud_run(world.gcsfuse, options, notes) as folder:
            _require_content(world, folder)
            _require_owner(folder, _number(options, "uid"), _number(options, "gid"))
            _require_read_only(folder)
        notes.append(f"{len(world.checkpoint)} files")
    with report.judging(f"{named}: read by vLLM's loader") as notes:
        wanted = world.loaded_from_disk
        with mounted_as_cloud_run(world.gcsfuse, options, []) as folder:
            found = world.loaded("safetensors", [str(folder / FOLDER / "model.safetensors")])
        same = found["sha256"] == wanted["sha256"]
        require(same, f"{found['tensors']} tensors with other values than the {wanted['tensors']} of the checkpoint")
        notes.append(f"{found['tensors']} tensors")


@contextmanager
def mounted_as_cloud_run(gcsfuse: Gcsfuse, options: Sequence[str], notes: list[str]) -> Generator[Path]:
    """Mount the bucket with options of a stack. Raises DifferenceError if gcsfuse rejects them."""
    cache = gcsfuse.log.with_name("file-cache")
    mapped = [f"cache-dir={cache}" if option.startswith(_CACHE) else option for option in options]
    if mapped != [*options]:
        notes.append("cr-volume: is Cloud Run's name of a volume, here a folder")
    try:
        with gcsfuse.mounted(BUCKET, mapped) as folder:
            yield folder
    except MountFailedError as error:
        raise DifferenceError(f"gcsfuse ended with {error.code}: {error}") from None


def _judge_owner(report: JudgeReport, world: MountWorld) -> None:
    """Judge the settings for an image that does not run as root."""
    uid, gid = _OWNER
    stack = next(stacks())
    with report.judging(f"mount.uid and mount.gid of {stack}: the image's user owns and reads the files") as notes:
        if os.geteuid() != 0:
            raise NotJudgedError("only root can mount for another user")
        with mounted_as_cloud_run(world.gcsfuse, options_of(stack, uid=uid, gid=gid), []) as folder:
            _require_owner(folder, uid, gid)
            _require_content(world, folder, user=uid, group=gid)
        notes.append(f"uid {uid}, gid {gid}")
    report.not_judged(
        "a user other than the owner cannot read the files",
        "gcsfuse gives them mode 0644, which every user may read; whether Cloud Run lets other users in is its own",
    )


def _require_content(world: MountWorld, folder: Path, *, user: int | None = None, group: int | None = None) -> None:
    """Raise DifferenceError unless a program that runs as the user reads the checkpoint's bytes."""
    names = sorted(path.name for path in (folder / FOLDER).iterdir())
    require(names == sorted(world.checkpoint), f"the mount lists {names}")
    for name, path in world.checkpoint.items():
        read = subprocess.run(
            ["cat", str(folder / FOLDER / name)],
            capture_output=True,
            check=False,
            user=user,
            group=group,
            extra_groups=None if user is None else (),
        )
        require(read.returncode == 0, f"{name} cannot be read: {read.stderr.decode().strip()}")
        require(sha256(read.stdout) == sha256(path.read_bytes()), f"{name} has another sha256 than the staged file")


def _require_owner(folder: Path, uid: int, gid: int) -> None:
    for path in (folder, folder / FOLDER, folder / FOLDER / "config.json"):
        found = path.stat()
        require((found.st_uid, found.st_gid) == (uid, gid), f"{path.name} belongs to {found.st_uid}:{found.st_gid}")


def _require_read_only(folder: Path) -> None:
    """Raise DifferenceError unless each write is rejected as one to a read-only file system."""
    for path in (folder / "new", folder / FOLDER / "config.json"):
        try:
            path.write_bytes(b"")
        except OSError as error:
            require(error.errno == errno.EROFS, f"a write fails with {error.strerror}, not as read-only")
        else:
            raise DifferenceError(f"{path.name} can be written")


def _number(options: Sequence[str], name: str) -> int:
    return next(int(option.partition("=")[2]) for option in options if option.startswith(f"{name}="))
