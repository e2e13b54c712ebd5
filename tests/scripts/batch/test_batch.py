"""`scripts.batch`: each request has exactly one response at the end, whatever happens on the way."""

import errno
import fcntl
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from contracts.fields import from_json
from contracts.outputs import StackOutputs
from scripts.batch import progress, results_file, run, server
from scripts.batch.__main__ import COMMAND
from scripts.batch.options import BatchLoadOptions, BatchServerOptions
from scripts.cli.access import IdTokenSource, ServerAccess
from scripts.cli.command import run_command
from tests.scripts.batch.conftest import until
from tests.scripts.sample_outputs import sample_outputs

ROOT = Path(__file__).parents[3]


def request(name, **changes):
    body = {"model": "gemma", "messages": [{"role": "user", "content": name}]}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body} | changes


class Work:
    """The files of a batch, and its command."""

    def __init__(self, folder, url, count=6):
        self.url = url
        self.input, self.output = folder / "requests.jsonl", folder / "results.jsonl"
        self.note = folder / "results.jsonl.batch.json"
        self.names = [f"r{number}" for number in range(count)]
        self.write(*map(request, self.names))

    def write(self, *requests):
        self.input.write_text("".join(f"{json.dumps(one)}\n" for one in requests))

    def words(self, *more):
        return [str(self.input), "--output", str(self.output), "--url", self.url, *more]

    def run(self, *more):
        return run_command(COMMAND, self.words(*more))

    def start(self, *more):
        command = [sys.executable, "-m", "scripts.batch", *self.words(*more)]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def lines(self):
        """Return the complete lines."""
        text = self.output.read_text() if self.output.exists() else ""
        return text.split("\n")[:-1]

    def results(self):
        """Return status and content of each response by its id. No id has two."""
        found = [json.loads(line) for line in self.lines()]
        assert len({one["custom_id"] for one in found}) == len(found)
        assert all(set(one) == {"id", "custom_id", "response", "error"} and one["error"] is None for one in found)
        return {one["custom_id"]: one["response"] for one in found}

    def contents(self):
        return {
            name: response["body"]["choices"][0]["message"]["content"]
            for name, response in self.results().items()
            if response["status_code"] == 200
        }


@pytest.fixture
def work(tmp_path, model, monkeypatch):
    monkeypatch.setattr(server, "_BACKOFF", lambda _state: 0.0)
    monkeypatch.setattr(server, "_READY_PERIOD_S", 0.05)
    return Work(tmp_path, model.url)


# --- every request once ------------------------------------------------------------------------------------------------------------


def test_kills_at_any_moment_lose_nothing_and_repeat_no_answer(tmp_path, model):
    work = Work(tmp_path, model.url, count=40)
    stored = []
    for allowed in (7, 1, 12):
        model.allow(allowed)
        process = work.start("--concurrency", "4")
        expected = len(stored) + allowed
        until(lambda: len(work.lines()) == expected)  # noqa: B023 - called in this round
        until(lambda: model.at_once == 4)  # the next ones are on their way
        process.kill()
        process.communicate()
        model.forget_clients()
        assert work.lines()[: len(stored)] == stored
        stored = work.lines()
        with work.output.open("a") as file:
            file.write('{"id":"batch_req_1","custom_id":"r39","respo')  # a write that the kill cut
    model.allow(10**9)
    process = work.start("--concurrency", "4")
    assert process.wait(120) == 0, process.communicate()
    assert work.contents() == {name: name for name in work.names}
    assert work.lines()[: len(stored)] == stored
    in_flight = sum(model.received.values()) - len(work.names)
    assert in_flight == 12, "only the four of each kill are sent again"
    assert model.most_at_once == 4


def test_ctrl_c_stops_at_once_keeps_the_answers_and_says_how_to_go_on(tmp_path, model):
    work = Work(tmp_path, model.url)
    model.allow(2)
    process = work.start()
    until(lambda: len(work.lines()) == 2)
    process.send_signal(signal.SIGINT)  # the other four wait for a server that never answers
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "output      2 responses in " in out
    assert "next        4 requests left. Run the same command again." in out
    assert errors.endswith("batch: interrupted. Stored responses are kept. Run the same command again to continue.\n")
    assert "Traceback" not in errors
    model.forget_clients()
    model.allow(10**9)
    assert work.run() == 0
    assert work.contents() == {name: name for name in work.names}


def test_a_finished_batch_sends_nothing_and_needs_no_server(work, model, capsys):
    assert work.run() == 0
    model.received.clear()
    work.url = "http://127.0.0.1:9"
    assert work.run("--json") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["stored_before"], found["left"], found["completed"]) == (6, 0, 0)
    assert model.received == {}


