"""Public interface of `scripts.logs` for other commands: new lines of a server's log, their cause, and the measured start."""

from gemma_serving.scripts.logs.place import known_cause, log_of, server_log
from gemma_serving.scripts.logs.reading import SERVES, failed_service_cause, follow
from gemma_serving.scripts.logs.starts import MeasuredStart, first_start

__all__ = [
    "SERVES",
    "MeasuredStart",
    "failed_service_cause",
    "first_start",
    "follow",
    "known_cause",
    "log_of",
    "server_log",
]
