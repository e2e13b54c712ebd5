"""The examples of docs/status.md are what the commands print."""

from pathlib import Path

from tests.scripts.status.test_status import REPORT, drawn

PAGE = (Path(__file__).parents[3] / "docs" / "status.md").read_text()
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
    """The page ends after the first stack, with `...`."""
    shown = PAGE.partition("```text\n")[2].partition("...\n```")[0]
    assert len(shown.splitlines()) > 10
    assert plain(drawn(REPORT, 80)).startswith(shown.rstrip())