def test_the_summary_counts_tokens_and_cost(work, capsys):
    assert work.run("--usd-per-hour", "3.6") == 0
    out = capsys.readouterr().out
    assert "input       6 requests in " in out
    assert "tokens      18 in, 42 out" in out
    assert "at $3.60 per hour; $" in out
    assert "The server is simulated" in out
    work.output.unlink()
    assert work.run("--usd-per-hour", "3.6", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["usd"] == pytest.approx(found["elapsed_s"] / 1000)
    assert found["usd_per_million_output_tokens"] == pytest.approx(found["usd"] / 42 * 1e6)


def test_progress_is_a_line_now_and_then(work, monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_PERIOD_S", 0.0)
    assert work.run("--concurrency", "1") == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [f"batch: connecting to {work.url}", "batch: sending 6 requests, 1 at a time"]
    assert re.fullmatch(r"batch: 3 of 6 responses, [\d,]+ tokens/s, about \d+ s left", lines[5])
    assert re.fullmatch(r"batch: 6 of 6 responses, [\d,]+ tokens/s", lines[-1])


def test_a_part_can_be_sent_by_number_and_by_cost(work, model, capsys):
    assert work.run("--limit", "2") == 0
    assert set(work.results()) == {"r0", "r1"}
    assert work.run("--max-cost", "0.01") == 2
    assert "--max-cost requires a price. Add --usd-per-hour." in capsys.readouterr().err
    assert work.run("--max-cost", "0.01", "--usd-per-hour", "1e9", "--concurrency", "1") == 1
    assert len(work.results()) == 3
    assert model.received.total() == 3


def test_the_server_gets_as_many_requests_at_once_as_it_has_sequences(monkeypatch):
    """The first test sees that the command keeps to it."""
    outputs = from_json(StackOutputs, sample_outputs(vllm={"maxNumSeqs": 3}))
    monkeypatch.setattr(run, "stack_outputs", lambda _stack: outputs)
    target = run._target(BatchServerOptions(stack="x"), BatchLoadOptions())
    assert (target.concurrency, target.usd_per_hour) == (3, 1.42)
    replicated = from_json(StackOutputs, sample_outputs(vllm={"maxNumSeqs": 3, "dataParallelSize": 4}))
    monkeypatch.setattr(run, "stack_outputs", lambda _stack: replicated)
    assert run._target(BatchServerOptions(stack="x"), BatchLoadOptions()).concurrency == 12
    monkeypatch.setattr(run, "stack_outputs", lambda _stack: outputs)
    given = run._target(BatchServerOptions(stack="x", usd_per_hour=0.5), BatchLoadOptions(concurrency=9))
    assert (given.concurrency, given.usd_per_hour) == (9, 0.5)
    outputs = from_json(StackOutputs, sample_outputs())
    planned = SimpleNamespace(subject=SimpleNamespace(resolved=SimpleNamespace(max_num_seqs=64)))
    monkeypatch.setattr(run, "deployed_plan", lambda *_: planned)
    assert run._target(BatchServerOptions(stack="x"), BatchLoadOptions()).concurrency == 64
    planned.subject = None
    assert run._target(BatchServerOptions(stack="x"), BatchLoadOptions()).concurrency == 32


# --- what is refused before anything is sent ---------------------------------------------------------------------------------------

INVALID = {
    "not JSON": ('{"custom_id": ', "line 2: not JSON (Expecting value"),
    "not an object": ("[]", "line 2: not a JSON object."),
    "no id": (json.dumps(request("b", custom_id=None)), "line 2: `custom_id` must be a text that is not empty."),
    "a number as id": (json.dumps(request("b", custom_id=3)), "line 2: `custom_id` must be a text"),
    "the id of another": (json.dumps(request("a")), "line 2: `custom_id` 'a' is also the one of line 1."),
    "GET": (json.dumps(request("b", method="GET")), "line 2: `method` is 'GET'; it must be 'POST'."),
    "embeddings": (json.dumps(request("b", url="/v1/embeddings")), "line 2: `url` is '/v1/embeddings'; it must be "),
    "no body": (json.dumps(request("b", body="x")), "line 2: `body` must be a JSON object."),
    "a stream": (json.dumps(request("b", body={"stream": True})), "line 2: `body.stream` is true; "),
    "another model": (json.dumps(request("b", body={"model": "other"})), "line 2: model 'other' is not served. The server has: gemma."),
}  # fmt: skip


def test_an_invalid_line_is_named_before_anything_is_sent(work, model, capsys, subtests):
    for name, (line, said) in INVALID.items():
        with subtests.test(name):
            work.input.write_text(f"{json.dumps(request('a'))}\n{line}\n")
            assert work.run() == 2
            errors = capsys.readouterr().err
            assert f"{work.input}, {said}" in errors
            assert errors.endswith("Nothing was sent.\n")
    assert model.received == {}
    assert work.lines() == []


def test_all_invalid_lines_are_counted_and_empty_lines_are_none(work, capsys):
    work.input.write_text("{}\n\n[]\nx\n")
    assert work.run() == 2
    assert "line 1: `custom_id`" in (errors := capsys.readouterr().err)
    assert "2 more lines are invalid. Nothing was sent." in errors
    work.input.write_text("\n")
    assert work.run() == 2
    assert "has no requests." in capsys.readouterr().err
    work.input.write_text(f"\n{json.dumps(request('a'))}")
    assert work.run() == 0
    assert work.contents() == {"a": "a"}


def test_command_lines_that_make_no_sense_are_refused(work, capsys):
    assert run_command(COMMAND, [str(work.input), "--output", str(work.output)]) == 2
    assert "Pass either --stack NAME or --url URL." in capsys.readouterr().err
    work.output = work.input
    assert work.run() == 2
    assert "is the file of requests. Choose another --output file." in capsys.readouterr().err
    assert len(work.lines()) == 6
    work.input = work.input.with_name("none")
    assert work.run() == 2
    assert "Cannot read " in capsys.readouterr().err


# --- the file of responses ---------------------------------------------------------------------------------------------------------


def test_responses_to_other_requests_are_never_mixed_in(work, model, capsys, subtests):
    assert work.run("--limit", "2") == 0
    kept, note = work.output.read_bytes(), work.note.read_text()
    first = work.input.read_text()

    def refuses(said):
        model.received.clear()
        assert work.run() == 2
        assert said in capsys.readouterr().err
        assert work.output.read_bytes() == kept
        assert model.received == {}

    with subtests.test("another file"):
        work.input.write_text(first + json.dumps(request("more")) + "\n")
        refuses("has the responses to other requests than ")
    work.input.write_text(first)
    with subtests.test("no note: unknown"):
        work.note.unlink()
        refuses("has content, but results.jsonl.batch.json, which names its requests, is missing.")
    for text in ("{", "[]", '{"schema_version": 2}'):
        with subtests.test(f"a note that cannot be read: {text}"):
            work.note.write_text(text)
            refuses("Cannot read ")
    work.note.write_text(note)
    assert work.run() == 0
    assert work.contents() == {name: name for name in work.names}


def test_an_empty_file_belongs_to_nobody(work):
    work.output.touch()
    work.note.write_text('{"schema_version": 1, "input_sha256": "of another", "requests": 1}')
    assert work.run() == 0
    assert len(work.results()) == 6


def test_a_last_line_without_its_end_is_completed_or_removed(work, model):
    assert work.run("--limit", "3") == 0
    whole = work.output.read_bytes()
    work.output.write_bytes(whole[:-1])  # only the line feed is missing
    model.received.clear()
    assert work.run("--limit", "1") == 0
    assert list(model.received) == ["r3"]
    work.output.write_bytes(work.output.read_bytes()[:-9])
    assert work.run() == 0
    assert model.received["r3"] == 2
    assert work.contents() == {name: name for name in work.names}


def test_a_damaged_file_of_responses_is_refused(work, capsys, subtests):
    assert work.run("--limit", "2", "--concurrency", "1") == 0
    first, second = work.output.read_text().splitlines(keepends=True)
    damaged = {
        "a damaged line": ("{\n" + second, 1),
        "two of one request": (first + second + first, 3),
        "a foreign one": (first + second.replace('"r1"', '"r77"'), 2),
    }
    for name, (text, line) in damaged.items():
        with subtests.test(name):
            work.output.write_text(text)
            assert work.run() == 2
            assert f"results.jsonl, line {line} is not a response to one of the requests" in capsys.readouterr().err
            assert work.output.read_text() == text


def test_two_runs_never_write_one_file(work, model, capsys):
    with work.output.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert work.run() == 2
    assert "Another run writes --output " in capsys.readouterr().err
    assert model.received == {}


def test_a_full_disk_ends_the_run_and_the_next_one_goes_on(work, monkeypatch, capsys):
    left = iter(range(3))

    def sync(_descriptor):
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(results_file.os, "fsync", sync)
    assert work.run("--concurrency", "1") == 1
    assert "No space left on device. Its 1 responses are kept. Make room and run again." in capsys.readouterr().err
    monkeypatch.undo()
    assert work.run() == 0
    assert work.contents() == {name: name for name in work.names}


# --- failures of the server --------------------------------------------------------------------------------------------------------

DECLINED = {
    "429": (429, {}, {"error": {"message": "Rate exceeded."}}),
    "503 with Retry-After": (503, {"Retry-After": "0"}, {"error": {"message": "busy"}}),
}
UNANSWERED = {
    "503": (503, {}, {"error": {"message": "busy"}}),
    "500": (500, {}, {"error": {"message": "the engine died"}}),
    "a login page": (200, {}, b"<html>Sign in</html>"),
    "a redirect": (302, {"Location": "/login"}, {}),
    "a closed connection": None,
}


def test_a_request_that_the_server_declined_is_sent_again(work, model, monkeypatch, capsys, subtests):
    monkeypatch.setattr(server, "_REPORT_PERIOD_S", 0.0)
    for name, reply in DECLINED.items():
        with subtests.test(name):
            model.received.clear()
            model.replies = {"r2": [reply, reply]}
            work.output.unlink(missing_ok=True)
            assert work.run() == 0
            assert model.received["r2"] == 3
            assert work.contents() == {name: name for name in work.names}
            assert f"waiting for the server: HTTP {reply[0]}: " in capsys.readouterr().err


def test_a_request_that_the_server_may_have_processed_waits_for_the_next_run(work, model, capsys, subtests):
    for name, reply in UNANSWERED.items():
        with subtests.test(name):
            model.received.clear()
            model.replies = {"r2": [reply]}
            work.output.unlink(missing_ok=True)
            assert work.run() == 1
            assert model.received["r2"] == 1
            assert set(work.results()) == {*work.names} - {"r2"}
            assert (
                "unanswered  1 request of this run got no response\n            line 3, r2: " in capsys.readouterr().out
            )
            assert work.run() == 0
            assert work.contents() == {name: name for name in work.names}


def test_a_request_that_the_server_rejects_has_its_answer(work, model, capsys):
    model.replies = {"r2": [(400, {}, {"error": {"message": "The prompt is too long."}})]}
    assert work.run() == 1
    assert work.results()["r2"] == {
        "status_code": 400,
        "request_id": "",
        "body": {"error": {"message": "The prompt is too long."}},
    }
    assert "line 3, r2: HTTP 400: The prompt is too long." in capsys.readouterr().out
    model.received.clear()
    assert work.run() == 1, "the batch still has an error"
    assert model.received == {}


def test_a_server_that_answers_nothing_more_ends_the_run(tmp_path, model, work, capsys):
    work = Work(tmp_path, model.url, count=60)
    assert work.run("--limit", "5") == 0
    model.received.clear()
    model.replies = {"*": [UNANSWERED["500"]]}
    assert work.run("--concurrency", "2") == 1
    assert "12 requests in a row got no response, the last one: HTTP 500: the engine died" in (capsys.readouterr().err)
    assert model.received.total() <= 14
    assert len(work.results()) == 5


def test_a_server_that_is_not_there_is_no_failure_of_the_batch(work, capsys):
    work.url = "http://127.0.0.1:9"
    assert work.run("--ready-timeout", "0") == 2
    assert "The server was not ready within 0 s: GET /v1/models failed" in capsys.readouterr().err
    assert work.lines() == []


class ShortLived(Counter):
    """Tokens that the server takes three times each."""

    most = 3

    def __contains__(self, token):
        self[token] += 1
        return self[token] <= self.most


def test_tokens_that_run_out_are_renewed_and_a_rejected_caller_ends_the_run(work, model, monkeypatch, capsys):
    count = itertools.count()

    @contextmanager
    def opened(url):
        tokens = IdTokenSource("https://a", lambda _audience: f"token-{next(count)}")
        yield ServerAccess(base_url=url, auth="id-token", id_tokens=tokens)

    monkeypatch.setattr(run, "open_url_access", opened)
    model.tokens = ShortLived()
    assert work.run("--limit", "5", "--concurrency", "1") == 0
    assert model.tokens == {"token-0": 4, "token-1": 3}, "the models, five requests, and one that was rejected"
    model.tokens.most = 0
    assert work.run() == 2
    assert (
        "The server returned 401: The token has expired. On Cloud Run, add your account to" in capsys.readouterr().err
    )


def test_a_tunnel_that_closes_is_reopened_for_the_rest(work, model, start_model, monkeypatch):
    opened, other = [], start_model()
    model.allow(3)

    @contextmanager
    def tunnel(url):
        opened.append(url)
        number = len(opened)
        if number == 2:
            model.forget_clients()  # the connections of a closed tunnel break
        yield ServerAccess(
            base_url=url if number == 1 else other.url,
            auth="tunnel",
            is_open=lambda: number > 1 or model.received.total() < 4,
        )

    monkeypatch.setattr(run, "open_url_access", tunnel)
    assert work.run("--concurrency", "1") == 1
    assert set(work.contents()) == {"r0", "r1", "r2", "r4", "r5"}
    assert set(other.received) == {"r4", "r5"}, "r3 was on its way"
    assert work.run() == 0
    assert work.contents() == {name: name for name in work.names}


def test_each_endpoint_gets_its_requests(work, model):
    work.write(request("a"), request("b", url="/v1/completions", body={"model": "gemma", "prompt": "b"}))
    assert work.run() == 0
    assert work.contents() == {"a": "a", "b": "b"}
