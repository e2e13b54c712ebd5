"""The examples of docs/status.md are what the commands print."""

from datetime import UTC, datetime
from pathlib import Path

from scripts.logs.__main__ import LogsOptions, print_heading, print_lines
from scripts.logs.place import ServerLog, known_cause, sentence
from scripts.logs.reading import PrintedLine
from tests.scripts.status.test_status import REPORT, drawn

PAGE = (Path(__file__).parents[3] / "docs" / "status.md").read_text()
LOG = ServerLog(stack="l4-qat", project="my-project", target="cloud-run", location="us-east4")
LINES = (
    (
        "stderr",
        "OSError: Invalid repository ID or local directory specified: '/mnt/models/gemma-4-26B-A4B-it-qat-q4_0-w4a16-ct'",
    ),
    ("system", "Container called exit(1)."),
)


def plain(text):
    return "\n".join(line.rstrip() for line in text.splitlines())


def test_the_status_of_the_page_is_what_a_terminal_of_80_columns_shows():
    assert f"```text\n{plain(drawn(REPORT, 80))}\n```" in PAGE


def test_the_lines_of_the_page_are_what_the_command_prints(capsys, monkeypatch):
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")
    lines = [
        PrintedLine(moment=datetime(2026, 11, 1, 12, 0, second, tzinfo=UTC), source=source, where="", text=text)
        for second, (source, text) in enumerate(LINES)
    ]
    options = LogsOptions(stack="l4-qat", utc=True)
    print_heading(options, LOG)
    print_lines(options, lines)
    said = capsys.readouterr()
    cause = f"logs: {sentence(known_cause(LOG, [line.text for line in lines]))}"
    assert f"```text\n{said.err}{said.out}{cause}\n```" in PAGE
