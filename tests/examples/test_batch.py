"""`examples/batch.py`: each request has exactly one result, whatever interrupts it."""

import json
import os
import resource
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from tests.answers import served
from tests.polling import until

ROOT = Path(__file__).parents[2]
NAMES = [f"r{number}" for number in range(60)]


class Model:
    """A model that echoes its prompt. It answers the number of requests that a test allows, and lets the others wait."""

    def __init__(self, allowed):
        self.allowed = threading.Semaphore(allowed)
        self.received, self.status, self.url = [], 200, ""

    def answer(self, asked):
        prompt = json.loads(asked.body)["messages"][0]["content"]
        self.received.append(prompt)
        self.allowed.acquire()
        status = 400 if prompt == "r7" and self.status == 200 else self.status
        return status, {"error": {"message": "too long"}} if status != 200 else {"text": prompt}


@contextmanager
def serving(allowed):
    model = Model(allowed)
    with served(model.answer) as model.url:
        yield model
        model.allowed.release(10_000)


def start(folder, server, **options):
    body = {"model": "gemma", "chat_template_kwargs": {"enable_thinking": False}}
    lines = [
        {"custom_id": n, "url": "/v1/chat/completions", "body": {**body, "messages": [{"content": n}]}} for n in NAMES
    ]
    (folder / "requests.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    settings = {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "key"}
    command = [sys.executable, "-B", str(ROOT / "examples" / "batch.py"), "requests.jsonl", "results.jsonl"]
    return subprocess.Popen(
        command, cwd=folder, env=os.environ | settings, stderr=subprocess.PIPE, text=True, **options
    )


def complete(folder):
    path = folder / "results.jsonl"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def test_a_kill_loses_no_result_and_repeats_none(tmp_path):
    expected = 11
    with serving(expected) as server:
        process = start(tmp_path, server)
        until(lambda: len(complete(tmp_path)) >= expected, "the results before the kill")
        process.kill()
        process.wait()
    stored = complete(tmp_path)
    assert len(stored) == expected
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"custom_id": "r59", "respo')  # a write that the kill cut off
    with serving(1_000) as server:
        assert start(tmp_path, server).wait(60) == 0
        assert len(server.received) == len(NAMES) - expected
        assert start(tmp_path, server).wait(60) == 0
        assert len(server.received) == len(NAMES) - expected
    assert complete(tmp_path)[:expected] == stored
    results = {one["custom_id"]: one["response"] for one in map(json.loads, complete(tmp_path))}
    assert (len(complete(tmp_path)), results.keys()) == (len(NAMES), set(NAMES))
    assert results.pop("r7") == {"status_code": 400, "body": {"message": "too long"}}
    assert all(one == {"status_code": 200, "body": {"text": name}} for name, one in results.items())


def test_a_server_that_fails_ends_it_with_one_sentence(tmp_path):
    with serving(1_000) as server:
        server.status = 401
        process = start(tmp_path, server)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.count("\n") == 1
    assert "Run it again" in said
    assert complete(tmp_path) == []


def test_a_disk_that_is_full_ends_it_with_one_sentence_and_the_next_run_completes_it(tmp_path):
    with serving(1_000) as server:
        process = start(tmp_path, server, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)))
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said.count("\n")) == (1, 1)
        assert "File too large" in said
        assert "run it again" in said
        assert start(tmp_path, server).wait(60) == 0
    assert {json.loads(line)["custom_id"] for line in complete(tmp_path)} == set(NAMES)
    assert len(complete(tmp_path)) == len(NAMES)
