"""What a server, a machine or Google wrote cannot steer the terminal that shows it."""

import io

import pytest

from gcp_tpu_provider.tpu_api import GuestReport
from gemma_serving.scripts.cli.command import print_progress
from loadtest.client.events import error_message

CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07\x1b[2J"


def test_messages_of_servers_and_machines_are_plain_wherever_they_are_said(monkeypatch: pytest.MonkeyPatch):
    said = io.StringIO()
    monkeypatch.setattr("sys.stderr", said)
    print_progress("smoke", f"it answered {CLIPBOARD}")
    report = GuestReport.of({"phase": "failed", "detail": f"line\nlast {CLIPBOARD}"})
    assert report is not None
    for text in (said.getvalue(), error_message({"error": {"message": CLIPBOARD}}), report.detail):
        assert "\x1b" not in text
        assert "u001b]52;c;ZXZpbA==" in text
