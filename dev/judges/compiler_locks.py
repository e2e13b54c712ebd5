"""`python -m dev.judges.compiler_locks`: resolve the wheels of `dev.judges.tpu_compiler.wheels` again, and write their locks.

A lock has one hash for each package: the wheel for CPython 3.12 on x86-64 with glibc 2.31, the oldest that libtpu runs on. Packages that the judge
does not need are left out (`LEFT_OUT`), so the lock is installed without resolving it again.
"""

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import unquote

from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from dev.judges.tpu_compiler.environment import find_uv
from dev.judges.tpu_compiler.wheels import LEFT_OUT, WHEELS, Wheels

_PYTHON: Final = (3, 12)
_PLATFORM: Final = "x86_64-manylinux_2_31"
_PLATFORMS: Final = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(31, 4, -1)),
    *("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"),
)
_TAGS: Final = {
    tag: rank
    for rank, tag in enumerate(
        (
            *cpython_tags(_PYTHON, platforms=_PLATFORMS),
            *compatible_tags(_PYTHON, interpreter="cp312", platforms=_PLATFORMS),
        )
    )
}


def resolved(wheels: Wheels) -> Sequence[Mapping[str, Any]]:
    """Return the packages of a row, as uv writes them (PEP 751)."""
    with tempfile.TemporaryDirectory() as folder:
        override = Path(folder) / "override.txt"
        override.write_text(f"tpu-inference=={wheels.tpu_inference}\n", encoding="utf-8")
        done = subprocess.run(
            [
                *(find_uv(), "pip", "compile", "--quiet", "--no-header", "--format", "pylock.toml", "-"),
                *("--python-version", ".".join(map(str, _PYTHON)), "--python-platform", _PLATFORM),
                *(
                    "--only-binary",
                    ":all:",
                    "--exclude-newer",
                    f"{wheels.until}T23:59:59Z",
                    "--override",
                    str(override),
                ),
            ],
            input=f"vllm-tpu=={wheels.vllm_tpu}\n",
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return tomllib.loads(done.stdout)["packages"]


def best_wheel(files: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the wheel with the best tag."""
    return min(files, key=lambda file: min(_TAGS.get(tag, len(_TAGS)) for tag in _tags(file)))


def lock_text(packages: Iterable[tuple[str, str, str]]) -> str:
    """Return the lock of (name, version, SHA-256) rows."""
    return "".join(f"{name}=={version} \\\n    --hash=sha256:{digest}\n" for name, version, digest in sorted(packages))


def main() -> int:
    """Write every lock, and print the size of its wheels."""
    for wheels in WHEELS:
        kept = [
            (package["name"], package["version"], best_wheel(package["wheels"]))
            for package in resolved(wheels)
            if package["name"] not in LEFT_OUT
        ]
        text = lock_text((name, version, file["hashes"]["sha256"]) for name, version, file in kept)
        wheels.lock.write_text(text, encoding="utf-8")
        size_gb = sum(file["size"] for _, _, file in kept) / 1e9
        print(f"{wheels.name}: {len(kept)} packages, download_gb={size_gb:.2f}")
    return 0


def _tags(file: Mapping[str, Any]) -> Iterable[Any]:
    return parse_wheel_filename(unquote(PurePosixPath(file["url"]).name))[3]


if __name__ == "__main__":
    sys.exit(main())
