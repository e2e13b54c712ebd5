"""Public interface of `scripts.logs` for other commands: new lines of a server's log, their cause, and the measured start."""

from gemma_serving.scripts.logs.place import known_cause, log_of, server_log
from gemma_serving.scripts.logs.reading import SERVES, follow, with_known_cause
from gemma_serving.scripts.logs.starts import MeasuredStart, first_start, start_json, start_text

__all__ = [
    "SERVES",
    "MeasuredStart",
    "first_start",
    "follow",
    "known_cause",
    "log_of",
    "server_log",
    "start_json",
    "start_text",
    "with_known_cause",
]
