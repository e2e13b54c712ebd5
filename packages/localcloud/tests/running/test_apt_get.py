"""A machine whose boot image lacks docker: the package provides it if the archives respond."""

import subprocess

import pytest

from localcloud.running.shims import COMMANDS_WITHOUT_DOCKER, install
from localcloud.running.shims.machine import FOLDER_VARIABLE, write_json


@pytest.fixture
def machine(tmp_path):
    def make(*, internet):
        write_json(tmp_path / "machine.json", {"internet": internet})
        return install(tmp_path / "bin", COMMANDS_WITHOUT_DOCKER, {FOLDER_VARIABLE: str(tmp_path)})

    return make


def run(folder, *words):
    return subprocess.run([folder / words[0], *words[1:]], capture_output=True, text=True, check=False, timeout=60)


def test_docker_comes_with_its_package_and_needs_the_internet(machine):
    commands = machine(internet=False)
    assert run(commands, "docker", "--version").returncode == 127
    failed = run(commands, "apt-get", "-q", "update")
    assert (failed.returncode, "Could not connect" in failed.stderr) == (100, True)
    commands = machine(internet=True)
    assert run(commands, "apt-get", "-q", "update").returncode == 0
    assert run(commands, "docker", "--version").returncode == 127
    assert run(commands, "apt-get", "install", "-y", "-q", "docker.io").returncode == 0
    assert run(commands, "docker", "ps", "--quiet").returncode == 0


def test_other_packages_are_refused(machine):
    assert run(machine(internet=True), "apt-get", "install", "-y", "vim").returncode == 100
