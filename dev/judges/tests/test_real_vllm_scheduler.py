"""What `python -m dev.judges.real_vllm --part scheduler` calls a fault. No vLLM is installed here; its answers are those of 0.32.0."""

from dev.judges.real_vllm.scheduler import scheduler_faults, write_rows
from tests.planning.corpus.scheduler import FILE, SchedulerAnswer, stored_rows

STORED = stored_rows()
FOUND = [SchedulerAnswer(**row.answer) for row in STORED]


def test_the_stored_answers_are_no_fault():
    assert scheduler_faults(STORED, FOUND) == []


def test_each_changed_answer_is_a_fault_with_its_line():
    changed = [*FOUND[:3], FOUND[3].model_copy(update={"later_steps": FOUND[3].later_steps + 0.001}), *FOUND[4:]]
    (fault,) = scheduler_faults(STORED, changed)
    assert fault.startswith("scheduler.csv, line 5: ")


def test_the_file_is_what_the_part_writes(tmp_path):
    write_rows(tmp_path / "scheduler.csv", STORED, FOUND)
    assert (tmp_path / "scheduler.csv").read_text(encoding="utf-8") == FILE.read_text(encoding="utf-8")
