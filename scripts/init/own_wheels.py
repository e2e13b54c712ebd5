"""Wheels of the installed version, from which a folder installs."""

import shlex
import sys
import zipfile
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

from gemma_serving import VERSION
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.installation import CHECKOUT, DISTRIBUTIONS, own_sources
from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.contracts.plain_text import for_terminal
from gemma_serving.engine.children import ended
from gemma_serving.scripts.cli.command import print_progress


def own_wheels(folder: Path) -> Sequence[Path]:
    """Return the wheels of this version, in the order of DISTRIBUTIONS. Those of a commit or of a folder are built into `folder`.

    Raises CommandRefusedError if one is missing, cannot be built, or is no longer what is installed.
    """
    sources = own_sources()
    if sources[0].endswith(".whl"):
        return [Path(source) for source in sources]
    print_progress("init", f"building the wheels from {sources[0]} (about 40 s)")
    words = ("-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir")
    done = ended([sys.executable, *words, str(folder), *sources])
    wheels = [folder / f"{name}-{VERSION}-py3-none-any.whl" for name in DISTRIBUTIONS]
    if done.returncode:
        why = _reason(done.stderr)
        raise CommandRefusedError(f"The wheels cannot be built from {sources[0]}: {why.rstrip('.')}. {_next(why)}")
    if not CHECKOUT and not (wheels[0].is_file() and _is_installed(wheels[0])):
        raise CommandRefusedError(
            f"{sources[0]} has changed since it was installed. "
            f"Run `{shlex.quote(sys.executable)} -m pip install --force-reinstall --no-deps {shlex.quote(sources[0])}`, then the same command again."
        )
    return wheels


def _reason(said: str) -> str:
    """Return the first error of pip or git, which follows pip's own notes; without one, the last line."""
    lines = [line.strip() for line in for_terminal(said).splitlines() if line.strip()]
    return next((line for line in lines if line.startswith(("fatal: ", "ERROR: "))), lines[-1] if lines else "")


def _next(why: str) -> str:
    if "No module named pip" in why:
        return f"Run `{shlex.quote(sys.executable)} -m ensurepip`, then the same command again."
    return "Make it reachable, with the package index, and run the same command again."


def _is_installed(wheel: Path) -> bool:
    """Return whether the installed product has each file of a wheel, by the hashes in its RECORD (PEP 376)."""
    with zipfile.ZipFile(wheel) as archive:
        record = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        built = archive.read(record).decode().splitlines()
    installed = {*(distribution(PRODUCT).read_text("RECORD") or "").splitlines()}
    return all(line in installed for line in built if line.startswith("gemma_serving/"))
