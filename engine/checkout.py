"""The checkout that a deployment is made from."""

import subprocess

from contracts.errors import CommandRefusedError
from engine import runner


def require_committed() -> str:
    """Return the commit that is checked out. Raises CommandRefusedError if a file is changed and not committed."""
    changed = git("status", "--porcelain", "--untracked-files=no")
    if changed:
        raise CommandRefusedError(
            f"{changed.splitlines()[0].split()[-1]} is changed and not committed; commit it: a roll-back deploys a commit."
        )
    return git("rev-parse", "HEAD")


def git(*arguments: str) -> str:
    """Return what a git command printed. Raises CommandRefusedError with git's last line."""
    done = subprocess.run(
        ["git", *arguments],
        cwd=runner.project_folder(),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CommandRefusedError(f"`git {' '.join(arguments[:2])}` failed: {last}")
    return done.stdout.strip()
