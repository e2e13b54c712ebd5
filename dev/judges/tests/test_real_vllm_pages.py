"""Faults that `python -m dev.judges.real_vllm --part pages` reports. No vLLM is installed here; its answers are those of 0.32.0."""

from dev.judges.real_vllm.cache_pages import page_faults, pages_text, question
from tests.planning.corpus.pages import FILE, stored_pages

STORED = stored_pages()
FOUND = [(row.block_bytes, row.blocks) for row in STORED]


def test_the_stored_answers_are_no_fault_and_the_file_is_what_the_part_writes():
    assert page_faults(STORED, FOUND) == []
    assert pages_text(STORED, FOUND) == FILE.read_text(encoding="utf-8")


def test_each_changed_answer_is_a_fault_with_its_row():
    (fault,) = page_faults(STORED, [(1, 1), *FOUND[1:]])
    assert fault.startswith(f"pages.csv, {STORED[0]}: vLLM has blocks of 1 bytes and 1 for a request")


def test_a_device_has_its_share_of_the_heads_and_one_at_least():
    row = next(row for row in STORED if (row.model, row.tp) == ("31B-it", 8))
    assert question(row)["layers"] == [(50, 2, 256, 1_024), (10, 1, 512, None)]
