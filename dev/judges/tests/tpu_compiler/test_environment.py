"""The environment of the wheels is whole or absent, and every refusal is one sentence."""

import os
import platform
import shutil
import sys
import threading
from collections import namedtuple
from hashlib import sha256

import pytest

from dev.judges.tpu_compiler import environment
from dev.judges.tpu_compiler.wheels import NEWEST, WHEELS
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from localcloud.go_build import cache_folder
from tests.records import replace

FAKE = """#!/bin/sh
echo "$@" >>"$FAKE_LOG"
for last; do :; done
if [ "$1" = "$FAKE_FAILS" ]; then
  printf 'error: Request failed\\n  cause: dns error\\n  cause: Name or service not known\\n' >&2
  exit 2
fi
if [ "$1" = "$FAKE_HANGS" ]; then exec sleep 60; fi
if [ "$1" = venv ]; then
  mkdir -p "$last/bin" "$last/lib/python3.12/site-packages/torch/lib"
  printf '#!/bin/sh\\necho "python $LD_BIND_NOW$HF_TOKEN" >>"%s"\\nexit %s\\n' "$FAKE_LOG" "${FAKE_PYTHON:-0}" >"$last/bin/python"
  chmod +x "$last/bin/python"
fi
"""
WHEELS_HERE = replace(NEWEST, disk_gb=0.0)


class Fake:
    """A uv that creates an environment with an interpreter that does nothing."""

    def __init__(self, folder):
        self.log = folder / "log"

    @property
    def calls(self):
        """First words of each call."""
        return [line.split()[0] for line in self.lines]

    @property
    def lines(self):
        return self.log.read_text().splitlines() if self.log.is_file() else []


