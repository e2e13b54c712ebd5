"""The waits of two libraries that take no clock: the only place where tests replace a module's `time`.

The retries of google-api-core and of the Hugging Face Hub's client read `time` of their own modules and take neither a clock nor a
`sleep`. Everything of this repository takes its clock as an argument instead.
"""

from collections.abc import Callable
from types import SimpleNamespace

import pytest


def set_google_retry_time(monkeypatch: pytest.MonkeyPatch, now_s: Callable[[], float]) -> None:
    """Let retries of Google's clients read `now_s`, and end their pauses at once."""
    clock = SimpleNamespace(monotonic=now_s, sleep=lambda _seconds: None)
    for module in ("retry_unary", "retry_base"):
        monkeypatch.setattr(f"google.api_core.retry.{module}.time", clock)


def end_hub_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """End the pauses between the attempts of the hub's client at once."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _seconds: None)
