"""The server's container: the accelerator's devices first, the whole machine after one failed start, and what the machine remembers of it."""

import json
from pathlib import Path

import pytest

from contracts.rollout import RolloutLimits, parse_rollout
from tests.vm_agent.docker import CONFINED_FAULT, RUN_FAULT
from tests.vm_agent.machine import Machine, eventually
from tests.vm_agent.test_roll_back import Serving, calls
from vm_agent.confinement import accelerator_devices, device_problem
from vm_agent.kept import ContainerHistory, KeptState

BUSY = "RuntimeError: Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed: open(/dev/vfio/1): Device or resource busy"
DENIED = "RuntimeError: Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed: open(/dev/vfio/0): Operation not permitted"


@pytest.fixture
def serving(machine: Machine):
    serving = Serving(machine)
    yield serving
    serving.let_go()


def runs(machine: Machine) -> list[bool]:
    """Whether each start of a server was privileged."""
    return ["--privileged" in call for call in calls(machine, "run")]


def forms(machine: Machine) -> list[str]:
    return [value for name, value in machine.published if name == "container"]


def test_the_last_lines_say_whether_a_device_was_the_cause(subtests: pytest.Subtests):
    for said, code, verdict in (
        (DENIED, 1, True),
        (
            "RuntimeError: Failed to initialize TPU system with error: x\nRuntimeError: Engine core initialization failed",
            1,
            True,
        ),
        ("open(/dev/accel0): Permission denied", 134, True),
        ("docker: Error response from daemon: error gathering device information while adding custom device", 1, True),
        ("invalid CapAdd: unknown capability: CAP_X", 1, True),
        (BUSY, 1, False),
        ("vllm: error: unrecognized arguments: --x", 2, False),
        ("Killed", 137, False),
        ("ValueError: No available memory for the cache blocks", 1, False),
        ("jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Attempting to allocate 2G", 1, False),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", 1, False),
        ("RuntimeError: Engine core initialization failed. See root cause above.", 1, None),
        ("", 139, None),
    ):
        with subtests.test(said):
            assert device_problem(["INFO starting", *said.splitlines(), "INFO the end"], code) is verdict


def test_only_chips_and_the_control_device_are_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GEMMA_SERVING_DEVICES", str(tmp_path))
    names = ["accel0", "accel_x", "sda", "vfio/vfio", "vfio/10", "vfio/devices", "kvm"]
    (tmp_path / "vfio").mkdir()
    for name in ("vfio/vfio", "sda"):
        (tmp_path / name).touch()
    assert accelerator_devices() == (), "without a chip the control device is not enough"
    for name in names:
        (tmp_path / name).touch()
    assert accelerator_devices() == (
        f"--device={tmp_path}/accel0:/dev/accel0",
        f"--device={tmp_path}/vfio/10:/dev/vfio/10",
        f"--device={tmp_path}/vfio/vfio:/dev/vfio/vfio",
    )


def test_a_device_error_costs_one_start_and_is_remembered_and_named(serving: Serving, machine: Machine):
    (machine.root / CONFINED_FAULT).write_text(f"1\n{DENIED}\nRuntimeError: Engine core initialization failed.")
    asked = serving.ask()
    serving.sees("ready", asked, asked)
    assert runs(machine) == [False, True]
    assert "retrying" not in [phase for phase, _ in machine.moments()], "it is not an attempt that failed"
    words = machine.guest()["container"]
    assert words.startswith("privileged: the confined server could not use the accelerator: ")
    assert "exit code 1" in words
    kept = KeptState(machine.root / "state").container
    assert kept.is_certain
    assert not kept.is_proven
    other = serving.ask("--max-num-seqs=4")
    serving.sees("ready", other, other)
    assert runs(machine) == [False, True, True], "another document loses no time"


def test_an_unclear_end_falls_back_for_its_document_only_until_a_privileged_server_is_ready(
    serving: Serving, machine: Machine
):
    bad = serving.ask("--crash")  # says nothing about devices, and ends with exit code 3, privileged or not
    serving.sees("failed", bad, "")
    assert runs(machine) == [False, True, True, True], "one fall-back, then the restarts of every document"
    assert "with no cause in its log" in machine.guest()["container"]
    good = serving.good()
    assert runs(machine)[4:] == [False], "the fall-back proved nothing"
    assert machine.guest()["container"].startswith("confined")
    assert KeptState(machine.root / "state").container == ContainerHistory(is_proven=True)
    worse = serving.ask("--crash")
    serving.sees("failed", worse, good)
    assert not any(runs(machine)[4:]), "a machine where a confined server was ready never falls back"


def test_an_unclear_end_that_privileges_repair_holds_for_the_machine(serving: Serving, machine: Machine):
    (machine.root / CONFINED_FAULT).write_text("134\nFatal Python error: Aborted")
    serving.good()
    assert KeptState(machine.root / "state").container.is_certain
    other = serving.ask("--max-num-seqs=4")
    serving.sees("ready", other, other)
    assert runs(machine) == [False, True, True]


def test_a_known_other_cause_never_falls_back(serving: Serving, machine: Machine):
    for fault in (f"1\n{BUSY}", "2\nunrecognized arguments", "1\nRESOURCE_EXHAUSTED: 2G"):
        (machine.root / CONFINED_FAULT).write_text(fault)
        asked = serving.ask(f"--seed={len(fault)}")
        serving.sees("failed", asked, "")
    assert not any(runs(machine))


def test_what_docker_refuses_falls_back_and_other_containers_keep_few_rights(serving: Serving, machine: Machine):
    (machine.root / RUN_FAULT).write_text("docker: Error response from daemon: invalid CapAdd: unknown capability\n")
    serving.good()
    assert runs(machine) == [False, True]
    assert "invalid CapAdd" in machine.guest()["container"]


def test_a_machine_without_a_device_that_is_known_starts_privileged_at_once(serving: Serving, machine: Machine):
    (machine.root / "dev/vfio/0").unlink()
    serving.good()
    assert runs(machine) == [True]
    assert machine.guest()["container"] == "privileged: no accelerator device was found below /dev"
    assert KeptState(machine.root / "state").container == ContainerHistory(), "it is asked again at the next start"


def test_the_setting_starts_privileged_at_once_and_back_again(serving: Serving, machine: Machine):
    limits = RolloutLimits(is_privileged=True)
    assert parse_rollout(limits.text()) == limits
    assert "container" not in json.loads(RolloutLimits().text()), "the metadata of earlier machines stays the same"
    first = serving.ask(limits=limits)
    serving.sees("ready", first, first)
    assert machine.guest()["container"] == "privileged: set by tpu.container"
    second = serving.ask("--max-num-seqs=4", limits=RolloutLimits())
    serving.sees("ready", second, second)
    assert runs(machine) == [True, False]
    (run,) = [call for call in calls(machine, "run") if "--privileged" in call]
    assert {"--volume=/dev/shm:/dev/shm", "--shm-size=10240m"} <= set(run)


def test_a_server_of_an_earlier_agent_keeps_running_and_is_named(serving: Serving, machine: Machine):
    good = serving.good()
    box = machine.root / "gemma-serving.json"
    state = json.loads(box.read_text())
    state["labels"].pop("gemma-serving.container")
    box.write_text(json.dumps(state))
    again = Serving(machine)
    again.port = serving.port
    assert again.ask() == good
    eventually(lambda: machine.guest()["container"] == "privileged: started before this agent", "it is named")
    assert len(runs(machine)) == 1
    again.let_go()
