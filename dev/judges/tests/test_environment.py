"""The environment of `gemma plan --compile` is installed by hash, and is the user's alone, as SECURITY.md promises."""

import os
import platform
import sys

import pytest

from dev.judges.tpu_compiler import environment
from dev.judges.tpu_compiler.wheels import NEWEST
from gemma_serving.contracts.errors import CommandRefusedError
from tests.records import replace

UV = """#!/bin/sh
echo "$@" >>"$FAKE_LOG"
for last; do :; done
if [ "$1" = venv ]; then
  mkdir -p "$last/bin" "$last/lib/python3.12/site-packages/torch/lib"
  printf '#!/bin/sh\\n' >"$last/bin/python"
  chmod +x "$last/bin/python"
fi
"""
"""A uv that creates an environment with an interpreter that does nothing, and logs its calls."""
WHEELS_HERE = replace(NEWEST, disk_gb=0.0)


@pytest.fixture
def log(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "uv"
    program.parent.mkdir()
    program.write_text(UV)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "log"


def install():
    return environment.install(WHEELS_HERE, report=lambda _: None)


def test_the_lock_is_installed_with_its_hashes_and_nothing_beside_it(log):
    assert install() == environment.installed(WHEELS_HERE)
    words = log.read_text().splitlines()[1].split()
    assert {"--require-hashes", "--no-deps"} <= set(words)
    assert words[-2:] == ["-r", str(NEWEST.lock)]


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o757])
def test_a_folder_that_others_can_write_is_refused(log, level, mode):
    home = environment.folder(WHEELS_HERE)
    install()
    path = [home, *home.parents][level]
    path.chmod(mode)
    os.chown(path, -1, os.getgid() + (mode == 0o775 and os.geteuid() == 0))
    if mode == 0o775 and os.geteuid() != 0:
        pytest.skip("another group needs root")
    for action in (install, lambda: environment.installed(WHEELS_HERE), lambda: environment.require_own(home)):
        with pytest.raises(CommandRefusedError, match=f"Another user owns {path} or can write to it"):
            action()


def test_so_is_a_folder_of_another_user_and_the_cache_itself_may_be_shared(log, monkeypatch):
    home = environment.folder(WHEELS_HERE)
    install()
    base = home.parents[2]
    base.chmod(0o1777)
    assert environment.installed(WHEELS_HERE) is not None
    base.chmod(0o777)
    with pytest.raises(CommandRefusedError, match=f"Another user owns {base} or"):
        environment.installed(WHEELS_HERE)
    base.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(CommandRefusedError, match="set XDG_CACHE_HOME to a folder that only you can write"):
        environment.installed(WHEELS_HERE)
