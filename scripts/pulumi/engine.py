"""Run the Pulumi CLI: the one that `make setup` linked, else the one on PATH."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.errors import CommandRefusedError, ScriptError

QUERY_LIMIT_S = 120.0
"""Time limit of a command that only reads."""

_MAX_WORDS = 600


def project_folder() -> Path:
    """Return the folder with Pulumi.yaml: the current folder, else this checkout. Raises CommandRefusedError if neither has one."""
    for folder in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (folder / "Pulumi.yaml").is_file():
            return folder
    raise CommandRefusedError("There is no Pulumi.yaml here; run this command in the project's folder.")


def pulumi() -> str:
    """Return the path of the Pulumi CLI. Raises CommandRefusedError if there is none."""
    linked = Path(sys.executable).with_name("pulumi")
    found = str(linked) if linked.is_file() else shutil.which("pulumi")
    if found is None:
        raise CommandRefusedError("The Pulumi CLI is not installed; run `make setup`.")
    return found


def environment() -> Mapping[str, str]:
    """Return the engine's environment: the user's own, without the check for newer versions."""
    return {**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "true"}


def run(
    *arguments: str, capture: bool = True, limit_s: float | None = QUERY_LIMIT_S
) -> "subprocess.CompletedProcess[str]":
    """Run a Pulumi command and wait for its end, also after Ctrl-C: the engine gets the same signal and writes its state first.

    `capture` keeps its output; otherwise all of it goes to stderr. Raises ScriptError after `limit_s` seconds.
    """
    process = subprocess.Popen(
        [pulumi(), *arguments, "--non-interactive"],
        cwd=project_folder(),
        env=environment(),
        stdout=subprocess.PIPE if capture else sys.stderr,
        stderr=subprocess.PIPE if capture else None,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except KeyboardInterrupt:
        process.communicate()
        raise
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise ScriptError(f"`pulumi {' '.join(arguments)}` did not end within {limit_s:.0f} s.") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out or "", err or "")


def change(stack: str, *arguments: str, after_failure: str) -> None:
    """Run a Pulumi command that changes a stack, without a time limit and with its progress on stderr.

    Raises ScriptError if it fails; `after_failure` says what that means.
    """
    command = (*arguments, "--yes", "--skip-preview", "--stack", stack)
    code = run(*command, capture=False, limit_s=None).returncode
    if code != 0:
        raise ScriptError(
            f"`pulumi {arguments[0]} --stack {stack}` ended with exit code {code}, see above. {after_failure}"
        )


def query(arguments: Sequence[str]) -> str:
    """Return what a Pulumi command that only reads printed on stdout.

    Raises CommandRefusedError if the stack does not exist, and ScriptError with the engine's first error.
    """
    answer = run(*arguments)
    if answer.returncode == 0:
        return answer.stdout
    error = first_error(answer.stderr or answer.stdout)
    missing = re.match(r"no stack named '([^']*)' found", error)
    if missing:
        stack = missing[1].rpartition("/")[2]
        raise CommandRefusedError(
            f"Stack {stack} does not exist; run `pulumi stack init {stack}`, or name another with --stack."
        )
    raise ScriptError(f"`pulumi {arguments[0]}` failed: {error}")


def first_error(text: str) -> str:
    """Return the engine's first error as one line, without colours and without `error:`."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    chosen = (errors or lines or ["no message"])[0].removeprefix("error:").strip()
    return chosen[:_MAX_WORDS]
