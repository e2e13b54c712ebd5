"""Tables look alike in every command, and nothing is folded where no terminal reads."""

import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from gemma_serving.scripts.cli.command import Command, run_command
from gemma_serving.scripts.cli.lines import for_stream
from tests.engine.terminal import Terminal as RealTerminal
from tests.scripts.terminal import Terminal

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """None."""


def test_a_plan_in_a_file_is_the_same_at_any_width_and_a_piped_one_takes_it(tmp_path):
    def run(columns, **where):
        environment = {**os.environ, "GOOGLE_CLOUD_PROJECT": "my-project", "COLUMNS": columns}
        command = [sys.executable, "-m", "scripts.plan", "--stack", "tpu-v6e4"]
        return subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=120, **where).stdout

    def widest(text):
        return max(len(line) for line in text.splitlines())

    def piped(columns):
        return run(columns, stdout=subprocess.PIPE, stderr=subprocess.PIPE).decode()

    def filed(columns):
        with (tmp_path / "plan").open("wb") as file:
            run(columns, stdout=file)
        return (tmp_path / "plan").read_text()

    whole = filed("40")
    assert whole == piped("")
    assert widest(whole) > 100
    assert widest(piped("80")) <= 80


def test_a_pipe_is_as_wide_as_the_terminal_behind_it(tmp_path):
    command = f"{sys.executable} -m scripts.plan --stack tpu-v6e4 | cat > {tmp_path}/plan"
    environment = {**os.environ, "GOOGLE_CLOUD_PROJECT": "my-project"}
    shown = RealTerminal(
        ["sh", "-c", f"unset COLUMNS; {command}"], columns=72, lines=24, folder=ROOT, environment=environment
    )
    try:
        assert shown.end() == 0
    finally:
        shown.close()
    assert 60 < max(len(line) for line in (tmp_path / "plan").read_text().splitlines()) <= 72


def test_a_reader_that_leaves_ends_the_command_as_the_shell_says_it():
    """`gemma plan | head` under pipefail was exit code 1, the code of a failure."""
    command = f"exec {sys.executable} -m scripts.plan --stack tpu-v6e4"
    process = subprocess.Popen(
        ["sh", "-c", command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        env={**os.environ, "GOOGLE_CLOUD_PROJECT": "my-project", "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    process.stdout.close()
    errors = process.stderr.read().decode()
    assert (process.wait(), errors) == (141, "")


def test_another_broken_pipe_is_no_reader_that_leaves(capfd):
    def call(_options):
        raise BrokenPipeError("of a server")

    with pytest.raises(BrokenPipeError, match="of a server"):
        run_command(Command(name="x", help="Do x.", options=NoOptions, run=call), [])
    assert capfd.readouterr().out == ""


ADVICE = "Stack x is not deployed, because its files in /a/rather/long/path/Pulumi.x.yaml are new. Run `gemma up x --refresh` to deploy it."


def test_a_message_on_a_terminal_breaks_neither_words_nor_commands_nor_paths(monkeypatch):
    for width in range(30, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = for_stream(f"status: {ADVICE}\n\n  {ADVICE}", Terminal()).split("\n")
        assert sum("`gemma up x --refresh`" in line for line in lines) == 2
        assert sum("/a/rather/long/path/Pulumi.x.yaml" in line for line in lines) == 2
        assert max(map(len, lines)) <= max(width, len("  /a/rather/long/path/Pulumi.x.yaml"))
    assert for_stream(ADVICE, io.StringIO()) == ADVICE


def test_a_message_of_a_command_is_whole_at_80_columns(tmp_path):
    """The terminal cut a plain message at its last column: "the pl / an"."""
    shown = RealTerminal(
        [sys.executable, "-m", "scripts.gemma", "plan", "l4-qat", "--costs", "--explain"],
        columns=40, lines=24, folder=ROOT, environment=os.environ,
    )  # fmt: skip
    try:
        assert shown.end() == 2
    finally:
        shown.close()
    lines = shown.text.split("\n")
    words = " ".join(shown.text.split())
    assert len([line for line in lines if line]) > 1
    assert "plan: --costs" in words
    assert words.endswith("cannot be combined.")


def test_a_drawing_in_a_poor_encoding_is_drawn():
    command = [sys.executable, "-m", "scripts.gemma", "plan", "tpu-v6e4"]
    environment = {**os.environ, "GOOGLE_CLOUD_PROJECT": "my-project", "PYTHONIOENCODING": "ascii"}
    shown = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True, timeout=120)
    assert (shown.stderr, b"KV cache" in shown.stdout) == (b"", True)
