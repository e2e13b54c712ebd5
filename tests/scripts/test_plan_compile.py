"""`gemma plan --compile` runs the judge as a child process."""

import json

import pytest

from gemma_serving.scripts.plan import compile as compiling
from gemma_serving.scripts.plan.__main__ import main

WORDS = ("--stack", "tpu-v6e1", "--compile", "all", "--json")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--solve", "--workload", "in=1,out=1", "--compile"), "--compile and --solve cannot be combined."),
        (("--model", "31B", "--compare", "--compile"), "--compile and --compare cannot be combined."),
        (("--stack", "tpu-v6e1", "--yes"), "--yes requires --compile. Add --compile."),
    ],
)
def test_a_wrong_question_starts_no_judge(capsys, words, said):
    assert main([*words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err


def test_where_the_judges_are_missing_one_sentence_says_how_to_get_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compiling, "_ROOT", tmp_path)
    assert main([*WORDS]) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out)["exit_code"] == 2
    assert "--compile needs the folder dev/judges/ of the repository" in printed.err
    assert "4 GB" in printed.err


@pytest.mark.parametrize(("code", "own"), [(0, 0), (1, 1), (2, 2), (130, 130), (137, 1)])
def test_the_judge_gets_the_words_and_decides_the_exit_code(tmp_path, monkeypatch, capfd, code, own):
    judge = tmp_path / "dev" / "judges" / "plan.py"
    judge.parent.mkdir(parents=True)
    judge.write_text(f"import sys; print(sys.argv[1:]); sys.exit({code})")
    monkeypatch.setattr(compiling, "_ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main([*WORDS]) == own
    assert capfd.readouterr().out == f"{[*WORDS]}\n"  # words that this command takes: the judge has the same parser
