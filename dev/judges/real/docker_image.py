"""An image of a small Debian in place of vLLM's: its programs run the interpreter, the packages and the server that a machine's docker mounts."""

import shutil
import tarfile
from pathlib import Path
from typing import Final

import pytest

from dev.judges.real.daemon import DockerDaemon
from dev.judges.real.home import Need, RealHome, debian_packages, run
from dev.judges.real_vllm.environment import last_line

SUITE: Final = "bookworm"
INCLUDED: Final = (
    "ca-certificates",
    "libbz2-1.0",
    "libffi8",
    "libgomp1",
    "liblzma5",
    "libnuma1",
    "libsqlite3-0",
    "libssl3",
    "libstdc++6",
    "zlib1g",
)
"""Libraries of the mounted interpreter and of vLLM for processors, which dies without libnuma1."""
PYTHON = "REAL_PYTHON"
PACKAGES = "REAL_PYTHONPATH"
REAL_SERVER = "REAL_VLLM"
"""Variables of a container: the interpreter, the folder of the local cloud's packages, and the program in place of a simulated server."""
_SIMULATED: Final = f'#!/bin/sh\nPYTHONPATH="${PACKAGES}" exec "${PYTHON}" -P -m '
PROGRAMS: Final = {
    "usr/local/bin/vllm": f'#!/bin/sh\ntest -z "${REAL_SERVER}" || exec "${PYTHON}" "${REAL_SERVER}" "$@"\n'
    + _SIMULATED.removeprefix("#!/bin/sh\n")
    + 'localcloud.vllm vllm "$@"\n',
    "usr/local/bin/hf": f'{_SIMULATED}localcloud.vllm hf "$@"\n',
    "otelcol-google": '#!/bin/sh\ntest -z "$COLLECTOR_PROBLEM" || exit 1\n'
    "trap 'exit 0' TERM\nwhile :; do sleep 1 & wait; done\n",
}
"""Programs of the images. The collector does not run as root, so it cannot read the interpreter. COLLECTOR_PROBLEM makes it stop."""
SERVER_ENTRY_POINT, COLLECTOR_ENTRY_POINT = '["vllm", "serve"]', '["/otelcol-google"]'
_PATH: Final = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LIMIT_S: Final = 1200.0


def base_archive(home: RealHome) -> Path:
    """Return the archive of the image's files, which is made once per folder. Skips the test."""
    archive = home.folder / f"base-{SUITE}.tar"
    if archive.exists():
        return archive
    packages = Need(what="debootstrap (Debian package)", where="the system", disk_gib=0.1, takes_s=10)
    debian_packages(home, packages, ("debootstrap", "debian-archive-keyring"))
    home.get(Need(what=f"a small Debian {SUITE} as the image's base", where=str(archive), disk_gib=0.6, takes_s=80))
    root = home.folder / "base"
    shutil.rmtree(root, ignore_errors=True)
    made = run(
        ["debootstrap", "--variant=minbase", f"--include={','.join(INCLUDED)}", SUITE, str(root)], limit_s=_LIMIT_S
    )
    if made.returncode:
        pytest.skip(f"debootstrap {SUITE}: {last_line(made.stdout or made.stderr)}")
    for folder in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale"):
        shutil.rmtree(root / folder, ignore_errors=True)
    for name, text in PROGRAMS.items():
        (root / name).write_text(text, encoding="utf-8")
        (root / name).chmod(0o755)
    part = archive.with_suffix(".part")
    with tarfile.open(part, "w") as tar:
        tar.add(root, arcname=".")
    part.replace(archive)
    shutil.rmtree(root)
    return archive


def empty_archive(folder: Path) -> Path:
    """Return the archive of an image without any file, so without a server."""
    archive = folder / "empty.tar"
    tarfile.open(archive, "w").close()
    return archive


def pushed(daemon: DockerDaemon, archive: Path, reference: str, entry_point: str) -> str:
    """Push an image and return its digest. It does not stay on the daemon. Skips the test."""
    named = f"{reference}:judge"
    _docker(daemon, "import", "--change", _PATH, "--change", f"ENTRYPOINT {entry_point}", str(archive), named)
    _docker(daemon, "push", named)
    found = _docker(daemon, "inspect", '--format={{join .RepoDigests " "}}', named).split()
    _docker(daemon, "rmi", "--force", named)
    return next(one for one in found if one.startswith(f"{reference}@")).partition("@")[2]


def _docker(daemon: DockerDaemon, *words: str) -> str:
    done = daemon.docker(*words, limit_s=_LIMIT_S)
    if done.returncode:
        pytest.skip(f"docker {words[0]}: {done.stderr.strip()[-300:]}")
    return done.stdout
