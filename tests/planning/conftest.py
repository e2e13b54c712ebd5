"""The command in this process."""

import pytest

from gemma_serving.scripts.plan.__main__ import main


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run `gemma plan`, with an empty backend instead of that of the user; returns exit code, stdout and stderr."""
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}")

    def ran(*arguments: object):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = stopped.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran
