"""The command in this process."""

import pytest

from scripts.plan.__main__ import main


@pytest.fixture
def run(capsys):
    """Run `gemma plan`; returns exit code, stdout and stderr."""

    def ran(*arguments: object):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = stopped.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran
