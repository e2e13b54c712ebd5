"""Public interface of `scripts.logs` for other commands: new lines of a server's log, and their cause."""

from gemma_serving.scripts.logs.place import ServerLog, known_cause, log_of, server_log
from gemma_serving.scripts.logs.reading import failed_service_cause, follow

__all__ = ["ServerLog", "failed_service_cause", "follow", "known_cause", "log_of", "server_log"]
