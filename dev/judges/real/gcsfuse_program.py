"""The real gcsfuse: built once from its Go modules, mounted on a bucket, and unmounted."""

import os
import re
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from dev.judges.real.home import Need, RealHome, digest_of, go_compiler, run, wait_until
from dev.judges.real.service import Service
from dev.judges.real_vllm.server import HOST
from localcloud.go_build import GoBuildError, GoProgram, cache_folder, compile_program, locked, new_folder

VERSION: Final = "3.11.3"
MODULE: Final = "github.com/googlecloudplatform/gcsfuse/v3"
_SOURCES: Final = Path(__file__).with_name("gcsfuse")
_PROGRAM: Final = GoProgram(
    label="gcsfuse",
    name="gcsfuse",
    package=MODULE,
    packages=841,  # Go 1.26
    linker_flags=f"-s -w -X {MODULE}/common.gcsfuseVersion={VERSION}",
)
_NAME: Final = "gcsfuse"
_MOUNT_LIMIT_S: Final = 60.0
_END_LIMIT_S: Final = 15.0
_NO_LAYOUT: Final = "enable-hns=false"
"""gcsfuse asks for the bucket's layout by gRPC, which the local cloud does not have. Without this option it asks for two minutes, then fails."""


class MountFailedError(Exception):
    """gcsfuse ended instead of mounting. The message is its own, after `Error: `."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.code = code


def ensure(home: RealHome) -> Path:
    """Return the program, after building it if necessary. Skips the test without Go or if the build fails."""
    root = cache_folder("gcsfuse")
    program = root / digest_of(_SOURCES) / _NAME
    if program.is_file():
        return program
    go = go_compiler("build gcsfuse")
    home.get(Need(what=f"gcsfuse {VERSION} and its Go modules", where=str(root), disk_gib=1.0, takes_s=120))
    with locked(root):
        if not program.is_file():
            try:
                with new_folder(program.parent, _SOURCES) as folder:
                    compile_program(go, _PROGRAM, folder.module, folder.result / _NAME, modules=folder.modules)
            except GoBuildError as error:
                pytest.skip(str(error))
    return program


def require_fuse() -> None:
    """Skip the test unless this machine and user can mount with FUSE."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no access to /dev/fuse")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEndpoint:
    """Where gcsfuse finds Cloud Storage, and as whom. Without credentials it sends no token: a proxy does."""

    url: str
    credentials: Path | None

    @property
    def options(self) -> Sequence[str]:
        """Flags of gcsfuse."""
        return ("anonymous-access",) if self.credentials is None else ()

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment of gcsfuse. Nothing goes through a proxy of this machine."""
        found = {"NO_PROXY": HOST, "no_proxy": HOST}
        return found if self.credentials is None else {**found, "GOOGLE_APPLICATION_CREDENTIALS": str(self.credentials)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gcsfuse:
    """The program, and the cloud that it mounts from."""

    program: Path
    endpoint: StoreEndpoint
    log: Path
    """Output of the last mount."""

    @contextmanager
    def mounted(self, bucket: str, options: Sequence[str], *, layout: bool = False) -> Generator[Path]:
        """Mount a bucket read-only with options as Cloud Run passes them, and unmount it after the block. Raises MountFailedError.

        Cloud Run API, GCSVolumeSource.mountOptions: "A list of additional flags to pass to the gcsfuse CLI. Options should be specified without
        the leading "--"." `readOnly` is `-o ro`. With `layout` gcsfuse asks for the bucket's layout first, as it does by default.
        """
        own = [f"custom-endpoint={self.endpoint.url}", *(() if layout else (_NO_LAYOUT,)), *self.endpoint.options]
        words = [f"--{option}" for option in (*own, *options)]
        self.log.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="mount-") as base:
            folder = Path(base) / "models"
            folder.mkdir()
            Path(base).chmod(0o755)
            command = [str(self.program), "--foreground", *words, "-o", _system_options(), bucket, str(folder)]
            service = Service(command, self.log, self.endpoint.variables)
            try:
                service.start(lambda: True)
                wait_until(lambda: folder.is_mount() or not service.runs, f"a mount of {bucket}", _MOUNT_LIMIT_S)
                if not folder.is_mount():
                    output = self.log.read_text(encoding="utf-8", errors="replace")
                    raise MountFailedError(message_of(output), service.exit_code)
                yield folder
            finally:
                _unmount(folder, service)

    def through(self, endpoint: StoreEndpoint) -> "Gcsfuse":
        """Return the same program with another way to the cloud."""
        return replace(self, endpoint=endpoint)


def rejection(program: Path, options: Sequence[str]) -> str:
    """Return gcsfuse's error for options, without a mount; empty if it accepts them."""
    done = run([str(program), *(f"--{option}" for option in options), "--help"])
    return "" if done.returncode == 0 else message_of(done.stderr)


def _system_options() -> str:
    """Return the options of the mount. Only root may let other users in, as Cloud Run does for a container that is not root."""
    return "ro,allow_other" if os.geteuid() == 0 else "ro"


def _unmount(folder: Path, service: Service) -> None:
    """Unmount, which ends the program, and kill it if it does not end."""
    try:
        if folder.is_mount():
            run(["fusermount3", "-u", "-z", str(folder)])
        with suppress(AssertionError):
            wait_until(lambda: not service.runs, "the end of gcsfuse", _END_LIMIT_S)
    finally:
        service.kill()


def flags_in_help(program: Path) -> frozenset[str]:
    """Return the names of the flags that gcsfuse's help lists."""
    return frozenset(re.findall(r"^ +(?:-\w, )?--([\w-]+)", run([str(program), "--help"]).stdout, re.MULTILINE))


def message_of(output: str) -> str:
    """Return the reason in gcsfuse's output, without the entries of its log."""
    found = re.search(r"^Error: (.+?)(?=^\{|\Z)", output, re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()) if found else "no error message"
