"""A run asks what the server can answer, keeps every answer, and says what it did not learn."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.errors import CommandRefusedError
from contracts.features import ServedFeatures
from contracts.fields import from_json
from contracts.outputs import StackOutputs
from scripts.cli.command import run_command
from scripts.quality.__main__ import COMMAND
from scripts.quality.items import all_items
from scripts.quality.run import selected
from scripts.quality.served import served_of
from scripts.quality.store import newest, read_result
from tests.scripts.quality.conftest import right_answer
from tests.scripts.sample_outputs import sample_outputs

ROOT = Path(__file__).parents[3]


@pytest.fixture
def ask(knowing, tmp_path, capsys):
    """Run the command against the knowing server; returns exit code, JSON and stderr."""

    def asked(*words, out="run"):
        capsys.readouterr()
        target = () if "--stack" in words else ("--url", knowing.url)
        code = run_command(COMMAND, [*target, "--out", str(tmp_path / out), "--json", *words])
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if printed.out else None, printed.err

    return asked


def test_a_server_that_knows_everything_is_right_everywhere(knowing, ask, tmp_path):
    code, found, err = ask()
    assert (code, found["ending"], found["complete"]) == (0, "done", True)
    assert (found["share"]["right"], found["share"]["judged"], found["share"]["share"]) == (140, 140, 1.0)
    assert set(found["shares"]) == {"exact", "json", "tools", "retrieval"}
    assert found["left_out"] == {"long": "30 questions are longer than the server's max-model-len 4,096"}
    assert (found["served"]["simulated"], found["served"]["vllm_version"]) == (None, "0.28.0")
    assert "140 of 140 right, 100.0%" in err
    assert knowing.asked == [one.id for one in all_items() if one.fits(4096, thinking=False)]
    stored = read_result(tmp_path / "run")
    assert [one.id for one in stored.answers] == knowing.asked
    assert stored.answers[0].text == right_answer(all_items()[0])["content"]
    assert (stored.answers[0].completion_tokens, stored.header.set_sha256) == (5, found["set_sha256"])


def test_wrong_answers_are_a_result_and_a_missing_one_is_a_failure(knowing, ask):
    knowing.answers["exact/product"] = {"content": "Answer: 1629"}
    code, found, err = ask("--kind", "exact")
    assert (code, found["share"]["right"], found["unknown"]) == (0, 61, 0)
    assert "? Expected: 1692. Answered: 1629." in err
    knowing.answers["exact/product"] = 500
    code, found, err = ask("--kind", "exact", out="two")
    assert (code, found["share"]["judged"], found["unknown"]) == (1, 61, 1)
    assert "exact/product: no answer: status 500: planted" in err


def test_a_kind_that_the_server_rejects_is_left_out_and_not_counted_as_wrong(knowing, ask):
    message = '"auto" tool choice requires --enable-auto-tool-choice'
    knowing.refuses["tools"] = (400, message)
    code, found, _ = ask("--kind", "tools", "--kind", "json")
    assert (code, found["complete"], list(found["shares"])) == (0, True, ["json"])
    assert found["left_out"]["tools"] == f"the server rejects such requests (400): {message}"
    assert found["planned"] == 30
    assert sum(name.startswith("tools/") for name in knowing.asked) == 1


def test_a_text_that_is_too_long_for_the_servers_tokenizer_is_left_out(knowing, ask):
    knowing.answers["retrieval/4096-at-50%"] = 400
    knowing.message = "This model's maximum context length is 4096 tokens. However, you requested 64 output tokens"
    code, found, _ = ask("--kind", "retrieval")
    assert (code, found["planned"], found["share"]["judged"], found["unknown"]) == (0, 9, 9, 0)
    assert found["left_out"]["rejected"] == "retrieval/4096-at-50%: too long by the server's count of tokens"
    knowing.message = "planted"
    code, found, _ = ask("--kind", "retrieval", out="two")
    assert (code, found["planned"], found["unknown"]) == (1, 10, 1)


def test_an_interrupted_run_keeps_its_answers_and_continues(knowing, ask, tmp_path, monkeypatch):
    def interrupt(_progress, state, _item):
        if len(state.answers) == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("scripts.quality.command._Progress.__call__", interrupt)
        code, found, err = ask("--kind", "json")
    assert (code, found["ending"], found["complete"], len(found["answers"])) == (130, "interrupted", False, 5)
    assert "--resume" in err
    assert len(read_result(tmp_path / "run").answers) == 5
    assert ask("--kind", "json")[0] == 2
    before = len(knowing.asked)
    code, found, _ = ask("--kind", "json", "--resume")
    assert (code, found["complete"], len(found["answers"]), len(knowing.asked) - before) == (0, True, 30, 25)
    knowing.max_model_len = 2048
    code, _, err = ask("--kind", "json", "--resume")
    assert code == 2
    assert "has another deployment" in err


def test_ctrl_c_ends_a_run_at_once_and_keeps_its_answers(knowing, ask, tmp_path):
    knowing.pause_s = 0.2
    words = ["--url", knowing.url, "--out", str(tmp_path / "run"), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "scripts.quality", *words],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while len(knowing.asked) < 3:
        assert process.poll() is None
        time.sleep(0.05)
    code, _, err = ask("--resume")
    assert (code, "is in use by another run" in err) == (2, True)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    found = json.loads(output)
    assert (process.returncode, found["ending"]) == (130, "interrupted")
    assert len(found["answers"]) == len(read_result(tmp_path / "run").answers) >= 2
    assert f"continue with: python -m scripts.quality {' '.join(words)} --resume" in errors


def test_a_question_without_an_answer_is_asked_again(knowing, ask):
    knowing.answers["json/book"] = 503
    assert ask("--kind", "json")[0] == 1
    knowing.answers.clear()
    before = len(knowing.asked)
    code, found, _ = ask("--kind", "json", "--resume")
    assert (code, found["share"]["right"], knowing.asked[before:]) == (0, 30, ["json/book"])


def test_an_incomplete_last_line_is_dropped_and_another_damaged_one_is_refused(ask, tmp_path):
    ask("--kind", "json")
    path = tmp_path / "run" / "answers.jsonl"
    path.write_text(path.read_text() + '{"id": "json/bo')
    assert len(read_result(tmp_path / "run").answers) == 30
    path.write_text('{"id": 1}\n' + path.read_text())
    with pytest.raises(CommandRefusedError, match="line 1 is not an answer"):
        read_result(tmp_path / "run")


def test_a_server_that_is_gone_ends_the_run_without_a_verdict(knowing, ask):
    for one in all_items()[3:]:
        knowing.answers[one.id] = "break"
    code, found, err = ask()
    assert (code, found["ending"], found["share"]["right"], found["unknown"]) == (2, "unreachable", 3, 3)
    assert "cannot reach the server" in err
    knowing.close()
    code, found, err = ask(out="two")
    assert (code, found) == (2, None)


def test_single_lost_responses_do_not_end_a_run_and_denied_access_does(knowing, ask):
    for number in (0, 1, 3, 4):
        knowing.answers[all_items()[number].id] = "break"
    code, found, _ = ask("--kind", "exact")
    assert (code, found["ending"], found["unknown"]) == (1, "done", 4)
    knowing.answers = {all_items()[2].id: 403}
    code, found, err = ask("--kind", "exact", out="two")
    assert (code, found) == (2, None)
    assert "the server denied access (403): planted" in err


def test_a_simulated_server_is_said_to_mean_nothing(knowing, ask):
    knowing.simulated = True
    _, found, err = ask("--kind", "json")
    assert found["served"]["simulated"] == "planted"
    assert err.count("mean nothing") == 2
    assert "quality (SIMULATED)" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kind", "poems"), "--kind is 'poems'; it must be one of exact, json, tools, retrieval."),
        (("--stack", "x", "--url", "http://127.0.0.1:9"), "No server selected. Pass --stack NAME or --url URL."),
        (("--model", "other"), "--model is 'other', but the server serves gemma, adapter."),
    ],
)
def test_a_mistake_is_one_sentence(ask, words, said):
    code, _, err = ask(*words)
    assert code == 2
    assert err.strip().endswith(said)


# --- with a stack ----------------------------------------------------------------------------------------------------------------------


def outputs(url, **changes):
    return from_json(StackOutputs, sample_outputs(endpoint=url, auth="none", servedModel="gemma") | changes)


def test_a_stack_says_what_is_served_and_its_newest_run_is_found(knowing, ask, tmp_path, monkeypatch):
    features = ServedFeatures(adapters=("adapter",))
    monkeypatch.setattr(
        "scripts.quality.command.stack_outputs", lambda _: replace(outputs(knowing.url), features=features)
    )
    code, found, _ = ask("--stack", "chat", out="results/chat/a-quality")
    served = found["served"]
    assert code == 0
    assert (served["stack"], served["weights"], served["kv_cache"]) == ("chat", "bf16", "fp8")
    assert (served["accelerator"], served["usd_per_hour"], served["image"]) == ("L4", 1.42, "i@sha256:0")
    assert found["left_out"]["tools"] == "the stack's settings have no tool-call parser"
    monkeypatch.setattr("scripts.quality.store.project_folder", lambda: tmp_path)
    assert newest("chat").folder == str(tmp_path / "results/chat/a-quality")
    assert newest("other") is None
    ask("--stack", "chat", "--kind", "json", out="results/chat/c-quality")
    adapted = ask("--stack", "chat", "--model", "adapter", out="results/chat/b-quality")[1]
    assert (adapted["served"]["adapter"], knowing.seen[-1]["model"]) == ("adapter", "adapter")
    assert served["adapter"] is None
    assert adapted["planned"] == found["planned"]
    assert newest("chat").folder == str(tmp_path / "results/chat/a-quality")


@pytest.mark.parametrize(("has_tools", "asked"), [(True, 38), (False, 0), (None, 38)])
def test_tools_are_left_out_only_if_the_stack_is_known_to_have_none(has_tools, asked):
    items, left_out = selected(
        all_items(), kinds=("exact", "tools"), max_model_len=4096, max_context=None, thinking=False, has_tools=has_tools
    )
    assert sum(one.kind == "tools" for one in items) == asked
    assert ("tools" in left_out) is (not asked)
    assert ServedFeatures().tools is False


def test_the_type_of_the_kv_cache_is_that_of_the_weights_unless_set():
    class Info:
        model, max_model_len, version, simulated = "gemma", 4096, "0.28.0", None

    options = {"kvCacheDtype": "auto", "quantization": "fp8"}
    served = served_of(Info, "chat", outputs("http://x", vllm=options))
    assert (served.weights, served.kv_cache) == ("fp8", "bf16")
