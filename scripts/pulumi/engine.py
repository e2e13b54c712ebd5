"""Runs the Pulumi CLI, which it finds by itself: the one linked by `make setup`, else the one on PATH."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.errors import ScriptError

QUERY_LIMIT_S = 120.0
"""Longest time for commands that only read."""

_MAX_WORDS = 600


def project_folder() -> Path:
    """Return the folder with Pulumi.yaml: the present one, else the checkout that this file lies in. Raises ScriptError where there is none."""
    for folder in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (folder / "Pulumi.yaml").is_file():
            return folder
    raise ScriptError("There is no Pulumi.yaml here; run this from the project's folder.")


def pulumi() -> str:
    """Return the path of the Pulumi CLI. Raises ScriptError where there is none."""
    linked = Path(sys.executable).with_name("pulumi")
    found = str(linked) if linked.is_file() else shutil.which("pulumi")
    if found is None:
        raise ScriptError("There is no Pulumi engine yet; run `make setup`.")
    return found


def environment() -> Mapping[str, str]:
    """Return the environment in which scripts run the engine: the user's own, without the look for newer versions."""
    return {**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "true"}


def query(arguments: Sequence[str]) -> str:
    """Run a Pulumi command that only reads and return what it printed on stdout.

    Raises ScriptError with the engine's own first error, also when it takes longer than `QUERY_LIMIT_S`.
    """
    try:
        answer = subprocess.run(
            [pulumi(), *arguments, "--non-interactive"],
            cwd=project_folder(),
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=QUERY_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise ScriptError(f"`pulumi {' '.join(arguments)}` did not answer within {QUERY_LIMIT_S:.0f} s.") from None
    if answer.returncode != 0:
        raise ScriptError(f"`pulumi {arguments[0]}` failed: {first_error(answer.stderr or answer.stdout)}")
    return answer.stdout


def first_error(text: str) -> str:
    """Return the engine's first error in one line, without colours and its `error:` in front."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    chosen = (errors or lines or ["no message"])[0].removeprefix("error:").strip()
    return chosen[:_MAX_WORDS]
