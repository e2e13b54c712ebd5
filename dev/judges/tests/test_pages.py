"""The pages and files that come from judges are up to date."""

from dev.judges.pages import COMMAND
from gemma_serving.scripts.cli.command import run_command


def test_every_page_of_the_judges_is_up_to_date(capsys):
    assert run_command(COMMAND, ["--check"]) == 0, capsys.readouterr().out
