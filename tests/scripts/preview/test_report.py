"""A preview becomes one comment, in which a replacement cannot be overlooked, and which is updated in place."""

import http.server
import json
import re
import subprocess
import threading

import pytest

from scripts.errors import ScriptError
from scripts.preview.github import upsert_comment
from scripts.preview.report import (
    MARKER,
    EnginePreview,
    ResourceChange,
    StackPreview,
    comment,
    from_engine,
    read_all,
    write,
)
from scripts.preview.run import _previewed
from scripts.pulumi import engine

URN = "urn:pulumi:x::gemma-serving::gcp:storage/bucket:Bucket::models"
ENGINE = {
    "steps": [
        {
            "op": "create",
            "urn": "urn:pulumi:x::p::pulumi:pulumi:Stack::p-x",
            "newState": {"type": "pulumi:pulumi:Stack"},
        },
        {"op": "update", "urn": URN, "newState": {"type": "gcp:storage/bucket:Bucket"}, "diffReasons": ["labels"]},
        {
            "op": "replace",
            "urn": URN.replace("models", "capacity"),
            "newState": {"type": "gcp-tpu:index:QueuedResource"},
            "diffReasons": ["acceleratorType"],
            "replaceReasons": ["acceleratorType"],
        },
        {"op": "same", "urn": URN, "newState": {"type": "x"}},
    ],
    "diagnostics": [
        {"severity": "warning", "message": "FIT07: fp8 KV buys nothing\n"},
        {"severity": "info", "message": "x"},
    ],
    "changeSummary": {"same": 12, "update": 1, "replace": 1},
}


def preview_of_engine(stack="x", **changes):
    found, unchanged, warnings = from_engine(EnginePreview.model_validate(ENGINE))
    return StackPreview(stack=stack, changes=found, unchanged=unchanged, warnings=warnings, usd_per_hour=5.4, **changes)


def test_an_engines_preview_is_read_without_the_stack_itself():
    preview = preview_of_engine()
    assert [(change.op, change.name) for change in preview.changes] == [("update", "models"), ("replace", "capacity")]
    assert preview.unchanged == 12
    assert preview.warnings == ("FIT07: fp8 KV buys nothing",)


def test_a_replacement_stands_out_with_what_forces_it():
    text = comment([preview_of_engine()])
    assert "| x | 0 | 1 | **1** | 0 | 12 | 5.40 |" in text
    assert "**x replaces `capacity` (forced by acceleratorType): the running resources are deleted first.**" in text
    assert "FIT07" in text
    assert text.startswith(MARKER)


def test_a_failed_preview_says_why():
    text = comment([StackPreview(stack="bad", error="Pulumi.bad.yaml: gemma-serving:tagret is not a known setting.")])
    assert "| bad | failed |" in text
    assert "tagret is not a known setting" in text


def test_a_simulated_preview_says_so():
    assert "simulated" in comment([preview_of_engine(simulated=True)])


def test_a_comment_never_exceeds_what_github_takes():
    changes = tuple(ResourceChange(op="create", type="t" * 100, name=f"n{i}") for i in range(2000))
    assert len(comment([StackPreview(stack="x", changes=changes)])) < 65_536


def test_previews_survive_between_steps(tmp_path):
    previews = [preview_of_engine("b"), preview_of_engine("a")]
    for preview in previews:
        write(tmp_path, preview)
    assert [preview.stack for preview in read_all(tmp_path)] == ["a", "b"]


class GitHub(http.server.BaseHTTPRequestHandler):
    """Keeps comments as GitHub's API does, page by page."""

    comments: list
    tokens: list

    def _answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self):
        self.tokens.append(self.headers["Authorization"])
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")

    def do_GET(self):
        if "missing" in self.path:
            self._answer(404, {"message": "Not Found"})
            return
        page = int(self.path.partition("&page=")[2])
        self._answer(200, self.comments[(page - 1) * 100 : page * 100])

    def do_POST(self):
        self.comments.append({"id": len(self.comments), **self._body()})
        self._answer(201, {})

    def do_PATCH(self):
        self.comments[int(self.path.rpartition("/")[2])].update(self._body())
        self._answer(200, {})

    def log_message(self, *_):
        pass


@pytest.fixture
def github():
    handler = type("Handler", (GitHub,), {"comments": [], "tokens": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_there_is_one_comment_however_often_it_is_posted_and_others_are_left_alone(github):
    handler, api = github
    handler.comments.extend({"id": i, "body": f"of a person {i}"} for i in range(150))
    assert upsert_comment(api, "o/r", 7, "t", comment([preview_of_engine()])) == "created"
    assert upsert_comment(api, "o/r", 7, "t", comment([preview_of_engine("y")])) == "updated"
    assert len(handler.comments) == 151
    assert "| y |" in handler.comments[150]["body"]
    assert handler.comments[3]["body"] == "of a person 3"


def test_a_refusal_of_github_is_one_sentence_without_the_token(github):
    _, api = github
    with pytest.raises(ScriptError, match="GitHub refused GET") as caught:
        upsert_comment(api + "/missing?x=", "o/r", 7, "ghs_canary", "x")
    assert "ghs_canary" not in str(caught.value)


def test_an_unreachable_github_is_one_sentence():
    with pytest.raises(ScriptError, match="GitHub could not be reached"):
        upsert_comment("http://127.0.0.1:9", "o/r", 7, "t", "x")


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("googleapi: Error 403: Cloud Run Admin API has not been used in project 1 before or it is disabled.", True),
        ("rpc error: PERMISSION_DENIED", True),
        ("Pulumi.x.yaml: gemma-serving:model is missing; set it.", False),
    ],
)
def test_a_preview_that_google_refuses_names_the_doctor(monkeypatch, said, named):
    def refuse(*arguments, **_options):
        code = 0 if arguments[0] == "stack" else 255
        return subprocess.CompletedProcess(arguments, code, "", f"error: {said}")

    monkeypatch.setattr(engine, "run", refuse)
    with pytest.raises(ScriptError, match=re.escape(said)) as caught:
        _previewed("l4-qat", create=False)
    assert ("python -m scripts.doctor --stack l4-qat" in str(caught.value)) == named
