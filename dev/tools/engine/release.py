"""Install the official release with the SDK's own installer, if the vendor's site is reachable."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from dev.tools.engine.model import VERSION, EngineError

_SITE = "https://get.pulumi.com/"
_REACH_S = 4.0
"""Maximum wait for the vendor's site before trying the next source."""
_INSTALL_LIMIT_S = 600.0

_INSTALL = (
    "import sys; from semver import VersionInfo; from pulumi.automation import PulumiCommand; "
    "PulumiCommand.install(root=sys.argv[1], version=VersionInfo.parse(sys.argv[2]))"
)


def responds() -> bool:
    """Return whether the vendor's site responds."""
    try:
        urlopen(Request(_SITE, method="HEAD"), timeout=_REACH_S).close()
    except HTTPError:
        return True
    except OSError:
        return False
    return True


def install(into: Path) -> None:
    """Install the official distribution into `into`, with `pulumi` and its language hosts.

    The folder is created atomically. Raises EngineError if the site does not respond within seconds, or with the installer's last line.
    """
    if not responds():
        raise EngineError(f"Cannot fetch the official release: {_SITE} did not respond within {_REACH_S:.0f} s.")
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent, prefix="installing-") as folder:
        try:
            answer = subprocess.run(
                [sys.executable, "-c", _INSTALL, folder, VERSION],
                capture_output=True,
                text=True,
                timeout=_INSTALL_LIMIT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            raise EngineError(
                f"Installing the official release took longer than {_INSTALL_LIMIT_S:.0f} s and was stopped."
            ) from error
        binaries = Path(folder) / "bin"
        if answer.returncode != 0 or not (binaries / "pulumi").is_file():
            last = (answer.stderr.strip().splitlines() or ["no output"])[-1]
            raise EngineError(f"Installing the official release {VERSION} failed: {last}")
        shutil.move(binaries, into)
