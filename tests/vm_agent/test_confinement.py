"""The server's container: the accelerator's devices, the whole machine only by the setting, and the line that names it."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_serving.contracts.rollout import RolloutLimits, parse_rollout
from gemma_serving.vm_agent.confinement import accelerator_devices, confined, is_device_error, privileged
from gemma_serving.vm_agent.running_server import SET_PRIVILEGED
from tests.laws import examples
from tests.vm_agent.docker import CONFINED_FAULT
from tests.vm_agent.in_process import Serving, calls
from tests.vm_agent.machine import Machine

BUSY = "RuntimeError: Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed: open(/dev/vfio/1): Device or resource busy"
DENIED = "RuntimeError: Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed: open(/dev/vfio/0): Operation not permitted"


def runs(machine: Machine) -> list[bool]:
    """Whether each start of a server was privileged."""
    return ["--privileged" in call for call in calls(machine, "run")]


def test_the_last_lines_say_whether_a_device_was_the_cause(subtests: pytest.Subtests):
    for said, verdict in (
        (DENIED, True),
        (
            "RuntimeError: Failed to initialize TPU system with error: x\nRuntimeError: Engine core initialization failed",
            True,
        ),
        ("open(/dev/accel0): Permission denied", True),
        ("docker: Error response from daemon: error gathering device information while adding custom device", True),
        ("invalid CapAdd: unknown capability: CAP_X", True),
        (BUSY, False),
        ("ValueError: No available memory for the cache blocks", False),
        ("jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Attempting to allocate 2G", False),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", False),
        ("RuntimeError: Engine core initialization failed. See root cause above.", False),
        ("", False),
    ):
        with subtests.test(said):
            assert is_device_error(["INFO starting", *said.splitlines(), "INFO the end"]) is verdict


CHIPS = ["accel0", "accel10", "vfio/0", "vfio/10"]
OTHERS = ["accel0_ctl", "accel_x", "sda", "vfio/10x", "vfio/devices", "kvm"]


@settings(max_examples=examples(test=60, part=200, night=1000))
@given(st.sets(st.sampled_from(CHIPS)), st.sets(st.sampled_from(OTHERS)), st.booleans())
def test_only_chips_and_the_control_device_are_passed(chips: set[str], others: set[str], has_control: bool):
    """Without a chip the control device is not enough."""
    control = ["vfio/vfio"] * has_control
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setenv("GEMMA_SERVING_DEVICES", folder)
        (Path(folder) / "vfio").mkdir()
        for name in (*chips, *others, *control):
            (Path(folder) / name).touch()
        passed = [*sorted(chips), *control] if chips else []
        assert accelerator_devices() == tuple(f"--device={folder}/{name}:/dev/{name}" for name in passed)


@pytest.mark.parametrize(("size_gib", "size"), [(0.0, "1m"), (0.5, "512m"), (10.0, "10240m")])
def test_a_container_has_the_shared_memory_of_its_document_and_a_mebibyte_at_least(size_gib: float, size: str):
    for container in (confined([], size_gib), privileged(size_gib)):
        assert f"--shm-size={size}" in container.options


def test_a_device_error_stops_with_the_setting_to_change(serving: Serving, machine: Machine):
    (machine.root / CONFINED_FAULT).write_text(f"1\n{DENIED}\nRuntimeError: Engine core initialization failed.")
    asked = serving.ask()
    serving.sees("failed", asked, "")
    assert runs(machine) == [False], "one start"
    assert machine.guest()["container"].startswith("confined")
    assert machine.guest()["detail"].endswith(f"The confined server could not use the accelerator: {SET_PRIVILEGED}.")
    again = serving.serves(limits=RolloutLimits(is_privileged=True))
    assert (again, runs(machine)) == (asked, [False, True]), "the setting starts the document that failed"


def test_a_device_error_where_a_server_was_ready_is_tried_again(serving: Serving, machine: Machine):
    serving.good()
    (machine.root / CONFINED_FAULT).write_text(f"1\n{DENIED}")
    serving.ask("--max-num-seqs=4")
    machine.until(lambda: len(runs(machine)) > 2, "it is started again")
    (machine.root / CONFINED_FAULT).unlink()
    assert not any(runs(machine))


def test_no_other_cause_starts_a_privileged_container(serving: Serving, machine: Machine):
    for fault in (f"1\n{BUSY}", "134\nFatal Python error: Aborted"):
        (machine.root / CONFINED_FAULT).write_text(fault)
        asked = serving.ask(f"--seed={len(fault)}")
        serving.sees("failed", asked, "")
        assert SET_PRIVILEGED not in machine.guest()["detail"]
    assert not any(runs(machine))


def test_what_docker_refuses_stops_too(serving: Serving, machine: Machine):
    (machine.root / "dev/vfio/1").mkdir()
    asked = serving.ask()
    serving.sees("failed", asked, "")
    assert runs(machine) == [False]
    assert SET_PRIVILEGED in machine.guest()["detail"]


def test_a_machine_without_a_device_that_is_known_starts_no_container(serving: Serving, machine: Machine):
    (machine.root / "dev/vfio/0").unlink()
    asked = serving.ask()
    serving.sees("failed", asked, "")
    assert runs(machine) == []
    assert machine.guest()["detail"] == f"No accelerator device was found below /dev: {SET_PRIVILEGED}."


def test_the_setting_starts_privileged_at_once_and_back_again(serving: Serving, machine: Machine):
    limits = RolloutLimits(is_privileged=True)
    assert parse_rollout(limits.text()) == limits
    assert "container" not in json.loads(RolloutLimits().text()), "the metadata of earlier machines stays the same"
    serving.serves(limits=limits)
    assert machine.guest()["container"] == "privileged: set by tpu.container"
    serving.serves("--max-num-seqs=4", limits=RolloutLimits())
    assert runs(machine) == [True, False]
    open_run, confined_run = calls(machine, "run")
    assert {"--volume=/dev/shm:/dev/shm", "--shm-size=10240m"} <= set(open_run)
    hardened = {"--cap-drop=ALL", "--security-opt=no-new-privileges"}
    assert (hardened & set(open_run), hardened & set(confined_run)) == (set(), hardened)


def test_a_server_of_an_earlier_agent_keeps_running_and_is_named(serving: Serving, machine: Machine):
    good = serving.good()
    box = machine.vm.record("gemma-serving")
    state = json.loads(box.read_text())
    state["labels"].pop("gemma-serving.container")
    box.write_text(json.dumps(state))
    again = Serving(machine)
    again.port = serving.port
    assert again.ask() == good
    machine.until(lambda: machine.guest()["container"] == "privileged: started before this agent", "it is named")
    assert len(runs(machine)) == 1
