"""The pages and files that come from judges are up to date."""

from gemma_serving.scripts.cli.command import run_command
from judges.pages import COMMAND


def test_every_page_of_the_judges_is_up_to_date(capsys):
    assert run_command(COMMAND, ["--check"]) == 0, capsys.readouterr().out
