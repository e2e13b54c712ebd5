"""Docker on a machine whose image has none: installed once, and a failure says what the machine needs."""

import pytest

from gemma_serving.vm_agent import containers
from gemma_serving.vm_agent.base import ServingError
from gemma_serving.vm_agent.containers import ensure_docker


class Shell:
    """Answers commands by their first word, and keeps them."""

    def __init__(self, docker: int, apt: int = 0) -> None:
        self.answers = {"docker": (docker, ""), "apt-get": (apt, "E: Could not connect to archive.ubuntu.com")}
        self.ran: list[str] = []

    def __call__(self, argv, **_more):
        self.ran.append(" ".join(argv))
        return self.answers[argv[0]]


def run(monkeypatch: pytest.MonkeyPatch, shell: Shell) -> list[str]:
    monkeypatch.setattr(containers, "run_command", shell)
    ensure_docker()
    return shell.ran


def test_a_machine_with_docker_installs_nothing(monkeypatch):
    assert run(monkeypatch, Shell(docker=0)) == ["docker --version"]
    # A daemon that does not respond yet is not a missing program.
    assert run(monkeypatch, Shell(docker=1)) == ["docker --version"]


def test_a_machine_without_docker_gets_the_package_and_waits_for_the_lock(monkeypatch):
    _, update, install = run(monkeypatch, Shell(docker=127))
    assert update.endswith(" update")
    assert install.endswith("-y install docker.io")
    assert "DPkg::Lock::Timeout" in update


def test_a_failed_installation_names_nat_and_the_setting(monkeypatch):
    with pytest.raises(ServingError, match=r"Could not connect.*Cloud NAT .*tpu\.runtimeVersion"):
        run(monkeypatch, Shell(docker=127, apt=100))
