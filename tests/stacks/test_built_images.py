"""The folders that build an image: what they install is pinned by hash, and what the base lacks stops the build. Docker is not needed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gemma_serving.planning.data.images import built_images
from gemma_serving.planning.data.overheads import IMAGE_ON_DISK_GIB

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [ROOT / str(image.build_context) for image in built_images("tpu").values()]
CHECK = ROOT / "images" / "vllm-tpu-w4a16" / "check.py"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_image_starts_from_the_base_that_the_stack_pins_and_installs_nothing_without_a_hash(folder: Path):
    text = (folder / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^FROM (.+)$", text, re.MULTILINE) == ["${BASE_IMAGE}"]
    installs = re.findall(r"pip install .*", text)
    assert installs
    assert all("--require-hashes" in line and "--no-deps" in line for line in installs)
    for name in re.findall(r"^COPY ((?:\S+ )+)/", text, re.MULTILINE)[0].split():
        assert (folder / name).is_file()


def distribution(folder: Path, name: str, version: str, *requires: str) -> None:
    """Make an installed distribution."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [f"Requires-Dist: {one}" for one in requires]
    (info / "METADATA").write_text(
        "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines]) + "\n"
    )


@pytest.mark.parametrize(
    ("requires", "said"),
    [
        (("base>=1.0", "base==1.5.*", 'windows-only; sys_platform == "win32"', 'tests; extra == "dev"'), []),
        (("base>=2.0",), ["server requires base>=2.0, but 1.5.0rc1+cpu is installed."]),
        (("absent==1",), ["server requires absent==1, which is not installed."]),
    ],
)
def test_the_build_stops_at_what_the_base_lacks(tmp_path: Path, requires: tuple[str, ...], said: list[str]):
    distribution(tmp_path, "server", "0.31.0", *requires)
    distribution(tmp_path, "base", "1.5.0rc1+cpu")
    done = subprocess.run(
        [sys.executable, str(CHECK), "server"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr.splitlines()) == (1 if said else 0, said)


def build(
    folder: Path, *words: str, free_gib: int = 100, has_buildx: bool = True
) -> "subprocess.CompletedProcess[str]":
    """Run images/build.sh with a docker that prints its words, and a disk with so much room."""
    without = 'if [ "$1" = buildx ]; then echo "unknown flag: --platform" >&2; exit 125; fi\n'
    shown = f'if [ "$1" = info ]; then echo {folder}; elif [ "$2" != version ]; then printf "%s\\n" "$@"; fi'
    commands = {
        "docker": shown if has_buildx else without + shown,
        "df": f'printf "head\\n/dev/x 1 1 {free_gib * 2**20} 1%% /\\n"',
    }
    for name, script in commands.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return subprocess.run(
        ["sh", str(ROOT / "images" / "build.sh"), *words],
        env={"PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("name", built_images("tpu"))
def test_each_image_is_built_on_its_base_for_the_platform_of_the_servers_and_not_pushed(tmp_path: Path, name: str):
    image = built_images("tpu")[name]
    done = build(tmp_path, name)
    assert done.returncode == 0, done.stderr
    base = f"BASE_IMAGE={image.repository}@{image.digest}"
    platform = ["buildx", "build", "--platform", "linux/amd64", "--build-arg", base]
    assert done.stdout.splitlines() == [*platform, "--output", "type=cacheonly", image.build_context]


def test_a_docker_without_buildx_is_refused_with_the_package(tmp_path: Path):
    done = build(tmp_path, "vllm-tpu-w4a16", has_buildx=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Docker has no buildx. Install docker-buildx (Debian, Ubuntu)" in done.stderr
    assert "unknown flag" not in done.stderr


def test_a_build_that_the_disk_has_no_room_for_is_not_begun(tmp_path: Path):
    least = IMAGE_ON_DISK_GIB[1]
    done = build(tmp_path, "vllm-tpu-w4a16", free_gib=least - 1)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"has {least - 1} GiB free" in done.stderr
    assert build(tmp_path, "vllm-tpu-w4a16", free_gib=least).returncode == 0
