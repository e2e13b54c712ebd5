"""The planted faults: each has a sentence and tests, and still applies to this tree."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
_SPEC = importlib.util.spec_from_file_location("planted_faults", FOLDER / "__main__.py")
assert _SPEC is not None
assert _SPEC.loader is not None
command = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(command)
FAULTS = command.faults()


def test_each_room_has_faults():
    assert all(command.faults([room]) for room in command.ROOMS)
    assert {folder.name for folder in FOLDER.iterdir() if any(folder.glob("*.patch"))} == set(command.ROOMS)


def test_each_fault_has_a_sentence_of_its_own_and_test_files_that_exist(subtests):
    assert len({fault.sentence for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        with subtests.test(fault.name):
            assert re.fullmatch(r"[A-Z].{20,160}\.", fault.sentence)
            assert fault.tests
            assert all(Path(name).name.startswith("test_") and (ROOT / name).is_file() for name in fault.tests)


def test_each_fault_changes_one_module_and_applies(subtests):
    for fault in FAULTS:
        with subtests.test(fault.name):
            changed = re.findall(r"^\+\+\+ b/(.+)$", fault.file.read_text(encoding="utf-8"), re.MULTILINE)
            assert len(changed) == 1
            assert "/tests/" not in changed[0]
            check = ["git", "apply", "--check", str(fault.file)]
            done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{done.stderr}Plant it again from its sentence: {fault.sentence}"


@pytest.mark.parametrize("name", ["memory/lora-slots"])
def test_a_copy_takes_a_fault_and_gives_it_back(name, tmp_path):
    (fault,) = [fault for fault in FAULTS if fault.name == name]
    copy = command.copied(tmp_path)
    module = copy / "gemma_serving" / "planning" / "memory" / "adapters.py"
    before = module.read_text()
    assert command.applied(copy, fault)
    assert module.read_text() != before
    assert command.applied(copy, fault, "-R")
    assert module.read_text() == before
