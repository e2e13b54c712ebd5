"""Public interface of `scripts.logs` for other commands: the cause of a server's log lines."""

from gemma_serving.scripts.logs.place import known_cause, server_log
from gemma_serving.scripts.logs.reading import failed_service_cause

__all__ = ["failed_service_cause", "known_cause", "server_log"]
