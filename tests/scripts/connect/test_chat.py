"""`scripts.connect chat`: files, a system prompt, thinking per request, and refusals before anything is sent."""

import json
import struct
import sys
import zlib
from contextlib import contextmanager
from io import StringIO
from types import SimpleNamespace

import pytest

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.fields import from_json
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.connect import __main__ as connect
from gemma_serving.scripts.connect.chat import run_chat
from tests.scripts.connect.test_connect import Private, conversation, delta, private, streams
from tests.scripts.sample_outputs import sample_outputs

__all__ = ["private", "streams"]
ANSWER = [delta(content="Yes."), {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}, "[DONE]"]
MIB = 2**20


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PNG = b"\x89PNG\r\n\x1a\n" + b"".join(
    (
        chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)),
        chunk(b"IDAT", zlib.compress(b"\0\0")),
        chunk(b"IEND", b""),
    )
)
WAV = (
    b"RIFF"
    + struct.pack("<I", 36)
    + b"WAVEfmt "
    + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 8000, 1, 8)
    + b"data\0\0\0\0"
)
MP4 = b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom"


@pytest.fixture
def files(tmp_path):
    """A picture, a sound and a video, under names that say something else."""
    for name, data in {"picture.wav": PNG, "sound.png": WAV, "video.txt": MP4}.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def test_a_file_that_cannot_be_sent_is_one_sentence_and_exit_code_2(private, files, capsys, subtests):
    (files / "large.png").write_bytes(PNG)
    with (files / "large.png").open("r+b") as file:
        file.truncate(192 * MIB)
    cases = {
        "missing": (("--image", "none.png"), "Cannot read none.png: No such file or directory.\n"),
        "a folder": (("--audio", str(files)), f"Cannot read {files}: Is a directory.\n"),
        "another kind": (("--image", str(files / "sound.png")), "sound.png is audio/wav. Image files are PNG, "),
        "unknown": (("--video", __file__), "test_chat.py is unknown. Video files are "),
        "too large": (
            ("--image", str(files / "large.png")),
            "large.png has 192.0 MiB; at most 191 MiB fit in one request.",
        ),
    }
    for name, (words, said) in cases.items():
        with subtests.test(name):
            assert connect.main(["chat", "--url", private, *words, "Hi."]) == 2
            errors = capsys.readouterr().err
            assert said in errors
            assert errors.count("\n") == 1
    assert Private.bodies == Private.seen == []


def stack_with(features, monkeypatch, url=""):
    """Return the words that name a stack with these features. Its server is not reached without a URL."""
    outputs = from_json(StackOutputs, sample_outputs(features=features, auth="none", endpoint=url))
    facts = SimpleNamespace(cloud=None)
    monkeypatch.setattr("gemma_serving.scripts.stack.serves.facts_of_server", lambda _stack: (None, facts))
    monkeypatch.setattr("gemma_serving.scripts.stack.serves.outputs_to_use", lambda *_: outputs)
    if not url:

        @contextmanager
        def never(_outputs):
            raise AssertionError("the server was reached")
            yield

        monkeypatch.setattr("gemma_serving.scripts.stack.access.open_stack_access", never)
    return ["chat", "--stack", "x", "Hi."]


def test_an_empty_prompt_is_refused_before_a_connection_and_the_message_names_chat(capsys):
    assert run_command(connect.COMMAND, ["chat", "--stack", "tpu-v6e1", " "]) == ExitCode.REFUSED
    said = "chat: The prompt is empty. Pass a text, or no prompt for a conversation.\n"
    assert capsys.readouterr().err == said


def test_thinking_that_the_server_does_not_separate_is_refused(monkeypatch, capsys):
    assert connect.main([*stack_with({"images": 1}, monkeypatch), "--thinking"]) == 2
    assert "does not separate thinking from the response. Set `vllm.thinking.parser` " in capsys.readouterr().err


def test_a_conversation_attaches_files_and_changes_thinking(private, streams, files, capsys):
    Private.events = ANSWER
    chat = conversation(private, streams)
    lines = iter(
        [
            "/image none.png", f"/image {files}/picture.wav", "What is it?", "And now?", "/thinking on", "Think.", "/thinking off",
            "/thinking", "/new", "Hi.", "/thinking perhaps",
        ]
    )  # fmt: skip
    run_chat(chat, lambda: next(lines, None), most_request_bytes=32 * MIB)
    errors = capsys.readouterr().err
    assert "chat: Cannot read none.png: No such file or directory." in errors
    assert f"attached: {files}/picture.wav (image, 0 KiB)" in errors
    assert "/thinking is not a command." in errors
    assert [json.dumps(body["messages"]).count('image_url": {') for body in Private.bodies] == [1, 1, 1, 0]
    thinking = [body.get("chat_template_kwargs") for body in Private.bodies]
    assert thinking == [None, None, {"enable_thinking": True}, {"enable_thinking": False}]
    assert (chat.shows_thinking, len(Private.bodies[-1]["messages"])) == (True, 1)


def test_a_prompt_of_any_length_comes_from_the_input_and_the_response_is_one_object(private, monkeypatch, capsys):
    """The command line of a process is visible to other users, and has a limit."""
    prompt = "--yes\nSecond line. " * 20_000
    Private.events = [delta(reasoning="Hm."), *ANSWER]
    monkeypatch.setattr(sys, "stdin", StringIO(prompt))
    assert connect.main(["chat", "--url", private, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert Private.bodies[-1]["messages"] == [{"role": "user", "content": prompt}]
    assert (found["answer"], found["thinking"], found["prompt_tokens"], found["output_tokens"]) == ("Yes.", "Hm.", 3, 1)
    assert connect.main(["chat", "--url", private, "--json"]) == 2
    assert "--json needs a prompt." in capsys.readouterr().err
