"""The questions of `examples/evals/`: each right answer passes the task's filter and metric, and a wrong one fails."""

import json
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
TASK = yaml.safe_load((ROOT / "examples" / "evals" / "gemma_serving_answers.yaml").read_text())
QUESTIONS = [
    json.loads(line) for line in (ROOT / TASK["dataset_kwargs"]["data_files"]["test"]).read_text().splitlines()
]


def is_right(text, answer):
    """Judge as lm-evaluation-harness does: its regex filter, then its exact match."""
    (regex, take_first), (metric,) = TASK["filter_list"][0]["filter"], TASK["metric_list"]
    assert (regex["function"], take_first["function"], metric["metric"]) == ("regex", "take_first", "exact_match")
    found = re.findall(regex["regex_pattern"], text)
    given = found[regex["group_select"]].strip() if found else regex["fallback"]
    (ignored,) = metric["regexes_to_ignore"]
    assert metric["ignore_case"]
    return re.sub(ignored, "", given).lower() == re.sub(ignored, "", answer).lower()


def test_each_question_is_whole_and_no_id_repeats():
    assert len({row["id"] for row in QUESTIONS}) == len(QUESTIONS) == 62
    for row in QUESTIONS:
        assert set(row) == {"id", "question", "answer"}
        assert all(isinstance(text, str) and text.strip() == text != "" for text in row.values()), row
    fields = re.findall(r"{{(\w+)}}", TASK["doc_to_text"] + TASK["doc_to_target"])
    assert fields == ["question", "answer"]


def test_the_filter_finds_the_right_answer_and_no_other(subtests):
    for row in QUESTIONS:
        answer = row["answer"]
        with subtests.test(row["id"]):
            for form in (
                "Answer: {}", "17 + 4 = 21.\n\n**Answer: {}**", "answer: {}.", "Answer: 3\nAnswer: `{}`", "## Answer:\t${}$\n"
            ):  # fmt: skip
                assert is_right(form.format(answer), answer), form
            for wrong in (
                answer,
                f"Answer: {answer}1",
                f"Answer: {answer}\nAnswer: 5x",
                "Answer:",
                "",
                f"It is {answer}.",
            ):
                assert not is_right(wrong, answer), wrong


def test_separators_of_thousands_do_not_count():
    assert is_right("Answer: 3,145,728", "3145728")
    assert is_right("Answer: 3 145 728", "3145728")
    assert not is_right("Answer: 1,2", "12")
