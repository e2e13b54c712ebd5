"""Failures of the real gcsfuse, compared with those of the simulated mount."""

import errno
import os
import re
from pathlib import Path
from typing import Final

from judges.real.gcsfuse_program import Gcsfuse, MountFailedError, StoreEndpoint, flags_in_help, rejection
from judges.real.mount_layout import layouts
from judges.real.mount_world import BUCKET, FOLDER, MountWorld
from judges.real.rows import DifferenceError, JudgeReport, require
from judges.real.throttled_store import store
from localcloud.json_values import packaged, strings
from localcloud.services import run_mount_options
from localcloud.world import run_messages

_IMPLICIT: Final = ("implicit-dirs", "metadata-cache-ttl-secs=3600")
_REJECTED: Final = (
    "no-such-option=1",
    "uid=root",
    "implicit-dirs=maybe",
    "max-conns-per-host=many",
    "file-cache-enable-parallel-downloads=true",
)
_OF_VALUE: Final = {"bool": "true", "int": "1"}
_OF_COMMANDS: Final = frozenset({"help", "version"})
_LARGE_BYTES: Final = 48 * 2**20
_FAR: Final = 40 * 2**20


def judge_failures(report: JudgeReport, world: MountWorld) -> None:
    """Judge each failure that a mount can have."""
    _judge_flags(report, world)
    _judge_rejections(report, world)
    _judge_layout(report, world, "no-such-bucket-here", "a bucket that does not exist")
    _judge_layout(report, world, BUCKET, "an account that cannot list the bucket")
    _judge_unreadable(report, world)
    _judge_overwritten(report, world)


def _judge_flags(report: JudgeReport, world: MountWorld) -> None:
    with report.judging("the local cloud knows the flags of gcsfuse and no others") as notes:
        listed = packaged("localcloud.services", "gcsfuse_flags.json")
        kinds = {name: kind for kind in ("bool", "int") for name in strings(listed, kind)}
        missing = flags_in_help(world.gcsfuse.program) - {*kinds, *strings(listed, "other")} - _OF_COMMANDS
        require(not missing, f"it lacks {', '.join(sorted(missing))}")
        refused = rejection(world.gcsfuse.program, [f"{name}={_OF_VALUE[kind]}" for name, kind in kinds.items()])
        require(not refused, f"gcsfuse rejects one: {refused}")
        for name in strings(listed, "other"):
            refused = rejection(world.gcsfuse.program, [f"{name}="])
            require(not refused.startswith("unknown flag"), f"gcsfuse rejects one: {refused}")
        notes.append(f"{len(kinds) + len(strings(listed, 'other'))} flags")


def _judge_rejections(report: JudgeReport, world: MountWorld) -> None:
    with report.judging("a wrong option: exit code 1, and the simulated mount has the same words") as notes:
        for option in _REJECTED:
            error = _refused(world.gcsfuse, BUCKET, option)
            simulated = run_mount_options.rejection([*_IMPLICIT, option])
            require(
                str(error) == simulated, f"{option}: gcsfuse says {error}, the simulated mount {simulated or 'nothing'}"
            )
            require(error.code == 1, f"{option}: exit code {error.code}")
        notes.append(", ".join(_REJECTED))


def _refused(gcsfuse: Gcsfuse, bucket: str, option: str = "", *, layout: bool = False) -> MountFailedError:
    """Return the error of a mount that must fail."""
    try:
        with gcsfuse.mounted(bucket, [*_IMPLICIT, *filter(None, [option])], layout=layout):
            raise DifferenceError("gcsfuse mounted")
    except MountFailedError as error:
        return error


def _judge_layout(report: JudgeReport, world: MountWorld, bucket: str, what: str) -> None:
    """Judge the first call of a mount, which is by gRPC, and whose error ends the mount."""
    with report.judging(f"{what}: no mount, and the simulated log has the same error") as notes:
        email = f"{bucket}@{BUCKET}"
        simulated = run_messages.no_such_bucket() if bucket != BUCKET else run_messages.bucket_denied(email, bucket)
        token = world.account("unlisted", "") if bucket == BUCKET else world.operator
        with layouts(world.cloud, bucket, token) as url:
            error = _refused(world.gcsfuse.through(StoreEndpoint(url=url, credentials=None)), bucket, layout=True)
        for words in (_code(simulated), "create file system: SetUpBucket: ", "storageLayout call failed: "):
            require(words in str(error) and words in simulated, f"gcsfuse says {error}, the simulated log {simulated}")
        notes.append(_code(simulated))


def _code(message: str) -> str:
    found = re.search(r"code = \w+", message)
    return found[0] if found else message


def _judge_unreadable(report: JudgeReport, world: MountWorld) -> None:
    with report.judging("an account without storage.objects.get: mounted, each read is denied") as notes:
        token = world.account("unreading", "roles/storage.legacyBucketReader")
        with store(world.cloud, token=token) as proxy:
            gcsfuse = world.gcsfuse.through(StoreEndpoint(url=proxy.json_api, credentials=None))
            with gcsfuse.mounted(BUCKET, _IMPLICIT) as folder:
                _require_error(folder / FOLDER / "config.json", errno.EACCES)
        notes.append("as the simulated server: Permission denied")


def _judge_overwritten(report: JudgeReport, world: MountWorld) -> None:
    with report.judging("an object that is overwritten while it is open: stale file handle") as notes:
        world.put("changed/weights", os.urandom(_LARGE_BYTES))
        with world.gcsfuse.mounted(BUCKET, _IMPLICIT) as folder:
            path = folder / "changed/weights"
            with path.open("rb", buffering=0) as opened:
                opened.read(16)
                world.put("changed/weights", os.urandom(_LARGE_BYTES))
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                opened.seek(_FAR)
                try:
                    opened.read(2**20)
                except OSError as error:
                    require(error.errno == errno.ESTALE, f"the read fails with {error.strerror}")
                else:
                    raise DifferenceError("the read gives bytes, although the generation that was opened is gone")
        notes.append("ESTALE")


def _require_error(path: Path, number: int) -> None:
    """Raise DifferenceError unless reading the file fails with this error."""
    try:
        path.read_bytes()
    except OSError as error:
        require(error.errno == number, f"the read fails with {error.strerror}, not {os.strerror(number)}")
    else:
        raise DifferenceError("the file can be read")
