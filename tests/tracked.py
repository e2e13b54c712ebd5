"""The checkout's files as git knows them, so that a build, a cache or an environment in a folder is not read as a part of the project."""

import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@functools.cache
def _listed():
    """Return the tracked paths and the new ones that git does not ignore."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return tuple(path for path in (ROOT / name for name in sorted({*names}) if name) if path.is_file())


def tracked(*folders, suffix=".py"):
    """Return the files below some folders of the checkout, such as `scripts`, sorted; without a folder all of them."""
    above = [ROOT / folder for folder in folders] or [ROOT]
    return [path for path in _listed() if path.name.endswith(suffix) and any(path.is_relative_to(one) for one in above)]