@pytest.fixture
def fake(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "uv"
    program.parent.mkdir()
    program.write_text(FAKE)
    program.chmod(0o755)
    found = Fake(tmp_path)
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    for name, value in {"FAKE_LOG": found.log, "XDG_CACHE_HOME": tmp_path / "cache"}.items():
        monkeypatch.setenv(name, str(value))
    return found


def install(report=lambda _: None):
    return environment.install(WHEELS_HERE, report=report)


def refusal():
    """The sentence with which an installation is refused."""
    with pytest.raises(CommandRefusedError) as error:
        install()
    assert error.value.exit_code == ExitCode.REFUSED
    assert environment.installed(WHEELS_HERE) is None
    assert not environment.folder(WHEELS_HERE).exists()
    return str(error.value)


def test_the_interpreter_is_found_after_an_installation_and_the_second_one_does_nothing(fake):
    assert environment.installed(WHEELS_HERE) is None
    python = install()
    assert python == environment.installed(WHEELS_HERE) == environment.folder(WHEELS_HERE) / "bin" / "python"
    assert fake.calls == ["venv", "pip", "python"]
    assert install() == python
    assert len(fake.calls) == 3


def test_the_lock_is_installed_with_its_hashes_and_nothing_beside_it(fake):
    install()
    words = fake.lines[1].split()
    assert {"--require-hashes", "--no-deps"} <= set(words)
    assert words[-2:] == ["-r", str(NEWEST.lock)]


def test_the_folder_is_beside_the_engines_and_named_by_the_lock(fake, tmp_path, monkeypatch):
    digest = sha256(NEWEST.lock.read_bytes()).hexdigest()
    assert environment.folder(NEWEST) == cache_folder("compiler") / f"{NEWEST.name}-{digest[:12]}"
    assert len({environment.folder(wheels) for wheels in WHEELS}) == len(WHEELS)
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert environment.folder(NEWEST).parent == cache_folder("compiler")


def test_torch_finds_links_for_nvidias_libraries_and_binds_functions_late(fake):
    packages = install().parents[1] / "lib/python3.12/site-packages"
    links = {path.name: path.readlink().name for path in (packages / "torch/lib").iterdir()}
    assert set(links.values()) == {"libtorch_global_deps.so"}
    assert {"libcublas.so.12", "libcudnn.so.9"} <= set(links)
    assert not any(name.startswith("libcudart") for name in links), (
        "the runtime is installed: it says that there is no GPU"
    )
    (pth,) = packages.glob("*.pth")
    assert pth.read_text().startswith("import "), "site runs only lines that start so"
    flags = sys.getdlopenflags()
    try:
        exec(pth.read_text())  # noqa: S102
        assert sys.getdlopenflags() == os.RTLD_LAZY
    finally:
        sys.setdlopenflags(flags)


def test_no_variable_of_the_user_makes_the_loader_bind_early(fake, monkeypatch):
    monkeypatch.setenv("LD_BIND_NOW", "1")
    install()
    assert fake.lines[-1].strip() == "python"


def test_a_half_installation_is_replaced(fake):
    home = environment.folder(WHEELS_HERE)
    for path in (home, home.with_name(f"{home.name}.12345")):
        (path / "bin").mkdir(parents=True)
        (path / "bin" / "python").touch()
        (path / "leftover").touch()
    assert environment.installed(WHEELS_HERE) is None
    install()
    assert not (home / "leftover").exists()
    assert [path.name for path in home.parent.iterdir() if path.is_dir()] == [home.name]


def test_two_installations_at_once_end_with_one(fake):
    barrier, found, reports = threading.Barrier(2), [], []

    def run():
        barrier.wait()
        found.append(install(reports.append))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [environment.installed(WHEELS_HERE)] * 2
    assert fake.calls == ["venv", "pip", "python"]


@pytest.mark.parametrize("at", ["venv", "pip"])
def test_an_interrupted_installation_leaves_nothing_and_ends_uv(fake, monkeypatch, at):
    monkeypatch.setenv("FAKE_HANGS", at)
    monkeypatch.setattr(environment, "_REPORT_EVERY_S", 0.05)
    programs = []
    popen = environment.subprocess.Popen

    def started(*args, **options):
        programs.append(popen(*args, **options))
        return programs[-1]

    monkeypatch.setattr(environment.subprocess, "Popen", started)

    def report(text):
        if text.endswith(" s"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install(report)
    assert all(program.returncode is not None for program in programs)
    assert environment.installed(WHEELS_HERE) is None
    assert [path for path in environment.folder(WHEELS_HERE).parent.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        (
            "FAKE_FAILS",
            "pip",
            "could not install the compiler's wheels: Name or service not known. Check the network, and",
        ),
        (
            "FAKE_FAILS",
            "venv",
            "Name or service not known. Install Python 3.12, so that `python3.12` is on PATH, and run",
        ),
        ("FAKE_PYTHON", "1", "do not load on this machine: no output."),
    ],
    ids=["without a network", "without Python 3.12", "wheels that do not load"],
)
def test_a_failed_installation_is_refused_with_uvs_last_line(fake, monkeypatch, variable, value, sentence):
    monkeypatch.setenv(variable, value)
    assert sentence in refusal()


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "aarch64"), ("Windows", "AMD64")])
def test_another_machine_is_refused_before_anything_runs(fake, monkeypatch, system, machine):
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert f"this machine is {system} {machine}; " in refusal()
    assert fake.calls == []


def test_a_full_disk_is_refused_with_the_free_space_and_the_needed(fake, monkeypatch):
    usage = namedtuple("usage", "total used free")  # noqa: PYI024
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 4_700_000_000))
    with pytest.raises(CommandRefusedError, match=r"need 5\.0 GB in .*, and 4\.7 GB are free"):
        environment.install(replace(NEWEST, disk_gb=4.0), report=lambda _: None)
    assert fake.calls == []
    environment.install(replace(NEWEST, disk_gb=3.7), report=lambda _: None)


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o757])
def test_a_folder_that_others_can_write_is_refused(fake, level, mode):
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


def test_so_is_a_folder_of_another_user_and_the_cache_itself_may_be_shared(fake, monkeypatch):
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


def test_the_folders_are_the_users_alone_whatever_the_umask(fake):
    before = os.umask(0)
    try:
        home = environment.folder(WHEELS_HERE)
        install()
        assert {path.stat().st_mode & 0o777 for path in (home, home.parent, home.parents[1])} == {0o700}
    finally:
        os.umask(before)


def test_without_uv_the_sentence_names_the_set_up(fake, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    assert "run `make setup`" in refusal()


def test_uv_on_path_is_enough(fake, monkeypatch):
    monkeypatch.setenv("PATH", f"{fake.log.parent / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert environment.find_uv() == str(fake.log.parent / "bin" / "uv")
